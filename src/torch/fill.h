// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <span>
#include <string>

#include "zckpt/checkpoint.h"
#include "zckpt/error.h"
#include "zckpt/load.h"

namespace zckpt {

// A tensor of libtorch and what is to be in it.
struct Fill {
  const Tensor* tensor = nullptr;
  at::Tensor target;
  std::string name;  // of the target, for errors
};

// A tensor on the CPU with the shape of `tensor`, its values undefined.
// Errors: Limit where there is no memory for it.
at::Tensor make_tensor(const Tensor& tensor, at::ScalarType type);

bool has_shape_of(const at::Tensor& target, const Tensor& tensor);
// Whether `target` can be filled from `stored`: floating types from each other,
// all others from their own kind.
bool converts(DType stored, at::ScalarType target);

// What `body` returns. libtorch's errors, whose text is a back trace, become
// Error(Unsupported): this kind of tensor cannot do what was asked of it.
template <typename Body>
auto with_own_errors(Body body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error(ErrorCode::Unsupported,
                "libtorch refuses: " + text.substr(0, text.find('\n')));
  }
}

// Errors and memory: those of load_into_tensors, names aside.
LoadResult fill(const Checkpoint& checkpoint, std::span<const Fill> fills,
                const LoadOptions& options);

}  // namespace zckpt
