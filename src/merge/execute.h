// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "merge/changes.h"
#include "writer/output.h"
#include "zckpt/merge.h"

namespace zckpt {

// Writes the planned files into `output` (merge/executor.h) and fills in the
// counts of `result`. `changes` may be null where no tensor has one.
// Errors: Corrupt where a record's CRC differs, Io, Limit, Interrupted.
void execute(const Checkpoint& checkpoint, const Plan& plan,
             const MergeOptions& options, Changes* changes, Output& output,
             MergeResult& result);

}  // namespace zckpt
