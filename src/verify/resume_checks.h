// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reader/shards.h"
#include "zckpt/finding.h"
#include "zckpt/verify.h"

namespace zckpt {

// Checks that only resuming needs, as findings whose severities answer Resume.

// Optimizer states: there for every group, as long as the partition.
std::vector<Finding> check_optimizer(const ShardSet& shards);

// What the framework around DeepSpeed reads beside the shards (format.md 6.2,
// 6.3): latest, trainer_state.json, scheduler.pt, random states.
std::vector<Finding> check_framework(const ShardSet& shards,
                                     Framework framework);

// What a save without gathered weights leaves beside stage-3 shards: a weight
// or adapter file that looks like a result and holds nothing.
std::vector<Finding> check_placeholders(const ShardSet& shards);

// What unpickling the shards will import or run.
std::vector<Finding> check_classes(const ShardSet& shards);

// The run that wants to resume against the one that saved.
std::vector<Finding> check_requested(const ShardSet& shards,
                                     const VerifyOptions& options);

}  // namespace zckpt
