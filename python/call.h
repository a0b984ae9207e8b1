// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "zckpt/observer.h"

namespace zckpt::python {

namespace py = pybind11;

// What a running call tells, kept until the Python thread asks for it: workers
// never touch Python.
class Watch final : public Observer {
 public:
  // `progress` is called with (done, total) bytes; or None.
  explicit Watch(py::object progress = py::none())
      : callback_(std::move(progress)) {}

  void note(std::string_view message) override;
  void progress(uint64_t done, uint64_t total) override;

  StopToken& stop() { return stop_; }
  // Call only once the call is over.
  const std::vector<std::string>& notes() const { return notes_; }

  // Runs signal handlers and the progress callback. Throws what they raise.
  // REQUIRES: the GIL.
  void poll();
  // The last word of a call that went well.
  void show_progress();

 private:
  py::object callback_;
  StopToken stop_;
  std::mutex mutex_;  // guards all below
  std::vector<std::string> notes_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
  uint64_t shown_ = 0;
};

// Runs `call` in a thread of its own, without the GIL, while this one polls.
// What polling raises (KeyboardInterrupt) asks the call to stop and is thrown
// once it has cleaned up. The thread also keeps OpenMP's pool away from those
// that Python forks.
void run_watched(Watch& watch, const std::function<void()>& call);

template <typename F>
std::invoke_result_t<F> watched(Watch& watch, F&& call) {
  std::optional<std::invoke_result_t<F>> result;
  run_watched(watch, [&] { result.emplace(call()); });
  return std::move(*result);
}

}  // namespace zckpt::python
