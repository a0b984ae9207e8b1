// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "format/torch_storage.h"

#include <array>

namespace zckpt {
namespace {

// format.md 7.4. Untyped storages count bytes; torch.load types them as uint8
// where nothing else says what they hold.
constexpr std::array<StorageClass, 22> kStorageClasses{{
    {"FloatStorage", 4, DType::F32},
    {"HalfStorage", 2, DType::F16},
    {"BFloat16Storage", 2, DType::BF16},
    {"DoubleStorage", 8, DType::F64},
    {"LongStorage", 8, DType::I64},
    {"IntStorage", 4, DType::I32},
    {"ShortStorage", 2, DType::I16},
    {"CharStorage", 1, DType::I8},
    {"ByteStorage", 1, DType::U8},
    {"BoolStorage", 1, DType::Bool},
    {"ComplexFloatStorage", 8, DType::C64},
    {"ComplexDoubleStorage", 16, std::nullopt},
    {"QInt8Storage", 1, std::nullopt},
    {"QUInt8Storage", 1, std::nullopt},
    {"QInt32Storage", 4, std::nullopt},
    {"QUInt4x2Storage", 1, std::nullopt},
    {"QUInt2x4Storage", 1, std::nullopt},
    {"UntypedStorage", 1, DType::U8},
    {"TypedStorage", 1, DType::U8},
    {"_UntypedStorage", 1, DType::U8},  // torch 1.11, 1.12
    {"_TypedStorage", 1, DType::U8},
    {"_UntypedStorageBase", 1, DType::U8},
}};

}  // namespace

std::span<const StorageClass> storage_classes() { return kStorageClasses; }

const StorageClass* typed_storage(DType dtype) {
  for (const StorageClass& c : kStorageClasses) {
    if (c.name == "UntypedStorage") break;  // bytes, from here on
    if (c.dtype == dtype) return &c;
  }
  return nullptr;
}

}  // namespace zckpt
