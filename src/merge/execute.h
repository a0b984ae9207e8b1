// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "merge/changes.h"
#include "writer/output.h"
#include "zckpt/merge.h"

namespace zckpt {

// Copies the planned tensors into `output` and fills in the counts of
// `result`. Reads follow the order of the sources, not of the output: what is
// adjacent in a file is read at once, whatever tensors it belongs to, in runs
// of up to options.chunk_bytes; each run's elements are then written to where
// they belong. Tensors with a change pass through `changes`, which may be null
// where there are none.
// Errors: Corrupt where a record's CRC differs, Io, Limit, Interrupted.
void execute(const Checkpoint& checkpoint, const Plan& plan,
             const MergeOptions& options, Changes* changes, Output& output,
             MergeResult& result);

}  // namespace zckpt
