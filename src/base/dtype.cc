// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/dtype.h"

#include <array>

namespace zckpt {
namespace {

struct Row {
  DType dtype;
  uint32_t size;
  bool floating;
  std::string_view safetensors;
  std::string_view torch;
  std::string_view brief;
};

constexpr std::array<Row, 19> kRows{{
    {DType::Bool, 1, false, "BOOL", "bool", "bool"},
    {DType::U8, 1, false, "U8", "uint8", "uint8"},
    {DType::I8, 1, false, "I8", "int8", "int8"},
    {DType::F8E5M2, 1, true, "F8_E5M2", "float8_e5m2", "f8_e5m2"},
    {DType::F8E4M3, 1, true, "F8_E4M3", "float8_e4m3fn", "f8_e4m3"},
    {DType::F8E8M0, 1, true, "F8_E8M0", "float8_e8m0fnu", "f8_e8m0"},
    {DType::F8E4M3FNUZ, 1, true, "F8_E4M3FNUZ", "float8_e4m3fnuz",
     "f8_e4m3fnuz"},
    {DType::F8E5M2FNUZ, 1, true, "F8_E5M2FNUZ", "float8_e5m2fnuz",
     "f8_e5m2fnuz"},
    {DType::I16, 2, false, "I16", "int16", "int16"},
    {DType::U16, 2, false, "U16", "uint16", "uint16"},
    {DType::F16, 2, true, "F16", "float16", "fp16"},
    {DType::BF16, 2, true, "BF16", "bfloat16", "bf16"},
    {DType::I32, 4, false, "I32", "int32", "int32"},
    {DType::U32, 4, false, "U32", "uint32", "uint32"},
    {DType::F32, 4, true, "F32", "float32", "fp32"},
    {DType::C64, 8, false, "C64", "complex64", "complex64"},
    {DType::F64, 8, true, "F64", "float64", "fp64"},
    {DType::I64, 8, false, "I64", "int64", "int64"},
    {DType::U64, 8, false, "U64", "uint64", "uint64"},
}};

const Row& row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

uint32_t size_of(DType dtype) { return row(dtype).size; }
bool is_floating(DType dtype) { return row(dtype).floating; }
std::string_view safetensors_name(DType dtype) {
  return row(dtype).safetensors;
}
std::string_view short_name(DType dtype) { return row(dtype).brief; }

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const Row& r : kRows) {
    if (r.safetensors == name) return r.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_short(std::string_view name) {
  for (const Row& r : kRows) {
    if (r.brief == name) return r.dtype;
  }
  return std::nullopt;
}

std::string_view torch_name(DType dtype) { return row(dtype).torch; }

std::optional<DType> dtype_from_torch(std::string_view name) {
  for (const Row& r : kRows) {
    if (r.torch == name) return r.dtype;
  }
  if (name == "half") return DType::F16;
  if (name == "float") return DType::F32;
  if (name == "double") return DType::F64;
  return std::nullopt;
}

}  // namespace zckpt
