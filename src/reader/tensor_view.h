// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reader/torch_file.h"
#include "zckpt/dtype.h"
#include "zckpt/error.h"

namespace zckpt {

// Where a tensor lies in its file: strides in elements, offsets in bytes from
// the file's start. A tensor without elements lies nowhere.
struct TensorView {
  DType dtype = DType::F32;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> stride;
  uint64_t offset = 0;
  uint64_t storage_offset = 0;  // where its storage begins
  uint64_t numel = 0;
  bool contiguous = true;
  std::optional<Value> attributes;  // ds_id and the like; lives in the pickle

  bool same_place(const TensorView& other) const {
    return storage_offset == other.storage_offset && offset == other.offset &&
           shape == other.shape && stride == other.stride &&
           dtype == other.dtype;
  }
};

// The view that `value` describes, or nothing if it is no tensor. Errors:
// those of as_tensor; Corrupt (record-missing, container-damaged) where its
// storage is absent from `file` or too short.
std::optional<TensorView> view_of(const TorchFile& file, const Value& value);

// An Error(Corrupt) that knows which finding it will become.
Error fault_error(std::string code, std::string message,
                  std::optional<uint64_t> offset = std::nullopt);

// The tensor's attribute of this name, where it is a string.
std::string string_attribute(const TensorView& view, std::string_view name);

}  // namespace zckpt
