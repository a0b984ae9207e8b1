// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zckpt/finding.h"

namespace zckpt {

enum class ErrorCode {
  Io,           // the operating system refused: open, read, write, no space
  Corrupt,      // the input contradicts itself or its format
  Unsupported,  // sound as far as can be told, but not a layout that is read
  Invalid,      // the caller asked for something that makes no sense
  Conflict,     // inputs, or input and output, disagree or are in use
  Limit,        // a declared size exceeds a cap or the memory budget
  Internal,     // a bug in zckpt
  Interrupted,  // the caller's stop token was set
};

// The name used in JSON: "io", "corrupt", ...
std::string_view to_string(ErrorCode code);

// Where an error happened. Empty parts are unknown; `offset` is in bytes from
// the start of `file`.
struct ErrorPlace {
  std::string file;
  std::string tensor;
  std::optional<uint64_t> offset;
};

// Error is the only exception type that leaves the library, besides
// std::bad_alloc. Low levels fill in what they know; a caller that knows more
// catches by reference, adds it (the first value given wins) and rethrows.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, ErrorPlace place = {});

  ErrorCode code() const { return code_; }
  // The bare message, without the place.
  const std::string& message() const { return message_; }
  const std::string& file() const { return place_.file; }
  const std::string& tensor() const { return place_.tensor; }
  std::optional<uint64_t> offset() const { return place_.offset; }
  // "<file>: <tensor> @<offset>: <message>", parts that are unknown left out.
  const char* what() const noexcept override { return what_.c_str(); }

  Error& in_file(std::string_view file);
  Error& in_tensor(std::string_view tensor);

  // The findings behind a refusal; empty for every other error.
  const std::vector<Finding>& findings() const { return findings_; }
  Error& with_findings(std::vector<Finding> findings);

 private:
  void compose();

  ErrorCode code_;
  std::string message_;
  ErrorPlace place_;
  std::string what_;
  std::vector<Finding> findings_;
};

}  // namespace zckpt
