// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "zckpt/finding.h"
#include "zckpt/verify.h"

namespace zckpt {

// One row per finding code: the table that docs/verify.md is checked
// against, and what each code means for each question.
struct CodeRow {
  std::string_view code;
  std::string_view area;  // folder, file, across ranks, names, ...
  // The consequence of each question, where it does not depend on the file:
  // empty = as the check found it.
  std::optional<Severity> resume;
  std::optional<Severity> merge;
};

std::span<const CodeRow> code_table();

// The row of `code`, or nothing for a code that is not in the table.
const CodeRow* find_code(std::string_view code);

// Findings of checks whose severities answer Merge, with the severities that
// answer `question`.
std::vector<Finding> answer(std::vector<Finding> findings, Question question);

}  // namespace zckpt
