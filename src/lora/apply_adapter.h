// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lora/adapter.h"
#include "lora/model.h"
#include "zckpt/lora.h"

namespace zckpt {

// What the base model calls a module or weight that an adapter names
// otherwise; empty where nothing is known.
using NameConversion = std::function<std::string(const std::string&)>;

struct AdapterPlace {
  // The number in the joined checkpoint of the adapter's first tensor.
  uint32_t first_tensor = 0;
  // For names that the model does not have; may be empty.
  NameConversion convert;
  // The model has Conv1D layers (GPT-2), which their names then tell.
  bool has_conv1d = false;
};

// Plans the merge of one adapter into `model`: weights are replaced, rows of
// embeddings are replaced, factors become changes in `plan`. Reads no payload.
// Every tensor of the adapter is used exactly once.
// Errors: Corrupt with the tensor where a name, rank or shape does not fit the
//         model, or a module that was saved whole is not in the adapter;
//         Unsupported for what is not merged; Conflict where two adapters
//         replace one weight.
// Adds a note where modules that the config speaks of have no factors.
void apply_adapter(const Adapter& adapter, const AdapterPlace& place,
                   Model& model, LoraPlan& plan,
                   std::vector<std::string>& notes);

}  // namespace zckpt
