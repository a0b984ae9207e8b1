// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.h"

#include <cstdio>

#include "base/text.h"

namespace zckpt::cli {
namespace {

// How often progress is shown: on a terminal, and in a log file.
constexpr std::chrono::milliseconds kTerminalPeriod{100};
constexpr std::chrono::seconds kLogPeriod{60};

std::string duration_text(double seconds) {
  char text[32];
  if (seconds < 60) {
    std::snprintf(text, sizeof(text), "%.0f s", seconds);
  } else if (seconds < 3600) {
    std::snprintf(text, sizeof(text), "%d min %02d s",
                  static_cast<int>(seconds) / 60,
                  static_cast<int>(seconds) % 60);
  } else {
    std::snprintf(text, sizeof(text), "%d h %02d min",
                  static_cast<int>(seconds / 3600),
                  static_cast<int>(seconds) / 60 % 60);
  }
  return text;
}

}  // namespace

Terminal::Terminal(std::ostream& err, TerminalOptions options)
    : err_(err), options_(options) {}

std::string Terminal::paint(std::string_view text,
                            std::string_view code) const {
  if (!options_.color) return std::string(text);
  return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
}

void Terminal::clear_line() {
  const std::lock_guard lock(mutex_);
  if (line_) err_ << "\r\x1b[K";
  line_ = false;
}

void Terminal::note(std::string_view message) {
  if (options_.quiet) return;
  clear_line();
  err_ << paint("note: ", "36") << escape(message) << '\n';
}

void Terminal::error(std::string_view message) {
  clear_line();
  err_ << paint("error: ", "31;1") << escape(message) << '\n';
}

void Terminal::finding(const Finding& finding) {
  const bool is_error = finding.severity == Severity::Error;
  if (options_.quiet && !is_error) return;
  clear_line();
  // As Error::what() puts it: "file: tensor @offset: message".
  std::string place = finding.file.empty() ? "" : escape(finding.file) + ": ";
  if (!finding.tensor.empty()) place += escape(finding.tensor);
  if (finding.offset) {
    place +=
        (finding.tensor.empty() ? "@" : " @") + std::to_string(*finding.offset);
  }
  if (!finding.tensor.empty() || finding.offset) place += ": ";
  const std::string_view color = is_error ? "31;1"
                                 : finding.severity == Severity::Warning ? "33"
                                                                         : "36";
  err_ << paint(std::string(to_string(finding.severity)) + " [" + finding.code +
                    "] ",
                color)
       << place << escape(finding.message) << '\n';
}

std::string Terminal::progress_text(uint64_t done, uint64_t total) const {
  const double seconds =
      std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string text = format_bytes(done) + " of " + format_bytes(total) + ", " +
                     std::to_string(total == 0 ? 100 : done * 100 / total) +
                     "%, " + format_bytes(static_cast<uint64_t>(rate)) + "/s";
  if (rate > 0 && done < total) {
    text += ", " + duration_text(static_cast<double>(total - done) / rate) +
            " left";
  }
  return text;
}

void Terminal::progress(uint64_t done, uint64_t total) {
  if (!options_.progress || options_.quiet) return;
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (now - last_ < (options_.tty ? std::chrono::milliseconds(kTerminalPeriod)
                                  : kLogPeriod)) {
    return;
  }
  last_ = now;
  const std::string text = progress_text(done, total);
  if (options_.tty) {
    err_ << '\r' << text << "\x1b[K" << std::flush;
    line_ = true;
  } else {
    err_ << text << '\n' << std::flush;
  }
}

void Terminal::finish() { clear_line(); }

}  // namespace zckpt::cli
