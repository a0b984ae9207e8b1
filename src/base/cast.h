// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "zckpt/dtype.h"

namespace zckpt {

// Counts of what a cast could not keep.
struct CastCounts {
  uint64_t overflowed = 0;  // finite before, infinite after
};

// True where `cast` knows the pair: equal dtypes, or any of F64, F32, BF16, F16
// into F32, BF16, F16.
bool can_cast(DType from, DType to);

// Converts elements: round to nearest even in one rounding, overflow to
// infinity (counted), subnormals kept, NaN to the quiet NaN of the target type
// with the sign of the input (base/half.h). Between equal dtypes a plain copy.
// The result does not depend on CPU features, alignment or how a run is cut.
// REQUIRES: can_cast; in.size() / size_of(from) == out.size() / size_of(to);
// no overlap.
void cast(DType from, std::span<const std::byte> in, DType to,
          std::span<std::byte> out, CastCounts& counts);

}  // namespace zckpt
