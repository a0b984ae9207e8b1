// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/error.h"

#include <utility>

#include "base/text.h"

namespace zckpt {

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::Note: return "note";
    case Severity::Warning: return "warning";
    case Severity::Error: return "error";
  }
  return "error";
}

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::Io: return "io";
    case ErrorCode::Corrupt: return "corrupt";
    case ErrorCode::Unsupported: return "unsupported";
    case ErrorCode::Invalid: return "invalid";
    case ErrorCode::Conflict: return "conflict";
    case ErrorCode::Limit: return "limit";
    case ErrorCode::Internal: return "internal";
    case ErrorCode::Interrupted: return "interrupted";
  }
  return "internal";
}

Error::Error(ErrorCode code, std::string message, ErrorPlace place)
    : code_(code), message_(std::move(message)), place_(std::move(place)) {
  compose();
}

Error& Error::in_file(std::string_view file) {
  if (place_.file.empty()) place_.file = file;
  compose();
  return *this;
}

Error& Error::in_tensor(std::string_view tensor) {
  if (place_.tensor.empty()) place_.tensor = tensor;
  compose();
  return *this;
}

Error& Error::with_findings(std::vector<Finding> findings) {
  findings_ = std::move(findings);
  return *this;
}

void Error::compose() {
  what_.clear();
  if (!place_.file.empty()) what_ += escape(place_.file) + ": ";
  if (!place_.tensor.empty()) what_ += escape(place_.tensor) + " ";
  if (place_.offset) what_ += "@" + std::to_string(*place_.offset);
  if (!place_.tensor.empty() || place_.offset) {
    if (what_.back() == ' ') what_.pop_back();
    what_ += ": ";
  }
  what_ += message_;
}

}  // namespace zckpt
