// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

#include "zckpt/error.h"

namespace zckpt {

// Arithmetic on quantities that come out of files. Each throws Error(Corrupt)
// where the result does not fit: sizes that wrap are how readers are broken.
// `what` names the quantity in the message.

inline uint64_t checked_add(uint64_t a, uint64_t b, const char* what) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error(ErrorCode::Corrupt, std::string(what) + " exceeds 64 bits");
  }
  return sum;
}

inline uint64_t checked_mul(uint64_t a, uint64_t b, const char* what) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(ErrorCode::Corrupt, std::string(what) + " exceeds 64 bits");
  }
  return product;
}

template <std::integral To, std::integral From>
To checked_cast(From value, const char* what) {
  if (!std::in_range<To>(value)) {
    throw Error(ErrorCode::Corrupt, std::string(what) + " is out of range: " +
                                        std::to_string(value));
  }
  return static_cast<To>(value);
}

// ceil(a / b) for b > 0, without overflow.
constexpr uint64_t ceil_div(uint64_t a, uint64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// `value` rounded up to a multiple of `alignment` > 0. REQUIRES: no overflow.
constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return ceil_div(value, alignment) * alignment;
}

}  // namespace zckpt
