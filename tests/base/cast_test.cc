// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/cast.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/cast_kernels.h"
#include "base/rounding_oracle.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

constexpr std::array kAllDTypes{
    DType::Bool,   DType::U8,     DType::I8,         DType::F8E5M2,
    DType::F8E4M3, DType::F8E8M0, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ,
    DType::I16,    DType::U16,    DType::F16,        DType::BF16,
    DType::I32,    DType::U32,    DType::F32,        DType::C64,
    DType::F64,    DType::I64,    DType::U64};
constexpr std::array kTargets{DType::F32, DType::BF16, DType::F16};

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <typename Out, typename In>
std::vector<Out> cast_all(DType from, const std::vector<In>& in, DType to,
                          CastCounts& counts) {
  std::vector<Out> out(in.size());
  cast(from, bytes_of(in), to, std::as_writable_bytes(std::span(out)), counts);
  return out;
}

std::vector<uint16_t> all_halves() {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<uint16_t>(i);
  }
  return halves;
}

// The number that 16 bits stand for, from the definition of the type.
double number_of(const RoundingOracle& oracle, uint16_t bits) {
  const auto magnitude = static_cast<uint16_t>(bits & 0x7fffU);
  double number = std::numeric_limits<double>::infinity();
  if (magnitude > oracle.infinity()) {
    number = std::numeric_limits<double>::quiet_NaN();
  } else if (magnitude < oracle.infinity()) {
    number = oracle.value(magnitude);
  }
  return std::copysign(number, (bits & 0x8000U) != 0 ? -1.0 : 1.0);
}

uint32_t float_bits(double exact) {
  if (std::isnan(exact)) return std::signbit(exact) ? 0xffc00000U : 0x7fc00000U;
  return std::bit_cast<uint32_t>(static_cast<float>(exact));
}

struct Half {
  DType dtype;
  RoundingOracle oracle;
};

std::array<Half, 2> half_types() {
  return {{{DType::BF16, RoundingOracle::bf16()},
           {DType::F16, RoundingOracle::fp16()}}};
}

TEST(CastOracle, KnowsTheTypes) {
  const RoundingOracle fp16 = RoundingOracle::fp16();
  EXPECT_EQ(fp16.value(1), 0x1p-24);
  EXPECT_EQ(fp16.value(0x3c00), 1.0);
  EXPECT_EQ(fp16.value(0x7bff), 65504.0);
  EXPECT_EQ(fp16.infinity(), 0x7c00);
  EXPECT_EQ(fp16.nan(), 0x7e00);
  EXPECT_EQ(fp16.round(65519.99), 0x7bff);
  EXPECT_EQ(fp16.round(65520.0), 0x7c00);
  const RoundingOracle bf16 = RoundingOracle::bf16();
  EXPECT_EQ(bf16.value(1), 0x1p-133);
  EXPECT_EQ(bf16.value(0x3f80), 1.0);
  EXPECT_EQ(bf16.nan(), 0x7fc0);
  // torch's answers.
  EXPECT_EQ(bf16.convert(std::bit_cast<float>(0x3f808000U)), 0x3f80);
  EXPECT_EQ(bf16.convert(std::bit_cast<float>(0x3f818000U)), 0x3f82);
}

TEST(CanCast, KnowsItsPairs) {
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      const bool float_source = from == DType::F64 || from == DType::F32 ||
                                from == DType::BF16 || from == DType::F16;
      const bool float_target =
          to == DType::F32 || to == DType::BF16 || to == DType::F16;
      EXPECT_EQ(can_cast(from, to),
                from == to || (float_source && float_target))
          << short_name(from) << " to " << short_name(to);
    }
  }
}

TEST(Cast, CopiesBetweenEqualTypes) {
  // Payloads of NaN, too: nothing is converted.
  std::vector<uint64_t> in(37);
  for (size_t i = 0; i < in.size(); ++i) in[i] = ~uint64_t{0} - i;
  for (const DType dtype : kAllDTypes) {
    std::vector<uint64_t> out(in.size());
    CastCounts counts;
    cast(dtype, bytes_of(in), dtype, std::as_writable_bytes(std::span(out)),
         counts);
    EXPECT_EQ(out, in) << short_name(dtype);
    EXPECT_EQ(counts.overflowed, 0U);
  }
}

TEST(Cast, OfNothingDoesNothing) {
  CastCounts counts;
  cast(DType::F32, {}, DType::BF16, {}, counts);
  cast(DType::I64, {}, DType::I64, {}, counts);
  EXPECT_EQ(counts.overflowed, 0U);
}

TEST(Cast, RefusesWhatDoesNotFit) {
  std::array<std::byte, 16> bytes{};
  const std::span<std::byte> all(bytes);
  CastCounts counts;
  EXPECT_THROW(cast(DType::F32, all, DType::F64, all, counts), Error);
  EXPECT_THROW(cast(DType::I32, all, DType::F32, all, counts), Error);
  EXPECT_THROW(cast(DType::F32, all, DType::F16, all, counts), Error);
  EXPECT_THROW(cast(DType::F32, all.first(7), DType::F16, all.first(2), counts),
               Error);
}

TEST(Cast, WidensEveryHalfExactly) {
  for (const Half& half : half_types()) {
    const std::vector<uint16_t> in = all_halves();
    CastCounts counts;
    const auto out = cast_all<uint32_t>(half.dtype, in, DType::F32, counts);
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], float_bits(number_of(half.oracle, in[i]))) << in[i];
    }
    EXPECT_EQ(counts.overflowed, 0U);
  }
}

TEST(Cast, ConvertsEveryHalfToTheOtherKindInOneRounding) {
  const std::array<Half, 2> halves = half_types();
  for (size_t kind = 0; kind < 2; ++kind) {
    const Half& from = halves[kind];
    const Half& to = halves[1 - kind];
    const std::vector<uint16_t> in = all_halves();
    CastCounts counts;
    const auto out = cast_all<uint16_t>(from.dtype, in, to.dtype, counts);
    uint64_t overflowed = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double number = number_of(from.oracle, in[i]);
      ASSERT_EQ(out[i], to.oracle.convert(number)) << in[i];
      if (std::isfinite(number) && (out[i] & 0x7fffU) == to.oracle.infinity()) {
        ++overflowed;
      }
    }
    EXPECT_EQ(counts.overflowed, overflowed);
    EXPECT_EQ(overflowed != 0, to.dtype == DType::F16);
  }
}

// Neighbours of every middle between two 16-bit values, the last of them the
// border to infinity: in float these are where a rounding goes wrong, and in
// double where two roundings differ from one.
std::vector<double> hard_doubles(const RoundingOracle& oracle) {
  std::vector<double> numbers;
  const double infinity = std::numeric_limits<double>::infinity();
  for (uint16_t bits = 0; bits < oracle.infinity(); ++bits) {
    const double middle = oracle.middle(bits);
    const auto middle_float = static_cast<float>(middle);
    for (const double number :
         {middle, std::nextafter(middle, infinity), std::nextafter(middle, 0),
          middle * (1 + 0x1p-30), middle * (1 - 0x1p-30),
          double{std::nextafter(middle_float, 0.0F)},
          double{std::nextafter(middle_float, INFINITY)}, oracle.value(bits)}) {
      numbers.push_back(number);
      numbers.push_back(-number);
    }
  }
  return numbers;
}

std::vector<double> random_doubles() {
  std::vector<double> numbers;
  std::mt19937_64 random(20240609);
  for (int i = 0; i < 300'000; ++i) {
    // Any bits; then exponents that a float can hold, then an fp16.
    const uint64_t bits = random();
    numbers.push_back(std::bit_cast<double>(bits));
    for (const uint64_t reach : {uint64_t{150}, uint64_t{26}}) {
      const int exponent =
          static_cast<int>(bits % (2 * reach)) - static_cast<int>(reach);
      numbers.push_back(std::ldexp(
          std::bit_cast<double>(0x3ff0000000000000U | random() >> 12),
          exponent));
    }
  }
  numbers.insert(
      numbers.end(),
      {0.0, -0.0, INFINITY, -INFINITY, std::numeric_limits<double>::max(),
       -std::numeric_limits<double>::max(), std::numeric_limits<double>::min(),
       std::numeric_limits<double>::denorm_min(),
       -std::numeric_limits<double>::denorm_min()});
  return numbers;
}

TEST(Cast, RoundsDoublesToHalvesOnce) {
  for (const Half& half : half_types()) {
    std::vector<double> in = hard_doubles(half.oracle);
    const std::vector<double> more = random_doubles();
    in.insert(in.end(), more.begin(), more.end());
    CastCounts counts;
    const auto out = cast_all<uint16_t>(DType::F64, in, half.dtype, counts);
    uint64_t overflowed = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], half.oracle.convert(in[i])) << in[i];
      if (std::isfinite(in[i]) &&
          (out[i] & 0x7fffU) == half.oracle.infinity()) {
        ++overflowed;
      }
    }
    EXPECT_EQ(counts.overflowed, overflowed);
    EXPECT_GT(overflowed, 0U);
  }
}

// Rounds in integers: `bits` of a double to those of a float.
uint32_t float_of_double(uint64_t bits) {
  const auto sign = static_cast<uint32_t>(bits >> 32 & 0x80000000U);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ffU);
  uint64_t digits = bits & 0xfffffffffffffU;
  if (exponent == 0x7ff)
    return sign | (digits != 0 ? 0x7fc00000U : 0x7f800000U);
  if (exponent != 0) digits |= uint64_t{1} << 52;
  // Places to cut: 29, more where the float is subnormal.
  const int missing = std::max(0, 1023 - 126 - std::max(exponent, 1));
  const int cut = std::min(29 + missing, 60);
  const uint64_t half = uint64_t{1} << (cut - 1);
  const uint64_t rest = digits & (2 * half - 1);
  uint64_t kept = digits >> cut;
  if (rest > half || (rest == half && kept % 2 == 1)) ++kept;
  // A carry runs into the exponent as it should; the hidden digit is in
  // `kept` and adds one to the exponent below it.
  const int float_exponent = missing > 0 ? 0 : exponent - 1023 + 126;
  if (float_exponent >= 254) return sign | 0x7f800000U;
  const uint64_t result = (static_cast<uint64_t>(float_exponent) << 23) + kept;
  return sign | static_cast<uint32_t>(std::min<uint64_t>(result, 0x7f800000U));
}

TEST(Cast, RoundsDoublesToFloats) {
  std::vector<double> in = random_doubles();
  std::mt19937_64 random(20240610);
  for (int i = 0; i < 300'000; ++i) {
    // The middle between two floats, and its neighbours.
    const auto bits = static_cast<uint32_t>(random() % 0x7f800000U);
    const double low = std::bit_cast<float>(bits);
    const double high =
        bits == 0x7f7fffffU ? 0x1p128 : double{std::bit_cast<float>(bits + 1)};
    const double middle = low + (high - low) / 2;
    for (const double number : {middle, std::nextafter(middle, 0),
                                std::nextafter(middle, INFINITY)}) {
      in.push_back(number);
      in.push_back(-number);
    }
  }
  in.push_back(0x1.ffffffp127);
  in.push_back(std::nextafter(0x1.ffffffp127, 0));
  CastCounts counts;
  const auto out = cast_all<uint32_t>(DType::F64, in, DType::F32, counts);
  uint64_t overflowed = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], float_of_double(std::bit_cast<uint64_t>(in[i]))) << in[i];
    if (std::isfinite(in[i]) && (out[i] & 0x7fffffffU) == 0x7f800000U) {
      ++overflowed;
    }
  }
  EXPECT_EQ(counts.overflowed, overflowed);
  EXPECT_GT(overflowed, 0U);
}

std::vector<std::byte> random_bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  std::mt19937 random(20240611);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Cast, DoesNotDependOnAlignmentOrCuts) {
  constexpr size_t kCount = 5000;
  for (const DType from : {DType::F64, DType::F32, DType::BF16, DType::F16}) {
    for (const DType to : kTargets) {
      const size_t in_size = size_of(from);
      const size_t out_size = size_of(to);
      const std::vector<std::byte> in = random_bytes(kCount * in_size + 1);
      std::vector<std::byte> whole(kCount * out_size);
      CastCounts counts;
      cast(from, std::span(in).subspan(1), to, whole, counts);
      CastCounts cut_counts;
      std::vector<std::byte> cut(kCount * out_size + 1);
      size_t done = 0;
      for (size_t step = 0; done < kCount; step = (step + 1) % 71) {
        const size_t length = std::min(step, kCount - done);
        cast(from, std::span(in).subspan(1 + done * in_size, length * in_size),
             to, std::span(cut).subspan(1 + done * out_size, length * out_size),
             cut_counts);
        done += length;
      }
      cut.erase(cut.begin());
      EXPECT_EQ(cut, whole) << short_name(from) << " to " << short_name(to);
      EXPECT_EQ(cut_counts.overflowed, counts.overflowed);
    }
  }
}

TEST(CastKernels, OfEveryCpuGiveTheSameBits) {
  constexpr size_t kCount = 100'003;
  const std::vector<std::byte> in = random_bytes(kCount * 8);
  const CastKernels& portable = *cast_kernels(CpuLevel::Portable);
  for (const CpuLevel level : {CpuLevel::Avx2, CpuLevel::Avx512}) {
    const CastKernels* kernels = cast_kernels(level);
    if (kernels == nullptr) continue;
    for (const CastKernel CastKernels::*kernel :
         {&CastKernels::f32_to_bf16, &CastKernels::f32_to_f16,
          &CastKernels::bf16_to_f32, &CastKernels::f16_to_f32,
          &CastKernels::f64_to_f32, &CastKernels::f64_to_f32_odd}) {
      std::vector<std::byte> expected(kCount * 4);
      std::vector<std::byte> found(kCount * 4);
      const uint64_t count =
          (portable.*kernel)(in.data(), expected.data(), kCount);
      EXPECT_EQ((kernels->*kernel)(in.data(), found.data(), kCount), count);
      EXPECT_EQ(found, expected);
    }
  }
}

}  // namespace
}  // namespace zckpt
