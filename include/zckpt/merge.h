// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/dtype.h"
#include "zckpt/observer.h"

namespace zckpt {

enum class Aliases { Drop, Copy };
// What weights are written as. Safetensors lists tied names beside its tensors;
// a .bin, which torch.load reads, holds them over one storage.
enum class WeightFormat { Safetensors, Bin };
enum class TensorOrder { Module, ParamShapes };
// How much of what is written is checked against other evidence first.
enum class Check {
  Full,    // every element against the model's own copy; CRC of every record
           // that is touched
  Sample,  // a sample of each tensor; CRC of every record that is read whole
  None,
};

struct MergeOptions {
  // What is written.
  std::optional<DType> dtype = DType::F32;  // none: keep what is stored
  WeightFormat format = WeightFormat::Safetensors;
  uint64_t max_shard_bytes = 5'000'000'000;
  std::vector<std::string> include;  // globs on names; empty: all
  std::vector<std::string> exclude;
  std::string strip_prefix;
  Aliases aliases = Aliases::Drop;
  TensorOrder order = TensorOrder::Module;
  bool exclude_frozen = false;
  Check check = Check::Sample;

  // Where.
  std::string output;
  bool single_file = false;
  bool force = false;
  bool sync = true;
  bool dry_run = false;

  // How: affects speed and memory, never a byte of the result.
  OpenOptions open;
  uint64_t memory_bytes = 16 << 20;  // for buffers, all threads together
  uint64_t chunk_bytes = 4 << 20;    // the most that is read at once
  Observer* observer = nullptr;
};

// Whether --include and --exclude let a tensor of this name through.
bool wants_name(const MergeOptions& options, std::string_view name);

// Elements [first, first + numel) of tensor number `tensor` of a checkpoint.
struct PlannedRun {
  uint32_t tensor = 0;  // index into Checkpoint::tensors()
  uint64_t first = 0;
  uint64_t numel = 0;
};

// One tensor of the plan and where its data will lie.
struct PlannedTensor {
  std::string name;  // in the output
  DType dtype = DType::F32;
  uint64_t offset = 0;  // of its data in the file
  uint64_t size_bytes = 0;
  std::vector<PlannedRun> runs;  // its elements in C order
  // What is done to its elements besides the cast: index into LoraPlan.
  std::optional<uint32_t> change;
};

// A record of the zip archive that a .bin file is.
struct PlannedRecord {
  std::string name;            // with the archive's folder
  uint64_t header_offset = 0;  // of its local header in the file
  uint64_t offset = 0;         // of its data
  uint64_t size_bytes = 0;
  std::optional<uint32_t> crc;  // none: of a tensor, not read yet
};

struct PlannedFile {
  std::string name;
  uint64_t size_bytes = 0;
  std::string header;  // the bytes before the data; all of it for an index
  std::vector<PlannedTensor> tensors;  // in file order
  std::optional<uint32_t> copy_of;     // a source that is copied whole
  std::vector<PlannedRecord> records;  // of a .bin, in file order
};

// Plan is a plain value: all that will be written, and from what. Executing it
// on any machine with the same sources gives the same bytes.
struct Plan {
  std::vector<PlannedFile> files;  // weights; the index, if any, comes last
  std::vector<std::pair<std::string, std::string>> aliases;  // alias, kept
  std::vector<std::string> notes;
  std::optional<DType> dtype;  // none: keep
  uint64_t tensor_count = 0;
  uint64_t parameter_count = 0;  // elements, buffers left out
  uint64_t data_bytes = 0;
};

struct MergeResult {
  CheckpointFacts checkpoint;
  std::vector<Source> sources;
  Plan plan;
  uint64_t overflowed = 0;         // finite values that became infinite
  uint64_t checked_records = 0;    // CRCs compared
  uint64_t unchecked_records = 0;  // read whole, but their writer left no CRC
  uint64_t checked_elements = 0;   // compared with the model's own copy
  uint64_t reads = 0;              // of payload
  uint64_t bytes_read = 0;
  std::vector<Finding> findings;  // warnings and notes; errors are thrown
};

// Merges the checkpoint at `path` into full weights.
// Errors:  those of Checkpoint::open; Corrupt with findings() where a check
//          failed (nothing is left of the output then); Conflict for an output
//          that is occupied or in use; Limit where the budget is too small;
//          Io; Interrupted.
// Threads: uses options.open.threads of its own.
// Memory:  options.memory_bytes for buffers, and the index.
MergeResult merge(const std::string& path, const MergeOptions& options);

// The plan for an open checkpoint, without reading any payload.
Plan plan_merge(const Checkpoint& checkpoint, const MergeOptions& options);

}  // namespace zckpt
