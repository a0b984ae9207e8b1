// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/parallel.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "zckpt/error.h"

namespace zckpt {

void throw_if_stopped(const StopToken* stop) {
  if (stop != nullptr && stop->stop_requested()) {
    throw Error(ErrorCode::Interrupted, "interrupted");
  }
}

void parallel_for(size_t count, int threads, const StopToken* stop,
                  const std::function<void(size_t, int)>& body) {
  std::atomic<bool> failed{false};
  std::mutex mutex;  // guards: failure, failing_index
  std::exception_ptr failure;
  size_t failing_index = count;

  // An exception must not leave the region (the process would abort), so every
  // iteration catches. Monotonic: after a failure at index i all lower indices
  // have started, hence the lowest failing index is among those seen.
  const auto run = [&](size_t index, int worker) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      throw_if_stopped(stop);
      body(index, worker);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (index < failing_index) {
        failing_index = index;
        failure = std::current_exception();
      }
      failed.store(true, std::memory_order_relaxed);
    }
  };
  if (threads <= 1 || count <= 1) {
    // Stays out of OpenMP: the first region costs a thread pool.
    for (size_t i = 0; i < count; ++i) run(i, 0);
  } else {
    const int team =
        static_cast<int>(std::min<size_t>(static_cast<size_t>(threads), count));
#pragma omp parallel for schedule(monotonic : dynamic, 1) num_threads(team)
    for (size_t i = 0; i < count; ++i) run(i, omp_get_thread_num());
  }
  if (failure) std::rethrow_exception(failure);
}

int resolve_threads(int requested) {
  if (requested > 0) return requested;
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  return std::clamp(cores, 1, 4);
}

}  // namespace zckpt
