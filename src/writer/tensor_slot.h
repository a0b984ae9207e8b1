// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zckpt/dtype.h"

namespace zckpt {

// One tensor of a file that is about to be written.
struct TensorSlot {
  std::string name;
  DType dtype = DType::F32;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;      // of its data in the file; set by layout
  uint64_t size_bytes = 0;  // set by layout
};

// The bytes of its elements. Errors: Limit where they cannot be counted.
uint64_t bytes_of(const TensorSlot& slot);

// Errors: Internal for two tensors of one name, Unsupported for a name that is
// not UTF-8; `format` is what cannot hold it, for the message.
void check_names(const std::vector<TensorSlot>& slots, std::string_view format);

}  // namespace zckpt
