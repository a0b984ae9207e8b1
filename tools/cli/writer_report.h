// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "cli/json_report.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "zckpt/merge.h"

namespace zckpt::cli {

// What the verbs that write weights say of what they did.

Json writer_json(const std::string& verb, const std::string& path,
                 const MergeResult& result, const MergeOptions& options);

// Findings, then notes: what was written from what, ties, casts, checks.
void print_summary(const MergeResult& result, const MergeOptions& options,
                   bool verbose, Terminal& terminal);

// The plan tensor by tensor, for --dry-run.
void print_plan(const MergeResult& result, std::ostream& out);

// The work of the verbs whose options only say how to merge: merges, and says
// what was done. Returns the exit code.
int merge_and_report(const std::string& verb, const CommonOptions& common,
                     MergeOptions& options, const Context& context);

}  // namespace zckpt::cli
