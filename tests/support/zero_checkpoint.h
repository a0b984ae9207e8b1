// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/pickle_builder.h"
#include "support/torch_archive.h"
#include "zckpt/checkpoint.h"

namespace zckpt::test {

// Who wrote the optimizer shards.
enum class Writer { Stage0, Stage1, Stage2, Bf16Optimizer, Stage3, OldStage1 };

enum class StageForm { Enum, Getattr, Integer, Absent };

struct Weight {
  std::string name;
  Py::Shape shape;
};

struct StoredBuffer {
  std::string name;
  DType dtype = DType::F32;
  Py::Shape shape;
  std::string bytes;
};

// What a training run holds and how its DeepSpeed writes it. The defaults are
// those of 0.19.8.
struct ZeroRun {
  Writer writer = Writer::Stage2;
  uint32_t ranks = 2;
  // Trainable, per optimizer group (sub-group for stage 3), in flat order.
  std::vector<std::vector<Weight>> groups;
  std::vector<Weight> frozen;
  std::vector<StoredBuffer> buffers;
  std::vector<std::pair<std::string, std::string>> aliases;  // alias, kept
  std::vector<std::string> module_order;  // default: as above
  std::vector<std::string> states = {"exp_avg", "exp_avg_sq"};
  DType model_dtype = DType::BF16;  // or F32
  std::string version = "0.19.8";
  std::string tag = "global_step3";
  int64_t step = 3;

  StageForm stage_form = StageForm::Enum;
  bool shapes_in_optim = false;  // 0.3.14 to 0.5.x
  bool shapes_as_dict = false;   // one mapping instead of a list
  bool shapes_as_tuples = false;
  bool elastic = false;              // state: a list of dicts, no padding
  bool integer_step = false;         // FusedAdam's
  bool no_group_paddings = false;    // before 0.7.0
  bool narrow_alignment = false;     // N instead of 2 N: before 0.5.2
  bool surplus_padding = false;      // up to 0.16.3: only the last rank strips
  bool parameter_alignment = false;  // 16 bytes, 0.19.7
  bool no_buffer_names = false;      // before 0.4.2
  bool no_shared_params = false;     // before 0.10.1
  bool exclude_frozen = false;
  bool old_placeholders = false;  // stage 3 up to 0.5.x: shape (1,)
  bool archive_prefix = false;    // 0.6.x: "archive" for the file's stem
  bool old_names = false;         // no underscore before optim_states
  bool legacy_container = false;
  bool unfused = false;         // stage 0: lists of masters
  std::vector<size_t> swapped;  // stage 3: sub-groups in NVMe swap files
  uint32_t intervals = 1;       // old stage 1: communication intervals
};

// A run with a bit of everything: odd sizes, two groups, frozen weights, a
// tied head, buffers of three dtypes.
ZeroRun sample_run(Writer writer, uint32_t ranks);

// One tensor as the run knew it.
struct Truth {
  std::string name;
  Role role = Role::Master;
  std::string state;
  DType dtype = DType::F32;
  std::vector<uint64_t> shape;
  std::string bytes;
};

// ZeroCheckpoint makes the shards of a run. Values follow from names, so what
// a reader must answer is known without reading anything; padding holds
// values that no tensor has (zero_partitions.h).
//
//   ZeroCheckpoint checkpoint(sample_run(Writer::Stage3, 3));
//   checkpoint.model(1).root.set("global_steps", 4);
//   checkpoint.write(folder);
class ZeroCheckpoint {
 public:
  struct Shard {
    TorchArchive archive;
    Py root;
  };

  explicit ZeroCheckpoint(ZeroRun run);

  // Shards by file name, to be changed before write().
  std::map<std::string, Shard>& shards() { return shards_; }
  std::string model_name(uint32_t rank = 0) const;
  std::string optim_name(uint32_t rank) const;
  Shard& model(uint32_t rank = 0) { return shards_.at(model_name(rank)); }
  Shard& optim(uint32_t rank) { return shards_.at(optim_name(rank)); }
  // The optimizer's own dict of a rank.
  Py inner(uint32_t rank) {
    return optim(rank).root.at("optimizer_state_dict");
  }

  // Writes folder/tag/... and folder/latest.
  void write(const std::filesystem::path& folder) const;

  const std::vector<Truth>& truth() const { return truth_; }

 private:
  friend class ShardMaker;

  ZeroRun run_;
  std::map<std::string, Shard> shards_;
  std::map<std::string, std::string> swap_files_;  // relative name -> bytes
  std::vector<Truth> truth_;
};

}  // namespace zckpt::test
