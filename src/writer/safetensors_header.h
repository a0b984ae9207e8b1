// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zckpt/dtype.h"

namespace zckpt {

// One tensor of a safetensors file that is about to be written.
struct SafetensorsSlot {
  std::string name;
  DType dtype = DType::F32;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;      // of its data in the file; set by layout
  uint64_t size_bytes = 0;  // set by layout
};

// The file layout that the reference writer would choose for these tensors
// (docs/format.md): sorts `slots` by dtype descending, then by name, sets
// offsets and sizes, and returns the bytes that come before the data: length
// field, compact JSON with `metadata` first, padded with spaces to 8 bytes.
// For one metadata key the result is byte-equal to the reference writer's.
// `data_bytes` receives the size of the data that follows.
std::string layout_safetensors(
    std::vector<SafetensorsSlot>& slots,
    const std::vector<std::pair<std::string, std::string>>& metadata,
    uint64_t* data_bytes);

}  // namespace zckpt
