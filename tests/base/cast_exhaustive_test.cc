// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "base/cast_kernels.h"
#include "base/rounding_oracle.h"

namespace zckpt {
namespace {

constexpr uint64_t kChunk = uint64_t{1} << 18;
constexpr uint32_t kFloatInfinity = 0x7f800000U;

// Fills `out` with what the floats whose bits are `start`, `start` + 1, ...
// must become; returns how many of them overflow. REQUIRES: one sign.
uint64_t expect(const RoundingOracle& oracle,
                const std::vector<uint32_t>& first_floats, uint32_t start,
                std::span<uint16_t> out) {
  const uint32_t sign = start & 0x80000000U;
  const uint32_t begin = start ^ sign;
  const auto half_sign = static_cast<uint16_t>(sign >> 16);
  const auto at = [&](uint64_t bits) {
    const uint64_t index = bits < begin ? 0 : bits - begin;
    return out.begin() +
           static_cast<std::ptrdiff_t>(std::min<uint64_t>(index, out.size()));
  };
  for (size_t half = 0; half < first_floats.size(); ++half) {
    const uint64_t next = half + 1 < first_floats.size()
                              ? first_floats[half + 1]
                              : uint64_t{kFloatInfinity} + 1;
    std::fill(at(first_floats[half]), at(next),
              static_cast<uint16_t>(half_sign | half));
  }
  std::fill(at(uint64_t{kFloatInfinity} + 1), out.end(),
            static_cast<uint16_t>(half_sign | oracle.nan()));
  return static_cast<uint64_t>(at(kFloatInfinity) - at(first_floats.back()));
}

// The inputs of one thread of two, every second chunk. Returns a complaint.
std::string check_half_of_all(const RoundingOracle& oracle, CastKernel kernel,
                              uint64_t offset) {
  const std::vector<uint32_t> first_floats = oracle.first_floats();
  std::vector<uint32_t> in(kChunk);
  std::vector<uint16_t> expected(kChunk);
  std::vector<uint16_t> found(kChunk);
  for (uint64_t start = offset; start < uint64_t{1} << 32;
       start += 2 * kChunk) {
    for (uint64_t i = 0; i < kChunk; ++i) {
      in[i] = static_cast<uint32_t>(start + i);
    }
    const uint64_t overflowed =
        expect(oracle, first_floats, static_cast<uint32_t>(start), expected);
    const uint64_t counted =
        kernel(std::as_bytes(std::span(in)).data(),
               std::as_writable_bytes(std::span(found)).data(), kChunk);
    if (std::memcmp(found.data(), expected.data(), kChunk * 2) != 0) {
      const auto [a, b] = std::ranges::mismatch(found, expected);
      return "float " +
             std::to_string(start + static_cast<uint64_t>(a - found.begin())) +
             ": expected " + std::to_string(*b) + ", found " +
             std::to_string(*a);
    }
    if (counted != overflowed) {
      return "from float " + std::to_string(start) + ": expected " +
             std::to_string(overflowed) + " overflows, found " +
             std::to_string(counted);
    }
  }
  return "";
}

void check_all_floats(const RoundingOracle& oracle,
                      CastKernel CastKernels::*kernel) {
  for (const CpuLevel level :
       {CpuLevel::Portable, CpuLevel::Avx2, CpuLevel::Avx512}) {
    const CastKernels* kernels = cast_kernels(level);
    if (kernels == nullptr) continue;
    std::string complaint;
    std::string other_complaint;
    {
      const std::jthread thread(
          [&] { complaint = check_half_of_all(oracle, kernels->*kernel, 0); });
      other_complaint = check_half_of_all(oracle, kernels->*kernel, kChunk);
    }
    EXPECT_EQ(complaint + other_complaint, "")
        << "CPU level " << static_cast<int>(level);
  }
}

TEST(CastExhaustive, EveryFloatToBf16) {
  check_all_floats(RoundingOracle::bf16(), &CastKernels::f32_to_bf16);
}

TEST(CastExhaustive, EveryFloatToFp16) {
  check_all_floats(RoundingOracle::fp16(), &CastKernels::f32_to_f16);
}

}  // namespace
}  // namespace zckpt
