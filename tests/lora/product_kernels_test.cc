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
constexpr float kScale = 1.7F;

class Products : public testing::TestWithParam<CpuLevel> {
 protected:
  Products()
      : left_(kRows * kRank), right_(kRank * kStride), base_(kRows * kStride) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> values(-2, 2);
    for (float& value : left_) value = values(random);
    for (float& value : right_) value = values(random);
    for (float& value : base_) value = values(random);
  }

  // The product added to a base, into another place or into the base itself.
  template <typename T>
  std::vector<T> product(ProductKernel<T> kernel, bool in_place) const {
    const std::vector<T> left(left_.begin(), left_.end());
    const std::vector<T> base(base_.begin(), base_.end());
    std::vector<T> out = in_place ? base : std::vector<T>(base.size(), T{99});
    kernel({left.data(), right_.data(), in_place ? out.data() : base.data(),
            out.data(), static_cast<T>(kScale), kRows, kCols, kRank, kRank,
            kStride, kStride});
    return out;
  }

  std::vector<float> left_;
  std::vector<float> right_;
  std::vector<float> base_;
};

TEST_P(Products, AreSumsInOrderAndTouchNothingElse) {
  const ProductKernels* kernels = product_kernels(GetParam());
  if (kernels == nullptr) GTEST_SKIP() << "not on this CPU";
  for (const bool in_place : {false, true}) {
    const std::vector<float> narrow =
        product(kernels->f32.add_product, in_place);
    const std::vector<double> wide =
        product(kernels->f64.add_product, in_place);
    for (size_t i = 0; i < kRows; ++i) {
      for (size_t j = 0; j < kStride; ++j) {
        const size_t at = i * kStride + j;
        if (j >= kCols) {
          EXPECT_EQ(narrow[at], in_place ? base_[at] : 99.0F);
          EXPECT_EQ(wide[at], in_place ? double{base_[at]} : 99.0);
          continue;
        }
        float sum = 0;
        double wide_sum = 0;
        for (size_t k = 0; k < kRank; ++k) {
          const float a = left_[i * kRank + k];
          const float b = right_[k * kStride + j];
          sum = std::fma(a, b, sum);
          wide_sum += double{a} * double{b};
        }
        // Rounded before it is added.
        const float scaled = sum * kScale;
        const double wide_scaled = wide_sum * double{kScale};
        EXPECT_EQ(narrow[at], base_[at] + scaled) << i << ", " << j;
        EXPECT_EQ(wide[at], double{base_[at]} + wide_scaled) << i << ", " << j;
      }
    }
  }
}

TEST_P(Products, AddedToANegativeZeroAreThemselves) {
  const ProductKernels* kernels = product_kernels(GetParam());
  if (kernels == nullptr) GTEST_SKIP() << "not on this CPU";
  base_.assign(base_.size(), -0.0F);
  left_.assign(left_.size(), 0.0F);
  for (const float scale : {1.0F, -1.0F}) {
    std::vector<float> out = base_;
    kernels->f32.add_product({left_.data(), right_.data(), base_.data(),
                              out.data(), scale, kRows, kCols, kRank, kRank,
                              kStride, kStride});
    EXPECT_EQ(out[0], 0.0F);
    EXPECT_EQ(std::signbit(out[0]), scale < 0);
  }
}

TEST(Widen, KeepsValues) {
  const std::vector<float> in = {0.1F, -0.0F, 3e38F};
  for (const CpuLevel level :
       {CpuLevel::Portable, CpuLevel::Avx2, CpuLevel::Avx512}) {
    const ProductKernels* kernels = product_kernels(level);
    if (kernels == nullptr) continue;
    std::vector<double> out(in.size());
    kernels->widen(in.data(), out.data(), in.size());
    EXPECT_EQ(out, std::vector<double>(in.begin(), in.end()));
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
