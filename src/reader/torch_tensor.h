// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "format/pickle.h"
#include "format/torch_storage.h"
#include "zckpt/dtype.h"

namespace zckpt {

// A persistent id of torch.save: a storage, described by the pickle.
struct StorageReference {
  std::string_view key;  // points into the pickle
  const StorageClass* storage_class = nullptr;
  uint64_t numel = 0;    // in elements of the class
  bool is_view = false;  // of a part of the storage (torch < 0.4)
};

// The storage that `value` refers to, or nothing if it is no persistent id or
// one of another kind. Errors: Corrupt where the id is malformed, Unsupported
// for an unknown storage class.
std::optional<StorageReference> as_storage(const Value& value);

// TorchTensor is what a pickled tensor says of itself: a strided view of a
// storage. Sizes, strides and the offset are in elements of `dtype`.
struct TorchTensor {
  std::string_view key;  // of the storage; points into the pickle
  DType dtype = DType::F32;
  uint64_t offset = 0;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> stride;
  // Bytes of the storage as the pickle declares them. What the file holds is in
  // StorageRecord.
  uint64_t storage_bytes = 0;
  // Attributes beside the data (format.md 3.5: ds_id), from
  // _rebuild_from_type_v2 or _rebuild_parameter_with_state.
  std::optional<Value> attributes;

  uint64_t numel() const;
  // True where elements follow each other without gaps in C order.
  bool is_contiguous() const;
  // Elements from the storage's start up to the last one touched; 0 if empty.
  uint64_t extent() const;
};

// The tensor that `value` rebuilds, or nothing if it is no tensor at all.
// Reads _rebuild_tensor, _rebuild_tensor_v2, _rebuild_tensor_v3,
// _rebuild_parameter, _rebuild_parameter_with_state and
// _rebuild_from_type_v2 around them (format.md 7.3), every storage class of
// format.md 7.4. Errors: Unsupported for kinds of tensors without plain bytes
// (quantised, sparse, meta, subclass, complex-conjugate or negative views),
// Corrupt for malformed arguments, for negative sizes or strides, or where the
// view reaches past its storage. They carry no place: the caller knows it.
std::optional<TorchTensor> as_tensor(const Value& value);

}  // namespace zckpt
