// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace zckpt {

// One loop over elements that lie close together, at any alignment. Returns
// how many finite inputs became infinite.
using CastKernel = uint64_t (*)(const std::byte* in, std::byte* out,
                                size_t count);

// The loops that cast() is made of. Every set gives the same bits.
struct CastKernels {
  CastKernel f32_to_bf16;
  CastKernel f32_to_f16;
  CastKernel bf16_to_f32;
  CastKernel f16_to_f32;
  CastKernel f64_to_f32;
  // Round to odd: a second rounding, to 16 bits, then gives what a single one
  // would have given.
  CastKernel f64_to_f32_odd;
};

enum class CpuLevel { Portable, Avx2, Avx512 };

// Null where this CPU, or this build, lacks the instructions.
const CastKernels* cast_kernels(CpuLevel level);

}  // namespace zckpt
