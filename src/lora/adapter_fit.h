// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lora/adapter.h"
#include "lora/model.h"

namespace zckpt {

// What the base model calls a module or weight that an adapter names
// otherwise; empty where nothing is known.
using NameConversion = std::function<std::string(const std::string&)>;

// Where an adapter meets its base model.
struct AdapterPlace {
  // The number in the joined checkpoint of the adapter's first tensor.
  uint32_t first_tensor = 0;
  // For names that the model does not have; may be empty.
  NameConversion convert;
  // The model has Conv1D layers (GPT-2), which their names then tell.
  bool has_conv1d = false;
};

// The weight that a tensor of an adapter is for; null where the model has none.
NamedTensor* find_weight(const AdapterTensor& tensor, const AdapterPlace& place,
                         Model& model);

// Whether adapter and model belong together, from names alone. Adds a note
// where modules that the config speaks of have no factors.
// Errors: Corrupt where a tensor has no place in the model, with the nearest
//         names, or a module that was to be saved whole is not in the adapter.
void check_fit(const Adapter& adapter, const AdapterPlace& place, Model& model,
               std::vector<std::string>& notes);

}  // namespace zckpt
