// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/product_kernels.h"

#include <cmath>
#include <initializer_list>

#define ZCKPT_INLINE inline __attribute__((always_inline))

namespace zckpt {
namespace {

ZCKPT_INLINE float add_product(float left, float right, float sum) {
  return std::fma(left, right, sum);
}

// The product of two floats is exact here, so fused or not is the same.
ZCKPT_INLINE double add_product(float left, float right, double sum) {
  return static_cast<double>(left) * static_cast<double>(right) + sum;
}

// Rows x Cols sums that stay in registers while k runs.
template <size_t Rows, size_t Cols, typename T>
ZCKPT_INLINE void tile(const Product<T>& product, size_t row, size_t col) {
  T sums[Rows][Cols] = {};
  const float* left = product.left + row * product.left_stride;
  const float* right = product.right + col;
  for (size_t k = 0; k < product.rank; ++k) {
    for (size_t i = 0; i < Rows; ++i) {
      const float scalar = left[i * product.left_stride + k];
      for (size_t j = 0; j < Cols; ++j) {
        sums[i][j] = add_product(scalar, right[j], sums[i][j]);
      }
    }
    right += product.right_stride;
  }
  T* out = product.out + row * product.out_stride + col;
  for (size_t i = 0; i < Rows; ++i) {
    for (size_t j = 0; j < Cols; ++j) {
      out[i * product.out_stride + j] = sums[i][j];
    }
  }
}

template <size_t Cols, typename T>
ZCKPT_INLINE void stripe(const Product<T>& product, size_t col) {
  constexpr size_t kRows = 4;
  size_t row = 0;
  for (; row + kRows <= product.rows; row += kRows) {
    tile<kRows, Cols>(product, row, col);
  }
  for (; row < product.rows; ++row) tile<1, Cols>(product, row, col);
}

template <typename T>
ZCKPT_INLINE void multiply(const Product<T>& product) {
  constexpr size_t kCols = 256 / sizeof(T);
  size_t col = 0;
  for (; col + kCols <= product.cols; col += kCols) {
    stripe<kCols>(product, col);
  }
  constexpr size_t kFew = 8;
  for (; col + kFew <= product.cols; col += kFew) stripe<kFew>(product, col);
  for (; col < product.cols; ++col) stripe<1>(product, col);
}

template <typename T>
void multiply_portable(const Product<T>& product) {
  multiply(product);
}

constexpr ProductKernels kPortable{multiply_portable<float>,
                                   multiply_portable<double>};

#ifdef __x86_64__

// Dispatched by hand, as in base/cast_kernels.cc.
#define ZCKPT_AVX2 __attribute__((target("avx2,fma")))
#ifdef __clang__  // knows no such preference for one function
#define ZCKPT_WIDE ""
#else
#define ZCKPT_WIDE ",prefer-vector-width=512"
#endif
#define ZCKPT_AVX512 \
  __attribute__((    \
      target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq" ZCKPT_WIDE)))

template <typename T>
ZCKPT_AVX2 void multiply_avx2(const Product<T>& product) {
  multiply(product);
}

template <typename T>
ZCKPT_AVX512 void multiply_avx512(const Product<T>& product) {
  multiply(product);
}

constexpr ProductKernels kAvx2{multiply_avx2<float>, multiply_avx2<double>};
constexpr ProductKernels kAvx512{multiply_avx512<float>,
                                 multiply_avx512<double>};

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
