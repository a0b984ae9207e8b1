// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace zckpt {

// Observer is how a long call tells its caller what goes on; the library
// itself never prints. The default implementation ignores everything.
// Threads: progress() is called from any worker, note() only from the thread
// that made the call. Errors: implementations must not throw.
class Observer {
 public:
  virtual ~Observer() = default;
  // A remark worth showing to a person: which checkpoint was taken, which
  // files were ignored.
  virtual void note(std::string_view /*message*/) {}
  // `done` of `total` bytes of output have been produced.
  virtual void progress(uint64_t /*done*/, uint64_t /*total*/) {}
};

// StopToken lets another thread or a signal handler end a call early: the call
// then cleans up and throws Error(Interrupted). Setting it is
// async-signal-safe.
class StopToken {
 public:
  void request_stop() noexcept { stop_.store(true, std::memory_order_relaxed); }
  bool stop_requested() const noexcept {
    return stop_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> stop_{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace zckpt
