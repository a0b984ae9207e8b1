// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/nonfinite.h"
#include "zckpt/checkpoint.h"
#include "zckpt/observer.h"

namespace zckpt {

// What the elements of a tensor are.
struct ValueCensus {
  bool any = false;  // something is not zero
  NonFinite bad;     // `first` counts from the tensor's start
};

// Reads all of `tensor`, some KiB at a time. Errors: Io, Corrupt, Interrupted.
ValueCensus take_census(const Checkpoint& checkpoint, const Tensor& tensor,
                        const StopToken* stop);

}  // namespace zckpt
