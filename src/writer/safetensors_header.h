// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "writer/tensor_slot.h"

namespace zckpt {

// The file layout that the reference writer would choose for these tensors
// (docs/format.md): sorts `slots` by dtype descending, then by name, sets
// offsets and sizes, and returns the bytes that come before the data: length
// field, compact JSON with `metadata` first, padded with spaces to 8 bytes.
// For one metadata key the result is byte-equal to the reference writer's.
// `data_bytes` receives the size of the data that follows.
std::string layout_safetensors(
    std::vector<TensorSlot>& slots,
    const std::vector<std::pair<std::string, std::string>>& metadata,
    uint64_t* data_bytes);

}  // namespace zckpt
