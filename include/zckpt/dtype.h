// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace zckpt {

// Element types, in the order in which the reference safetensors writer sorts
// them (safetensors' serialize(): its files list tensors by this order
// descending). F4 and F6, whose elements are no whole bytes, are not read.
enum class DType : uint8_t {
  Bool,
  U8,
  I8,
  F8E5M2,
  F8E4M3,
  F8E8M0,
  F8E4M3FNUZ,
  F8E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

// Bytes of one element.
uint32_t size_of(DType dtype);
// F64, F32, BF16, F16 and the F8 kinds.
bool is_floating(DType dtype);
// The name in a safetensors header: "F32", "BF16", "F8_E4M3", ...
std::string_view safetensors_name(DType dtype);
// The name people and DeepSpeed configs use: "fp32", "bf16", "int64", ...
std::string_view short_name(DType dtype);
std::optional<DType> dtype_from_short(std::string_view name);
// torch's name without "torch.": "float32", "bfloat16", "float8_e4m3fn", ...
std::string_view torch_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);
// From a torch dtype name without "torch.": "float32", "bfloat16", ...
std::optional<DType> dtype_from_torch(std::string_view name);

}  // namespace zckpt
