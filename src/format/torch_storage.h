// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "zckpt/dtype.h"

namespace zckpt {

// What a storage class of torch says of its elements (format.md 7.4).
struct StorageClass {
  std::string_view name;
  uint32_t element_bytes = 0;
  std::optional<DType> dtype;  // empty: quantised or complex128, not read
};

std::span<const StorageClass> storage_classes();

// The class of torch that stores elements of `dtype`, or nothing for those
// that came after classes did: they lie in UntypedStorage.
const StorageClass* typed_storage(DType dtype);

}  // namespace zckpt
