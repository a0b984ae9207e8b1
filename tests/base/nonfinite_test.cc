// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/nonfinite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace zckpt {
namespace {

template <typename T>
NonFinite count(DType dtype, const std::vector<T>& values) {
  return count_nonfinite(dtype, std::as_bytes(std::span(values)));
}

// What <cmath> says, element by element.
template <typename T>
NonFinite expected(const std::vector<T>& values) {
  NonFinite found;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    ++(std::isnan(values[i]) ? found.nan : found.inf);
    if (!found.first) found.first = i;
  }
  return found;
}

void expect_equal(const NonFinite& a, const NonFinite& b) {
  EXPECT_EQ(a.nan, b.nan);
  EXPECT_EQ(a.inf, b.inf);
  EXPECT_EQ(a.first, b.first);
}

template <typename T>
void check_floats(DType dtype) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values(97, T{1});
  values[3] = Limits::max();
  values[4] = Limits::lowest();
  values[5] = Limits::denorm_min();
  values[6] = -T{0};
  expect_equal(count(dtype, values), expected(values));
  EXPECT_FALSE(count(dtype, values).first);
  for (const size_t at : {size_t{0}, size_t{31}, size_t{96}}) {
    for (const T odd :
         {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
          -Limits::quiet_NaN(), Limits::signaling_NaN()}) {
      std::vector<T> changed = values;
      changed[at] = odd;
      if (at != 96) changed[96] = Limits::infinity();
      expect_equal(count(dtype, changed), expected(changed));
    }
  }
  expect_equal(count(dtype, std::vector<T>{}), NonFinite{});
}

TEST(CountNonFinite, AgreesWithTheStandardLibrary) {
  check_floats<float>(DType::F32);
  check_floats<double>(DType::F64);
}

// Every value there is, against IEEE 754's definition.
void check_halves(DType dtype, int mantissa_bits) {
  const uint32_t exponent = 0x7fffU >> mantissa_bits << mantissa_bits;
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const std::vector<uint16_t> one{static_cast<uint16_t>(bits)};
    const bool odd = (bits & exponent) == exponent;
    const bool inf = odd && (bits & 0x7fffU) == exponent;
    const NonFinite found = count(dtype, one);
    ASSERT_EQ(found.inf, inf ? 1 : 0) << bits;
    ASSERT_EQ(found.nan, odd && !inf ? 1 : 0) << bits;
  }
}

TEST(CountNonFinite, KnowsEveryHalf) {
  check_halves(DType::BF16, 7);
  check_halves(DType::F16, 10);
}

TEST(CountNonFinite, SeesNothingInIntegers) {
  EXPECT_EQ(count(DType::I32, std::vector<int32_t>(8, 0x7f800000)).inf, 0);
  EXPECT_EQ(count(DType::I64, std::vector<int64_t>(8, -1)).nan, 0);
}

}  // namespace
}  // namespace zckpt
