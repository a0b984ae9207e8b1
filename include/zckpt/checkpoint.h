// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zckpt/dtype.h"
#include "zckpt/finding.h"
#include "zckpt/observer.h"

namespace zckpt {

// What a tensor is to the training run. A name can exist in several roles; the
// order is that of trust: looking a name up without a role gives the first.
enum class Role : uint8_t {
  Master,  // trainable weight as the optimizer holds it, fp32 as a rule
  Frozen,  // weight that is not trained, in the model's dtype
  Buffer,  // persistent buffer, in its own dtype
  Model,   // the weights that the model computes with: 16-bit copies as a rule
  State,   // optimizer state; `state` says which ("exp_avg", ...)
};

std::string_view to_string(Role role);

// An extent is where elements lie: `count` runs of `numel` elements each, the
// first at byte `offset` of source number `source`, each next one `stride`
// bytes further on. A plain run has count 1. A tensor's elements in C order are
// the concatenation of its extents; padding belongs to none.
struct Extent {
  uint32_t source = 0;
  uint64_t offset = 0;
  uint64_t count = 1;
  uint64_t numel = 0;
  uint64_t stride = 0;
};

using ExtentSink = std::function<void(const Extent&)>;

struct Tensor {
  std::string name;  // as the training run called it
  Role role = Role::Master;
  std::string state;  // for Role::State
  DType dtype = DType::F32;
  std::vector<uint64_t> shape;
  uint64_t numel = 0;
};

// A file that extents point into. `name` is relative to the checkpoint's
// folder, with forward slashes.
struct Source {
  std::string name;
  uint64_t size_bytes = 0;
};

struct CheckpointFacts {
  std::string folder;     // the folder that holds the tag folder
  std::string tag;        // empty for a plain weights folder
  std::string framework;  // deepspeed, hf, accelerate, lightning, weights
  std::string layout;     // "ZeRO-3", "ZeRO-2", "BF16_Optimizer", ...
  std::optional<int> stage;
  uint32_t world_size = 0;      // data-parallel ranks whose shards make it up
  std::optional<int64_t> step;  // DeepSpeed's global_steps
  // The optimizer's own count of updates, alike in all its groups.
  std::optional<double> optimizer_step;
  std::string deepspeed_version;
  std::optional<DType> dtype;         // of the weights the model computes with
  std::optional<DType> master_dtype;  // of the masters
  // alias -> kept name, in the order of the file.
  std::vector<std::pair<std::string, std::string>> aliases;
  // Names as state_dict() lists them, aliases included.
  std::vector<std::string> module_order;
  // The save left the frozen weights out (exclude_frozen_parameters).
  bool frozen_excluded = false;
  // Remarks for a person: which folder was taken and why, what was ignored.
  std::vector<std::string> notes;
};

struct OpenOptions {
  std::string tag;                // empty: as `latest` or the folders say
  std::vector<std::string> also;  // further folders with shards of this save
  int threads = 0;                // 0: one per core, at most 4
  const StopToken* stop = nullptr;
};

class CheckpointData;

// Checkpoint is one checkpoint seen as tensors over sources: the index only,
// payloads are read when asked for.
// Files are found again at their places, and must not have changed meanwhile:
// one that was replaced or written to is a Conflict when it is read.
// Errors:  open throws Io, Corrupt, Unsupported (a layout that is not read
//          yet, by its name), Invalid (not a checkpoint); where several things
//          are wrong, Error::findings() lists all of them.
// Threads: immutable once opened; const methods may run concurrently.
// Memory:  grows with parameters plus ranks, not with their product; at most
//          128 files are open at a time.
class Checkpoint {
 public:
  // `path` is whatever the user has: a run folder, one checkpoint, the folder
  // with `latest`, a tag folder, or a folder of Hugging Face weights.
  static Checkpoint open(const std::string& path,
                         const OpenOptions& options = {});
  explicit Checkpoint(std::shared_ptr<const CheckpointData> data);

  const CheckpointFacts& facts() const;
  std::span<const Tensor> tensors() const;
  std::span<const Source> sources() const;

  // The tensor of this name: with this role, or the best there is (see Role).
  const Tensor* find(std::string_view name) const;
  const Tensor* find(std::string_view name, Role role,
                     std::string_view state = {}) const;

  // Gives the extents of elements [first, first + numel) of `tensor`, in
  // order; computed on demand. REQUIRES: `tensor` is one of tensors(), the
  // range lies within it.
  void extents(const Tensor& tensor, uint64_t first, uint64_t numel,
               const ExtentSink& sink) const;
  // Reads elements [first, first + numel) as they are stored.
  // REQUIRES: out.size() == numel * size_of(tensor.dtype).
  void read(const Tensor& tensor, uint64_t first, uint64_t numel,
            std::span<std::byte> out) const;
  // The same, converted to `dtype` as merge converts (round to nearest even;
  // what is too large becomes infinite). Errors: Unsupported where the stored
  // dtype cannot be converted. REQUIRES: out.size() == numel * size_of(dtype).
  void read(const Tensor& tensor, uint64_t first, uint64_t numel, DType dtype,
            std::span<std::byte> out) const;

  // For the library's own modules.
  const CheckpointData& data() const { return *data_; }
  std::shared_ptr<const CheckpointData> shared_data() const { return data_; }

 private:
  std::shared_ptr<const CheckpointData> data_;
};

}  // namespace zckpt
