// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zckpt/checkpoint.h"

namespace zckpt {

enum class Framework { DeepSpeed, HfTrainer, Accelerate, Lightning, Weights };

std::string_view to_string(Framework framework);

// One checkpoint that was found: a tag folder of DeepSpeed shards inside its
// checkpoint folder, or a folder of Hugging Face weights (then `tag` and
// `tag_folder` are empty).
struct CheckpointPath {
  std::string folder;             // checkpoint-500, save_dir, X.ckpt, ...
  std::string tag;                // global_step500, pytorch_model, ...
  std::string tag_folder;         // folder + "/" + tag
  std::vector<std::string> also;  // further tag folders of the same save
  Framework framework = Framework::DeepSpeed;
  // What orders the candidates of a run: the Trainer's step where there is
  // one, else the number in the tag.
  std::optional<uint64_t> step;
  // Why this folder of a run holds no checkpoint, e.g. a save that was cut
  // short; empty for a checkpoint.
  std::string problem;
  std::vector<std::string> notes;  // what was taken and why, for a person
  std::vector<Finding> findings;   // latest-missing, latest-dangling, ...
};

// Every checkpoint that `path` can mean (docs/cli.md): a run folder
// with checkpoint-N folders, one of them, a folder with `latest` or with tag
// folders, a tag folder, or a folder of weights. Highest step first, as a
// number; on a tie the folder itself first. Reads names and `latest` only.
// Errors: Io where the path does not exist or cannot be listed; Invalid where
//         nothing in it is a checkpoint, saying what it looks like.
std::vector<CheckpointPath> find_checkpoints(const std::string& path,
                                             const OpenOptions& options);

// The tag that `latest` in this folder names, or nothing.
// Errors: Io, Limit where the file cannot be read.
std::optional<std::string> read_latest(const std::string& folder);

// The tag folder that `--also DIR` means: DIR itself, or DIR/tag.
std::string resolve_also(const std::string& directory, const std::string& tag);

}  // namespace zckpt
