// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace zckpt {

// What rounding to a 16-bit type must give, from nothing but the definition:
// the values of the type in order, and the middles between neighbours. No bit
// tricks, and no hardware conversion.
class RoundingOracle {
 public:
  static RoundingOracle bf16() { return {8, 127}; }
  static RoundingOracle fp16() { return {11, 15}; }

  // The bits of infinity, and of the quiet NaN.
  uint16_t infinity() const { return infinity_; }
  uint16_t nan() const { return static_cast<uint16_t>(infinity_ | quiet_); }
  // The value of non-negative finite bits; for infinity() the power of two
  // that would follow if there were more exponents.
  double value(uint16_t bits) const {
    const int exponent = bits >> (digits_ - 1);
    const int fraction = bits & ((1 << (digits_ - 1)) - 1);
    const int lowest = 2 - bias_ - digits_;  // exponent of the last place
    if (exponent == 0) return std::ldexp(fraction, lowest);
    return std::ldexp(fraction + (1 << (digits_ - 1)), lowest + exponent - 1);
  }
  // The middle between `bits` and its successor, exact in float and double.
  double middle(uint16_t bits) const {
    const auto next = static_cast<uint16_t>(bits + 1);
    return (value(bits) + value(next)) / 2;
  }
  // The bits nearest to a non-negative number, of two the even one.
  uint16_t round(double number) const {
    uint16_t low = 0;
    uint16_t high = infinity_;
    while (low < high) {
      const auto half = static_cast<uint16_t>(low + (high - low) / 2);
      if (number > middle(half) || (number == middle(half) && half % 2 == 1)) {
        low = static_cast<uint16_t>(half + 1);
      } else {
        high = half;
      }
    }
    return low;
  }
  // With sign, infinity and NaN.
  uint16_t convert(double number) const {
    const unsigned sign = std::signbit(number) ? 0x8000U : 0;
    if (std::isnan(number)) return static_cast<uint16_t>(sign | nan());
    return static_cast<uint16_t>(sign | round(std::fabs(number)));
  }
  // For each of 0 ... infinity() the first float, as bits, that rounds to it.
  std::vector<uint32_t> first_floats() const {
    std::vector<uint32_t> first{0};
    for (uint16_t bits = 0; bits < infinity_; ++bits) {
      const auto middle_bits =
          std::bit_cast<uint32_t>(static_cast<float>(middle(bits)));
      first.push_back(middle_bits + (bits % 2 == 0 ? 1 : 0));
    }
    return first;
  }

 private:
  RoundingOracle(int digits, int bias)
      : digits_(digits),
        bias_(bias),
        infinity_(static_cast<uint16_t>((2 * bias + 1) << (digits - 1))),
        quiet_(static_cast<uint16_t>(1 << (digits - 2))) {}

  int digits_;  // of precision, the hidden one included
  int bias_;
  uint16_t infinity_;
  uint16_t quiet_;
};

}  // namespace zckpt
