// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reader/discovery.h"
#include "reader/model_states.h"
#include "reader/shards.h"
#include "zckpt/checkpoint.h"
#include "zckpt/finding.h"

namespace zckpt {

// The checks on a checkpoint, as findings. Severities answer "can the weights
// be merged?": an error means no. Nothing here throws for what is wrong with
// a file; one damaged file never hides another.

// What the files and their metadata say, across all ranks: the shard set,
// every file's own soundness, and whether all of it comes from one save.
std::vector<Finding> check_shards(const ShardSet& shards);

// Whether experts, pipeline layers and model-parallel ranks are complete, by
// names; part of check_shards for layouts that are not read.
std::vector<Finding> check_grid(const ShardSet& shards);

// Shards of different ranks that hold the same values; part of check_shards.
// Reads the ends of one vector per shard. Errors: Io.
std::vector<Finding> check_duplicates(const ShardSet& shards);

// Whether the partitions add up to what the parameters need. REQUIRES:
// check_shards found no error.
std::vector<Finding> check_sums(const ShardSet& shards,
                                const ModelStates& states);

// How much a damaged file weighs, by the number of its source: an error where
// the weights need it, a warning for a surplus shard and the like.
std::vector<Severity> file_severities(const ShardSet& shards);

// `file` as findings name it: relative to the checkpoint's folder, or as it is
// where that cannot be said.
std::string relative_name(const std::string& file, const std::string& folder);

// Folders with what a framework keeps beside the shards: the checkpoint's, and
// those above the --also tag folders.
std::vector<std::string> side_folders(const CheckpointPath& where);

// The torch files in them that a resume unpickles: scheduler, scaler and
// random states, by path.
std::set<std::filesystem::path> side_files(const CheckpointPath& where);

struct CheckedCheckpoint {
  // Absent where an error keeps the files from being put together.
  std::optional<Checkpoint> checkpoint;
  std::vector<Finding> findings;
  std::shared_ptr<const ShardSet> shards;  // null for a weights folder
};

// Reads the checkpoint at `where` and makes every metadata check that concerns
// its weights. Errors: Io where a folder cannot be read, Interrupted.
CheckedCheckpoint check_for_merge(const CheckpointPath& where,
                                  const OpenOptions& options);

// A tensor and the checkpoint that it is of.
struct StoredTensor {
  const Checkpoint* checkpoint = nullptr;
  const Tensor* tensor = nullptr;
};

// Whether values of this dtype can be compared after rounding.
bool comparable(DType dtype);

// The model's own copy of a master or frozen weight, where there is one that
// can be compared with it, else null.
const Tensor* own_copy(const Checkpoint& checkpoint, const Tensor& tensor);

// The first element in [first, first + numel) of `master` that does not round
// to that of `copy`, bit for bit (NaN as a class). REQUIRES: both comparable,
// equal numel. Errors: Io, Corrupt.
std::optional<uint64_t> first_disagreement(const StoredTensor& master,
                                           const StoredTensor& copy,
                                           uint64_t first, uint64_t numel);

// weights-disagree for that element.
Finding copy_disagreement(const StoredTensor& master, uint64_t element);
// File and offset of an element.
void set_place(Finding& finding, const StoredTensor& tensor, uint64_t element);

struct CopyCheck {
  std::vector<Finding> findings;  // weights-disagree
  uint64_t elements = 0;          // compared
};

// Compares masters with the copies that the model computes with, which files
// of stages 0 to 2 hold beside them: each master must round to its copy, bit
// for bit (NaN as a class). Without `full` at least 64 elements of each
// tensor: the first, the last, and both sides of every rank boundary.
CopyCheck check_copies(const Checkpoint& checkpoint, bool full,
                       const OpenOptions& options);

}  // namespace zckpt
