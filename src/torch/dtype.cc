// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>
#include <utility>

#include "zckpt/error.h"
#include "zckpt/torch.h"

namespace zckpt {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 19> kTypes{{
    {DType::Bool, at::ScalarType::Bool},
    {DType::U8, at::ScalarType::Byte},
    {DType::I8, at::ScalarType::Char},
    {DType::F8E5M2, at::ScalarType::Float8_e5m2},
    {DType::F8E4M3, at::ScalarType::Float8_e4m3fn},
    {DType::F8E8M0, at::ScalarType::Float8_e8m0fnu},
    {DType::F8E4M3FNUZ, at::ScalarType::Float8_e4m3fnuz},
    {DType::F8E5M2FNUZ, at::ScalarType::Float8_e5m2fnuz},
    {DType::I16, at::ScalarType::Short},
    {DType::U16, at::ScalarType::UInt16},
    {DType::F16, at::ScalarType::Half},
    {DType::BF16, at::ScalarType::BFloat16},
    {DType::I32, at::ScalarType::Int},
    {DType::U32, at::ScalarType::UInt32},
    {DType::F32, at::ScalarType::Float},
    {DType::C64, at::ScalarType::ComplexFloat},
    {DType::F64, at::ScalarType::Double},
    {DType::I64, at::ScalarType::Long},
    {DType::U64, at::ScalarType::UInt64},
}};

}  // namespace

at::ScalarType to_scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw Error(ErrorCode::Unsupported,
              "libtorch has no type for " + std::string(short_name(dtype)));
}

DType to_dtype(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw Error(ErrorCode::Unsupported,
              std::string("no checkpoint holds tensors of libtorch's type ") +
                  c10::toString(type));
}

}  // namespace zckpt
