// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cast_kernels.h"

namespace zckpt {

// A product of factors, rows x rank times rank x cols, that is added to a base
// of rows x cols; all row-major. Strides are in elements, `stride` is that of
// base and out, which may be the same.
template <typename T>
struct Product {
  const T* left;
  const float* right;
  const T* base;
  T* out;
  T scale;
  size_t rows;
  size_t cols;
  size_t rank;
  size_t left_stride;
  size_t right_stride;
  size_t stride;
};

// out[i][j] = base[i][j] + scale * the sum over k, ascending, of
// left[i][k] * right[k][j], begun at zero: for float by fused multiply-add, as
// the matrix products behind PEFT on a CPU; for double, where every product is
// exact, by addition. The scaled sum is rounded, then the result. Every set
// gives the same bits, whatever the CPU and however a product is cut.
template <typename T>
using ProductKernel = void (*)(const Product<T>& product);

// |values[i] - before[i]|: the largest, their sum (in lanes: its last digits
// depend on how runs are cut), and how many are no numbers.
struct DeltaSums {
  double max = 0;
  double total = 0;
  uint64_t nonfinite = 0;
};
template <typename T>
using DeltaKernel = DeltaSums (*)(const T* before, const T* values,
                                  size_t count);

template <typename T>
struct KernelsOf {
  ProductKernel<T> add_product;
  DeltaKernel<T> measure;
};

struct ProductKernels {
  KernelsOf<float> f32;
  KernelsOf<double> f64;
  void (*widen)(const float* in, double* out, size_t count);
};

// Null where this CPU, or this build, lacks the instructions.
const ProductKernels* product_kernels(CpuLevel level);
// The fastest there are.
const ProductKernels& best_product_kernels();

}  // namespace zckpt
