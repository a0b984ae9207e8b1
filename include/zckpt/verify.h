// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/dtype.h"
#include "zckpt/finding.h"
#include "zckpt/observer.h"

namespace zckpt {

// What is asked of a checkpoint; decides which findings are errors.
enum class Question {
  Resume,  // can the framework go on training from it?
  Merge,   // can its weights be put together?
};

enum class Verdict {
  Resumable,
  WeightsOnly,     // merging works, resuming does not
  Damaged,         // weights are lost or cannot be trusted
  Unsupported,     // nothing wrong was seen, but it cannot be judged yet
  NotACheckpoint,  // no checkpoint at all; an adapter alone, too
};

std::string_view to_string(Verdict verdict);

struct VerifyOptions {
  Question question = Question::Resume;
  bool strict = false;  // warnings count as errors
  // Read every byte as well: the CRC of every record, NaN and infinities, the
  // model's own copies and gathered weights against the masters.
  bool full = false;
  // Of a run, judge no further than the newest that resumes.
  bool newest_only = false;
  // The run that wants to resume, where it is not the one that saved.
  std::optional<uint32_t> world_size;
  std::optional<int> stage;
  std::optional<DType> dtype;  // F32, BF16 or F16
  std::string framework;       // empty: told from the folder

  OpenOptions open;
  uint64_t memory_bytes = 16 << 20;  // for buffers, all threads together
  Observer* observer = nullptr;      // progress in bytes read, with `full`
};

// What reading every byte came to.
struct ScanFacts {
  uint64_t bytes = 0;
  uint64_t checked_records = 0;    // whose CRC was compared
  uint64_t unchecked_records = 0;  // whose writer left no CRC
  uint64_t compared_tensors = 0;   // with the model's own copies
  uint64_t compared_with_sidecar = 0;
};

// The answer for one checkpoint.
struct Verification {
  // As a resume would be told: PATH itself, PATH/checkpoint-N for one of a
  // run, PATH/tag for one of several tags.
  std::string path;
  std::string tag;
  Verdict verdict = Verdict::Damaged;
  bool can_resume = false;
  bool can_merge = false;  // the weights that the save holds
  CheckpointFacts facts;
  std::optional<uint64_t> step;   // what orders the checkpoints of a run
  std::vector<Finding> findings;  // severities answer the question asked
  std::optional<ScanFacts> scan;  // with VerifyOptions::full
};

// The answer for a path: one checkpoint, or all of a run folder, newest first.
struct VerifyResult {
  bool is_run = false;
  std::vector<Verification> checkpoints;  // never empty
  // The newest that resumes; an index into `checkpoints`.
  std::optional<size_t> newest_resumable;
};

// Judges the checkpoint, or every checkpoint of a run folder, at `path`, from
// names and metadata; payloads are not read but for step counts, unless
// `full`. What is wrong with a checkpoint is a finding, never a throw.
// Errors: Io where the path does not exist or a folder cannot be listed,
//         Interrupted.
VerifyResult verify(const std::string& path, const VerifyOptions& options);

}  // namespace zckpt
