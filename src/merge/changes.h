// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cast.h"
#include "zckpt/dtype.h"

namespace zckpt {

// A run of elements of a planned tensor that are changed on their way.
struct ChangedRun {
  uint32_t change = 0;  // PlannedTensor::change
  uint64_t first = 0;   // element of the tensor, in C order
  DType from = DType::F32;
  DType to = DType::F32;
  int worker = 0;  // below the number of threads
};

// What is done to elements between reading and writing, where a cast alone is
// not all. An element's result must not depend on how runs are cut.
class Changes {
 public:
  virtual ~Changes() = default;
  // Fills `out`, elements of run.to, from `in`, as many of run.from. Counts
  // values that became infinite. Called by several workers at a time, with a
  // number each.
  virtual void apply(const ChangedRun& run, std::span<const std::byte> in,
                     std::span<std::byte> out, CastCounts& counts) = 0;
};

}  // namespace zckpt
