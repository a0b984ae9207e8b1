// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>

#include "zckpt/finding.h"
#include "zckpt/observer.h"

namespace zckpt::cli {

struct TerminalOptions {
  bool quiet = false;
  bool verbose = false;
  bool progress = true;
  bool color = false;
  bool tty = false;  // standard error is a terminal
};

// Terminal shows notes, findings and progress on standard error.
// Threads: progress() from any, the rest from one.
class Terminal final : public Observer {
 public:
  Terminal(std::ostream& err, TerminalOptions options);
  // An error's message must not begin behind a line of progress.
  ~Terminal() override { finish(); }

  void note(std::string_view message) override;
  void progress(uint64_t done, uint64_t total) override;
  // "error [code] file @offset: tensor: message"
  void finding(const Finding& finding);
  void error(std::string_view message);
  // Ends the progress line, if there is one.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::string paint(std::string_view text, std::string_view code) const;
  std::string progress_text(uint64_t done, uint64_t total) const;
  void clear_line();

  std::ostream& err_;
  TerminalOptions options_;
  Clock::time_point start_ = Clock::now();
  std::mutex mutex_;  // guards: last_, line_
  Clock::time_point last_ = start_;
  bool line_ = false;
};

}  // namespace zckpt::cli
