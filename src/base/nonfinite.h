// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "zckpt/dtype.h"

namespace zckpt {

// What a run of elements holds that is no number.
struct NonFinite {
  uint64_t nan = 0;
  uint64_t inf = 0;
  // The first of either, counted from the start of the run.
  std::optional<uint64_t> first;
};

// Counts NaN and infinities; none for dtypes other than F64, F32, BF16, F16.
// Runs without any, the common case, go at the speed of memory.
// REQUIRES: bytes.size() is a multiple of the element size.
NonFinite count_nonfinite(DType dtype, std::span<const std::byte> bytes);

}  // namespace zckpt
