// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "zckpt/observer.h"

namespace zckpt {

// Calls body(index, worker) for every index in [0, count), `worker` in
// [0, threads). Indices start in ascending order. The first failure ends the
// loop; of several failures the one with the lowest index is rethrown, so that
// a run reports the same error for any number of threads. Throws
// Error(Interrupted) once `stop` is set. REQUIRES: not called from a body.
void parallel_for(size_t count, int threads, const StopToken* stop,
                  const std::function<void(size_t index, int worker)>& body);

// Throws Error(Interrupted) once `stop`, which may be null, is set.
void throw_if_stopped(const StopToken* stop);

// The number of threads that `requested` means; 0 = one per usable core, at
// most 4, beyond which reading and writing gain nothing (docs/performance.md).
int resolve_threads(int requested);

}  // namespace zckpt
