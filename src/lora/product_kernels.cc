// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/product_kernels.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#define ZCKPT_INLINE inline __attribute__((always_inline))

namespace zckpt {
namespace {

template <bool kHasFma>
ZCKPT_INLINE float multiply_add(float left, float right, float sum) {
  return std::fma(left, right, sum);
}

// The product of two floats is exact here, so fused or not is the same; without
// the instruction, fusing is a slow call.
template <bool kHasFma>
ZCKPT_INLINE double multiply_add(double left, double right, double sum) {
  return kHasFma ? std::fma(left, right, sum) : left * right + sum;
}

// Rows x Cols sums that stay in registers while k runs.
template <bool kHasFma, size_t Rows, size_t Cols, typename T>
ZCKPT_INLINE void tile(const Product<T>& product, size_t row, size_t col) {
  T sums[Rows][Cols] = {};
  const T* left = product.left + row * product.left_stride;
  const float* right = product.right + col;
  for (size_t k = 0; k < product.rank; ++k) {
    for (size_t i = 0; i < Rows; ++i) {
      const T scalar = left[i * product.left_stride + k];
      for (size_t j = 0; j < Cols; ++j) {
        sums[i][j] =
            multiply_add<kHasFma>(scalar, static_cast<T>(right[j]), sums[i][j]);
      }
    }
    right += product.right_stride;
  }
  const size_t first = row * product.stride + col;
  for (size_t i = 0; i < Rows; ++i) {
    const T* base = product.base + first + i * product.stride;
    T* out = product.out + first + i * product.stride;
    T results[Cols];  // base and out may be the same
    for (size_t j = 0; j < Cols; ++j) {
      results[j] = base[j] + sums[i][j] * product.scale;
    }
    for (size_t j = 0; j < Cols; ++j) out[j] = results[j];
  }
}

template <bool kHasFma, size_t Cols, typename T>
ZCKPT_INLINE void stripe(const Product<T>& product, size_t col) {
  constexpr size_t kRows = 4;
  size_t row = 0;
  for (; row + kRows <= product.rows; row += kRows) {
    tile<kHasFma, kRows, Cols>(product, row, col);
  }
  for (; row < product.rows; ++row) tile<kHasFma, 1, Cols>(product, row, col);
}

template <bool kHasFma, typename T>
ZCKPT_INLINE void add_product(const Product<T>& product) {
  constexpr size_t kCols = 256 / sizeof(T);
  size_t col = 0;
  for (; col + kCols <= product.cols; col += kCols) {
    stripe<kHasFma, kCols>(product, col);
  }
  constexpr size_t kFew = 8;
  for (; col + kFew <= product.cols; col += kFew)
    stripe<kHasFma, kFew>(product, col);
  for (; col < product.cols; ++col) stripe<kHasFma, 1>(product, col);
}

template <typename T>
ZCKPT_INLINE DeltaSums measure(const T* before, const T* values, size_t count) {
  // Lanes side by side, which the compiler turns into vectors.
  constexpr size_t kLanes = 16;
  T max[kLanes] = {};
  T total[kLanes] = {};
  uint32_t nonfinite[kLanes] = {};
  const auto take = [&](size_t i, size_t lane) {
    const T delta = std::abs(values[i] - before[i]);
    const bool finite = delta <= std::numeric_limits<T>::max();
    const T counted = finite ? delta : T{0};
    max[lane] = counted > max[lane] ? counted : max[lane];
    total[lane] += counted;
    nonfinite[lane] += finite ? 0U : 1U;
  };
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) take(i + lane, lane);
  }
  for (size_t i = whole; i < count; ++i) take(i, i - whole);
  DeltaSums sums;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sums.max = std::max(sums.max, static_cast<double>(max[lane]));
    sums.total += static_cast<double>(total[lane]);
    sums.nonfinite += nonfinite[lane];
  }
  return sums;
}

ZCKPT_INLINE void widen(const float* __restrict in, double* __restrict out,
                        size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<double>(in[i]);
}

// One set: the loops above, compiled for one kind of CPU.
// NOLINTBEGIN(bugprone-macro-parentheses): attributes take none
#define ZCKPT_SET(Name, kHasFma, attributes)                                  \
  struct Name {                                                               \
    template <typename T>                                                     \
    attributes static void run_add_product(const Product<T>& product) {       \
      add_product<kHasFma>(product);                                          \
    }                                                                         \
    template <typename T>                                                     \
    attributes static DeltaSums run_measure(const T* before, const T* values, \
                                            size_t count) {                   \
      return measure(before, values, count);                                  \
    }                                                                         \
    attributes static void run_widen(const float* in, double* out,            \
                                     size_t count) {                          \
      widen(in, out, count);                                                  \
    }                                                                         \
  }
// NOLINTEND(bugprone-macro-parentheses)

template <typename Set, typename T>
constexpr KernelsOf<T> kernels_of() {
  return {Set::template run_add_product<T>, Set::template run_measure<T>};
}

template <typename Set>
constexpr ProductKernels kernels_in() {
  return {kernels_of<Set, float>(), kernels_of<Set, double>(), Set::run_widen};
}

ZCKPT_SET(Portable, false, );
constexpr ProductKernels kPortable = kernels_in<Portable>();

#ifdef __x86_64__

// Dispatched by hand, as in base/cast_kernels.cc.
#ifdef __clang__  // knows no such preference for one function
#define ZCKPT_WIDE ""
#else
#define ZCKPT_WIDE ",prefer-vector-width=512"
#endif
ZCKPT_SET(Avx2, true, __attribute__((target("avx2,fma"))));
ZCKPT_SET(Avx512, true,
          __attribute__((target(
              "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq" ZCKPT_WIDE))));
constexpr ProductKernels kAvx2 = kernels_in<Avx2>();
constexpr ProductKernels kAvx512 = kernels_in<Avx512>();

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

#endif

}  // namespace

const ProductKernels* product_kernels(CpuLevel level) {
  if (level == CpuLevel::Portable) return &kPortable;
#ifdef __x86_64__
  if (level == CpuLevel::Avx2) return has_avx2() ? &kAvx2 : nullptr;
  return has_avx512() ? &kAvx512 : nullptr;
#else
  return nullptr;
#endif
}

const ProductKernels& best_product_kernels() {
  for (const CpuLevel level : {CpuLevel::Avx512, CpuLevel::Avx2}) {
    if (const ProductKernels* kernels = product_kernels(level)) return *kernels;
  }
  return kPortable;
}

}  // namespace zckpt
