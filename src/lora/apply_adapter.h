// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lora/adapter.h"
#include "lora/adapter_fit.h"
#include "lora/model.h"
#include "zckpt/lora.h"

namespace zckpt {

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
