// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/merge.h"

namespace zckpt {

// A tensor that will be written: its name in the output and where its elements
// come from.
struct NamedTensor {
  std::string name;
  Role role = Role::Master;
  DType dtype = DType::F32;  // as it is stored
  std::vector<uint64_t> shape;
  std::vector<PlannedRun> runs;
  std::optional<uint32_t> change;
};

// The whole of tensor number `tensor` under a name.
NamedTensor whole_tensor(const Checkpoint& checkpoint, uint32_t tensor,
                         std::string name);

// What files of a model's weights are called: "model" or "pytorch_model".
std::string_view model_stem(WeightFormat format);

// Lays `selected` out in files, "<stem>.safetensors" or ".bin", or shards and
// an index, and counts them. REQUIRES: plan.dtype is set, and plan.aliases as
// far as the files are to name them; names are unique. Errors: Unsupported
// where a dtype cannot be converted.
void plan_files(const std::vector<NamedTensor>& selected,
                const MergeOptions& options, std::string_view stem, Plan& plan);

}  // namespace zckpt
