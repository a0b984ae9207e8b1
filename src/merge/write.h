// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "merge/changes.h"
#include "verify/checks.h"
#include "zckpt/merge.h"

namespace zckpt {

// The phases of a verb that writes weights (docs/architecture.md), for merge
// and for its neighbours: open_checked, begin_result, a plan of one's own,
// write_plan.

// Reads the index of the checkpoint at `path`; the newest one of a run.
// Errors: as merge(): refuses on findings that keep its weights from being put
// together, naming the newest checkpoint that is sound.
CheckedCheckpoint open_checked(const std::string& path,
                               const MergeOptions& options);

// The result as far as the index tells it; hands notes to the observer.
MergeResult begin_result(CheckedCheckpoint& checked,
                         const MergeOptions& options);

// Compares masters with the model's own copies, as options.check says, and
// refuses (Corrupt) where they differ. Returns how many elements were compared.
uint64_t check_own_copies(const Checkpoint& checkpoint,
                          const MergeOptions& options);

// Checks the output's place and the model's own copies, executes result.plan
// and commits it; with dry_run only the place is looked at. `changes` may be
// null where no tensor has one.
void write_plan(const Checkpoint& checkpoint, const MergeOptions& options,
                Changes* changes, MergeResult& result);

}  // namespace zckpt
