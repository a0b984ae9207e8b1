// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <csignal>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <thread>

namespace zckpt::python {
namespace {

constexpr std::chrono::milliseconds kPollEvery{50};

// Signals are Python's: while one of these exists, threads that are made take
// none, but for those that speak of the thread itself.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
      sigdelset(&all, own);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// A call in its own thread.
class Running {
 public:
  explicit Running(const std::function<void()>& call) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this, &call] {
      std::exception_ptr failure;
      try {
        call();
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      failure_ = failure;
      done_ = true;
      changed_.notify_all();
    });
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { thread_.join(); }

  // Whether it ended within the time.
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPollEvery, [this] { return done_; });
  }
  // REQUIRES: it has ended.
  std::exception_ptr failure() const { return failure_; }

 private:
  std::mutex mutex_;  // guards: done_, failure_
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace

void Watch::note(std::string_view message) {
  const std::lock_guard lock(mutex_);
  notes_.emplace_back(message);
}

void Watch::progress(uint64_t done, uint64_t total) {
  const std::lock_guard lock(mutex_);
  // Workers report out of order.
  if (done > done_) done_ = done;
  total_ = total;
}

void Watch::poll() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  show_progress();
}

void Watch::show_progress() {
  if (callback_.is_none()) return;
  uint64_t done = 0;
  uint64_t total = 0;
  {
    const std::lock_guard lock(mutex_);
    if (done_ == shown_) return;
    shown_ = done = done_;
    total = total_;
  }
  callback_(done, total);
}

void run_watched(Watch& watch, const std::function<void()>& call) {
  std::exception_ptr raised;  // by Python, while the call ran
  std::exception_ptr failure;
  {
    const py::gil_scoped_release released;
    Running running(call);
    while (!running.wait()) {
      if (raised) continue;
      const py::gil_scoped_acquire gil;
      try {
        watch.poll();
      } catch (...) {
        raised = std::current_exception();
        watch.stop().request_stop();
      }
    }
    failure = running.failure();
  }
  if (raised) std::rethrow_exception(raised);
  if (failure) std::rethrow_exception(failure);
  watch.show_progress();
}

}  // namespace zckpt::python
