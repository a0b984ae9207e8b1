// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "base/cast_kernels.h"

namespace zckpt {

// A product of factors, rows x rank times rank x cols, all row-major. Strides
// are in elements.
template <typename T>
struct Product {
  const float* left;
  const float* right;
  T* out;
  size_t rows;
  size_t cols;
  size_t rank;
  size_t left_stride;
  size_t right_stride;
  size_t out_stride;
};

// out[i][j] = the sum over k, ascending, of left[i][k] * right[k][j], begun at
// zero: for float by fused multiply-add, as the matrix products behind PEFT on
// a CPU; for double, where every product is exact, by addition. Every set
// gives the same bits, whatever the CPU and however a product is cut.
struct ProductKernels {
  void (*f32)(const Product<float>& product);
  void (*f64)(const Product<double>& product);
};

// Null where this CPU, or this build, lacks the instructions.
const ProductKernels* product_kernels(CpuLevel level);
// The fastest there are.
const ProductKernels& best_product_kernels();

}  // namespace zckpt
