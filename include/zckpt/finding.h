// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zckpt {

// What a finding means for the question that was asked: an Error stops it, a
// Warning needs a human's eye, a Note only explains.
enum class Severity { Note, Warning, Error };

std::string_view to_string(Severity severity);

// Finding is one observation about a checkpoint: data, never thrown. `code` is
// a stable name out of the table in docs/verify.md that scripts may rely on;
// `message` says what was expected, what was found and what to do. `file` is
// relative to the checkpoint's folder; `rank` is the rank to blame; `offset`
// is in bytes from the start of `file`.
struct Finding {
  std::string code;
  Severity severity = Severity::Error;
  std::string message;
  std::string file;
  std::optional<uint32_t> rank;
  std::string tensor;
  std::optional<uint64_t> offset;
};

}  // namespace zckpt
