// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/finding.h"

namespace zckpt {

// What bytes are for, with stable names: "masters", an optimizer state's own
// name ("exp_avg", ...), "model" (the weights that the model computes with),
// "frozen", "buffers", "other_state" (step counts, schedulers, random states,
// client state), "padding", "pickle", "container", "weights" (files of
// Hugging Face weights), "side_files", "unread" (files that are damaged or of
// a layout that is not read).
struct ContentBytes {
  std::string content;
  uint64_t bytes = 0;
};

struct FileBytes {
  std::string file;  // relative to the checkpoint's folder
  std::optional<uint32_t> rank;
  uint64_t bytes = 0;  // the sum of `contents`
  std::vector<ContentBytes> contents;
};

struct Inspection {
  std::string path;  // the tag folder, or the folder of weights
  CheckpointFacts facts;
  std::vector<FileBytes> files;      // shards first, by rank
  std::vector<ContentBytes> totals;  // over all files
  uint64_t total_bytes = 0;
  std::vector<Finding> findings;
  std::vector<std::string> notes;
  // Other checkpoints that the path holds, highest step first.
  std::vector<std::string> others;
  // Absent where the files cannot be put together (findings say why).
  std::optional<Checkpoint> checkpoint;
};

// Says what the checkpoint at `path` is and what every byte of it is for.
// Payloads are not read. Damage is reported as findings, not thrown.
// Errors: Io, Invalid (not a checkpoint), Interrupted; Internal where the
//         bytes of a file do not add up.
Inspection inspect(const std::string& path, const OpenOptions& options = {});

}  // namespace zckpt
