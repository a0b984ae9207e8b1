// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "zckpt/checkpoint.h"
#include "zckpt/error.h"
#include "zckpt/finding.h"

namespace zckpt::cli {

// The pieces of the JSON documents that docs/cli.md describes.
using Json = nlohmann::ordered_json;

Json to_json(const Finding& finding);
Json to_json(const std::vector<Finding>& findings);
Json to_json(const CheckpointFacts& facts);
Json failure_json(const std::string& verb, const Error& error);
// {"zckpt": 1, "verb": verb}
Json document(const std::string& verb);
// As text with two spaces of indent; bytes that are no UTF-8 become U+FFFD.
std::string dump(const Json& json);

}  // namespace zckpt::cli
