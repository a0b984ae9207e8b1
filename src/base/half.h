// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace zckpt {

// Scalar conversions between float and the 16-bit types, round to nearest
// even, overflow to infinity, subnormals kept. NaN becomes the quiet NaN of
// the target type with the sign of the input and no payload: one rule in every
// code path (torch's own depends on the CPU).

constexpr uint16_t bf16_from_float_bits(uint32_t bits) {
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<uint16_t>((bits >> 16 & 0x8000U) | 0x7fc0U);
  }
  return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

constexpr uint32_t float_bits_from_bf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  return (bits & 0x7fffffffU) > 0x7f800000U ? (bits & 0x80000000U) | 0x7fc00000U
                                            : bits;
}

constexpr uint16_t fp16_from_float_bits(uint32_t bits) {
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  // 65520 is half-way between the largest fp16 and the next step.
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);
  uint32_t result = 0;
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 moves the last fp16 bit to float's last bit, so
    // the adder rounds to nearest even.
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
             0x3f000000U;
  } else {
    const uint32_t rebased = magnitude - 0x38000000U;
    result = (rebased + 0xfffU + (rebased >> 13 & 1U)) >> 13;
  }
  return static_cast<uint16_t>(sign | result);
}

constexpr uint32_t float_bits_from_fp16(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000U) << 16;
  const uint32_t magnitude = value & 0x7fffU;
  if (magnitude > 0x7c00U) return sign | 0x7fc00000U;
  if (magnitude == 0x7c00U) return sign | 0x7f800000U;
  if (magnitude >= 0x400U) return sign | ((magnitude << 13) + 0x38000000U);
  // Subnormal or zero: an exact product.
  const float scaled = static_cast<float>(magnitude) * 0x1p-24F;
  return sign | std::bit_cast<uint32_t>(scaled);
}

}  // namespace zckpt
