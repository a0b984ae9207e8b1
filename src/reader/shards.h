// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reader/discovery.h"
#include "reader/file_names.h"
#include "reader/sources.h"
#include "reader/torch_file.h"
#include "zckpt/dtype.h"
#include "zckpt/error.h"

namespace zckpt {

// What went wrong with one file. Damage in one file never hides what another
// one says, so reading a folder collects faults instead of throwing.
struct FileFault {
  std::string code;  // a finding code: file-truncated, pickle-invalid, ...
  std::string message;
  std::string tensor;
  std::optional<uint64_t> offset;
};

// A contiguous vector inside one shard. `offset` is relative to the shard's
// `base`, so that ranks with equal layouts can share one table of vectors.
struct FlatVector {
  uint64_t offset = 0;
  uint64_t numel = 0;
  DType dtype = DType::F32;
  std::string swap_id;  // ds_id: names the NVMe swap file of an empty vector

  friend bool operator==(const FlatVector&, const FlatVector&) = default;
};

struct NamedVectors {
  std::string name;
  std::vector<FlatVector> vectors;  // per group or sub-group

  friend bool operator==(const NamedVectors&, const NamedVectors&) = default;
};

// Where the payloads of one shard lie. Shared between ranks whose tables are
// equal: memory grows with parameters plus ranks.
struct VectorTable {
  std::vector<FlatVector> masters;    // optim file: per group
  std::vector<NamedVectors> states;   // optim file: exp_avg, ...
  std::vector<FlatVector> fragments;  // model file: frozen, as listed

  friend bool operator==(const VectorTable&, const VectorTable&) = default;
};

// Which wrapper wrote an optimizer shard (format.md 3).
enum class OptimKind : uint8_t {
  Zero3,         // fp32_flat_groups
  Zero12,        // single_partition_of_fp32_groups, padding stripped
  Bf16,          // the same without zero_stage: padding not stripped
  LegacyStage1,  // local_sub_partitions_of_fp32_groups
  None,          // {'optimizer': None} or empty: nothing in it
};

// Where param_slice_mappings put a parameter in a rank's partition.
struct Slice {
  uint64_t name = 0;  // its digest
  uint64_t start = 0;
  uint64_t numel = 0;

  friend bool operator==(const Slice&, const Slice&) = default;
  friend bool operator<(const Slice& a, const Slice& b) {
    return std::tie(a.name, a.start, a.numel) <
           std::tie(b.name, b.start, b.numel);
  }
};

struct OptimFacts {
  OptimKind kind = OptimKind::None;
  std::optional<int64_t> zero_stage;  // as the file says
  std::vector<int64_t> partition_count;
  std::vector<int64_t> group_paddings;
  // Per group, per parameter: elements of padding behind it (0.19.8).
  std::vector<std::vector<uint64_t>> alignment_paddings;
  // Legacy stage 1: per group the sub-partitions, comm interval after
  // interval; masters lists them all, group after group.
  std::vector<uint32_t> sub_partitions;
  std::string ds_version;
  uint64_t config_digest = 0;
  // Of what all ranks of a save have alike: param_groups (learning rates and
  // the like), and the loss scaler; 0 where it is not there.
  uint64_t settings_digest = 0;
  uint64_t scaler_digest = 0;
  bool has_partition_groups = false;  // AutoEP (format.md 3.7)
  bool elastic_state = false;
  // Per group: param_slice_mappings. Evidence, never the source of an extent.
  std::vector<std::vector<Slice>> slices;
  // What torch's own optimizer lists: its parameters, which are the groups of
  // `masters`, and whether it has betas, hence moments.
  std::optional<uint64_t> listed_params;
  bool has_betas = false;
  // The optimizer's step count, of the first group that has one.
  std::optional<double> step;
};

struct ModelFacts {
  std::optional<int64_t> global_steps;
  std::optional<int64_t> skipped_steps;
  std::optional<int64_t> dp_world_size;
  std::optional<int64_t> mp_world_size;
  std::string ds_version;
  std::optional<int64_t> config_stage;  // zero_optimization.stage
  std::optional<bool> config_bf16;      // bf16.enabled
  uint64_t config_digest = 0;
  uint64_t shapes_digest = 0;
  uint64_t frozen_digest = 0;
  bool has_experts = false;           // num_experts or ds_autoep_layers
  std::vector<int64_t> num_experts;   // of each MoE layer
  bool has_module = true;             // None in pipeline files
  bool has_scheduler_config = false;  // ds_config brings its own scheduler
  bool has_optimizer = false;         // stage 0 keeps its optimizer here
  bool quantized_frozen = false;      // zero_quantized_nontrainable_weights
  bool has_tensor_parallel = false;   // universal_checkpoint_info (AutoTP)
  bool is_placeholder = false;  // Nebula: an empty string in a file's place
};

// One shard file and what it says of itself.
struct ShardFile {
  ShardName name;
  uint32_t source = 0;
  std::string path;
  std::string archive_prefix;
  uint64_t base = 0;
  uint64_t size_bytes = 0;
  std::optional<FileStamp> stamp;  // none: it could not be opened
  uint64_t pickle_bytes = 0;
  // Of the sizes and CRCs of all storages; 0 where any CRC is not there.
  uint64_t content_digest = 0;
  std::shared_ptr<const VectorTable> vectors;
  // Keys that loading reads without asking and that are not there.
  std::vector<std::string> missing_keys;
  // "module name" of all that unpickling would import, sorted; shared between
  // ranks like `vectors`. getattr is left out where it only names a stage.
  std::shared_ptr<const std::vector<std::string>> globals;
  std::optional<FileFault> fault;
  std::optional<ModelFacts> model;
  std::optional<OptimFacts> optim;
};

// An expert, pipeline-layer or FastPersist file: known by its name alone.
struct OtherFile {
  ShardName name;
  std::string path;
};

// ShardSet is a tag folder (with its --also folders) as read: every shard
// file with its facts or its fault. Indices by rank are made from names, which
// are numbers, never from the order of a listing.
struct ShardSet {
  CheckpointPath where;
  std::shared_ptr<SourceSet> sources;
  std::vector<ShardFile> files;   // model and optim files, sorted by rank
  std::vector<OtherFile> others;  // by name, each once
  bool has_universal = false;     // a folder zero/, as ds_to_universal makes it
  std::vector<Finding> findings;  // shard-conflict and the like
  // NVMe swap files: "rank00/1_1.tensor.swp" -> source.
  std::map<std::string, uint32_t> swap_files;

  const ShardFile* model(std::optional<uint32_t> rank,
                         uint32_t mp_rank = 0) const;
  const ShardFile* optim(uint32_t rank) const;
  // The file whose names and shapes count: rank 0's, else the first sound one.
  const ShardFile* leading_model() const;
  // The swap file of an empty vector, or nothing.
  std::optional<uint32_t> swap_source(uint32_t rank,
                                      const std::string& swap_id) const;
};

// Reads every shard of `where`, several files at a time. Throws Io only where
// a folder itself cannot be read.
ShardSet read_shards(const CheckpointPath& where, const OpenOptions& options);

}  // namespace zckpt
