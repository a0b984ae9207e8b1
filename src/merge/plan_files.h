// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/merge.h"

namespace zckpt {

// A tensor that will be written: its name in the output and its source.
struct NamedTensor {
  std::string name;
  uint32_t tensor = 0;  // index into Checkpoint::tensors()
};

// Lays `selected` out in files, "<stem>.safetensors" or shards and an index,
// and counts them. REQUIRES: plan.dtype and plan.aliases are set; names are
// unique. Errors: Unsupported where a dtype cannot be converted.
void plan_files(const Checkpoint& checkpoint,
                const std::vector<NamedTensor>& selected,
                const MergeOptions& options, std::string_view stem, Plan& plan);

}  // namespace zckpt
