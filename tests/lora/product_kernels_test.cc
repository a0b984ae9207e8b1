// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/product_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace zckpt::test {
namespace {

// Odd sizes, so that every width of a tile has its turn.
constexpr size_t kRows = 7;
constexpr size_t kCols = 141;
constexpr size_t kRank = 5;
constexpr size_t kStride = kCols + 3;

class Products : public testing::TestWithParam<CpuLevel> {
 protected:
  Products() : left_(kRows * kRank), right_(kRank * kStride) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> values(-2, 2);
    for (float& value : left_) value = values(random);
    for (float& value : right_) value = values(random);
  }

  template <typename T>
  std::vector<T> product(ProductKernel<T> kernel) const {
    std::vector<T> out(kRows * kStride, T{99});
    kernel({left_.data(), right_.data(), out.data(), kRows, kCols, kRank, kRank,
            kStride, kStride});
    return out;
  }

  std::vector<float> left_;
  std::vector<float> right_;
};

TEST_P(Products, AreSumsInOrderAndTouchNothingElse) {
  const ProductKernels* kernels = product_kernels(GetParam());
  if (kernels == nullptr) GTEST_SKIP() << "not on this CPU";
  const std::vector<float> narrow = product(kernels->f32.multiply);
  const std::vector<double> wide = product(kernels->f64.multiply);
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t j = 0; j < kStride; ++j) {
      float sum = 0;
      double wide_sum = 0;
      for (size_t k = 0; k < kRank && j < kCols; ++k) {
        const float a = left_[i * kRank + k];
        const float b = right_[k * kStride + j];
        sum = std::fma(a, b, sum);
        wide_sum += double{a} * double{b};
      }
      const size_t at = i * kStride + j;
      EXPECT_EQ(narrow[at], j < kCols ? sum : 99.0F) << i << ", " << j;
      EXPECT_EQ(wide[at], j < kCols ? wide_sum : 99.0) << i << ", " << j;
    }
  }
}

TEST_P(Products, AreAddedInTwoRoundings) {
  const ProductKernels* kernels = product_kernels(GetParam());
  if (kernels == nullptr) GTEST_SKIP() << "not on this CPU";
  std::vector<float> values(left_.begin(), left_.end());
  kernels->f32.add(values.data(), right_.data(), 1.7F, values.size());
  std::vector<double> wide(right_.size());
  kernels->widen(right_.data(), wide.data(), wide.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const float scaled = right_[i] * 1.7F;
    EXPECT_EQ(values[i], left_[i] + scaled);
    EXPECT_EQ(wide[i], double{right_[i]});
  }
}

TEST_P(Products, AreMeasured) {
  const ProductKernels* kernels = product_kernels(GetParam());
  if (kernels == nullptr) GTEST_SKIP() << "not on this CPU";
  std::vector<double> before(right_.size(), 0.0);
  std::vector<double> after(right_.begin(), right_.end());
  double max = 0;
  double total = 0;
  for (const double value : after) {
    max = std::max(max, std::abs(value));
    total += std::abs(value);
  }
  DeltaSums sums =
      kernels->f64.measure(before.data(), after.data(), after.size());
  EXPECT_EQ(sums.max, max);
  EXPECT_NEAR(sums.total, total, 1e-9);
  EXPECT_EQ(sums.nonfinite, 0U);
  after[5] = std::numeric_limits<double>::quiet_NaN();
  after[after.size() - 1] = std::numeric_limits<double>::infinity();
  sums = kernels->f64.measure(before.data(), after.data(), after.size());
  EXPECT_EQ(sums.nonfinite, 2U);
  EXPECT_LE(sums.max, max);
}

INSTANTIATE_TEST_SUITE_P(Levels, Products,
                         testing::Values(CpuLevel::Portable, CpuLevel::Avx2,
                                         CpuLevel::Avx512));

}  // namespace
}  // namespace zckpt::test
