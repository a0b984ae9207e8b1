// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/cast.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/cast_kernels.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

bool is_target(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

const CastKernels& best_kernels() {
  static const CastKernels* const best = [] {
    for (const CpuLevel level : {CpuLevel::Avx512, CpuLevel::Avx2}) {
      if (const CastKernels* kernels = cast_kernels(level)) return kernels;
    }
    return cast_kernels(CpuLevel::Portable);
  }();
  return *best;
}

// How to get from one type to another: by one loop, or by two through float
// where no value is rounded twice.
struct Route {
  CastKernel first = nullptr;
  CastKernel second = nullptr;
};

Route route(DType from, DType to) {
  const CastKernels& kernels = best_kernels();
  const CastKernel narrow =
      to == DType::BF16 ? kernels.f32_to_bf16 : kernels.f32_to_f16;
  if (from == DType::F32) return {narrow};
  if (from == DType::F64) {
    if (to == DType::F32) return {kernels.f64_to_f32};
    return {kernels.f64_to_f32_odd, narrow};
  }
  const CastKernel widen =
      from == DType::BF16 ? kernels.bf16_to_f32 : kernels.f16_to_f32;
  if (to == DType::F32) return {widen};
  return {widen, narrow};
}

// Elements of the float buffer between two loops: it stays in the L1 cache.
constexpr size_t kBlock = 2048;

uint64_t through_float(const Route& route, const std::byte* in, size_t in_size,
                       std::byte* out, size_t out_size, size_t count) {
  std::array<std::byte, kBlock * sizeof(float)> floats;
  uint64_t overflowed = 0;
  while (count != 0) {
    const size_t length = std::min(count, kBlock);
    overflowed += route.first(in, floats.data(), length);
    overflowed += route.second(floats.data(), out, length);
    in += length * in_size;
    out += length * out_size;
    count -= length;
  }
  return overflowed;
}

}  // namespace

bool can_cast(DType from, DType to) {
  if (from == to) return true;
  return (from == DType::F64 || is_target(from)) && is_target(to);
}

void cast(DType from, std::span<const std::byte> in, DType to,
          std::span<std::byte> out, CastCounts& counts) {
  const size_t in_size = size_of(from);
  const size_t out_size = size_of(to);
  const size_t count = in.size() / in_size;
  if (!can_cast(from, to) || in.size() != count * in_size ||
      out.size() != count * out_size) {
    throw Error(ErrorCode::Internal, "a cast that does not fit");
  }
  if (count == 0) return;
  if (from == to) {
    std::memcpy(out.data(), in.data(), in.size());
    return;
  }
  const Route way = route(from, to);
  counts.overflowed +=
      way.second == nullptr
          ? way.first(in.data(), out.data(), count)
          : through_float(way, in.data(), in_size, out.data(), out_size, count);
}

}  // namespace zckpt
