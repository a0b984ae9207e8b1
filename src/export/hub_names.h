// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lora/model.h"

namespace zckpt {

// transformers keeps some models in memory under other names than in files:
// since 4.52 parts of vision models have other prefixes, since 5 the experts of
// a layer are one tensor. A checkpoint has the names in memory; files must have
// the others (transformers/conversion_mapping.py, read at 5.17.0).

// What a weight or module is called in files; `name` itself where the table
// has nothing to say about this type of model.
std::string hub_name(std::string_view model_type, const std::string& name);

// Renames `model` and takes experts apart where that is known. `in_files` says
// whether the base model's files have a name; empty where there is no base,
// then the table alone decides. Adds notes about names that match neither.
void convert_to_hub_names(
    std::string_view model_type,
    const std::function<bool(const std::string&)>& in_files, Model& model,
    std::vector<std::string>& notes);

}  // namespace zckpt
