// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reader/layout.h"
#include "zckpt/checkpoint.h"

namespace zckpt {

// What a Checkpoint is made of. Built once, then immutable.
class CheckpointData {
 public:
  CheckpointFacts facts;
  std::shared_ptr<const ShardSet> shards;  // null for a weights folder
  std::shared_ptr<const SourceSet> sources;
  Contents contents;
};

// Index of a folder that was found. `shards` is null for a weights folder,
// else what read_shards gave. Errors: as Checkpoint::open.
std::shared_ptr<const CheckpointData> build_checkpoint(
    const CheckpointPath& where, const std::shared_ptr<const ShardSet>& shards);

// The gathered weights that lie in a checkpoint's folder, beside its tag
// folder: model*.safetensors or pytorch_model*.bin; null where there are none.
// Errors: as Checkpoint::open.
std::shared_ptr<const CheckpointData> open_weights_beside(
    const std::string& folder);

// The adapter that PEFT saved in `folder`: adapter_model.safetensors, or
// adapter_model.bin; null where there is neither. Errors: as Checkpoint::open.
std::shared_ptr<const CheckpointData> open_adapter_weights(
    const std::string& folder);

// Refuses to read elements [first, first + numel) as `dtype` into `out_bytes`:
// Invalid for a range outside of the tensor or a buffer of another size,
// Unsupported for a conversion that is not known.
void check_read(const Tensor& tensor, uint64_t first, uint64_t numel,
                DType dtype, size_t out_bytes);

// Facts that shards tell before any layout is chosen.
CheckpointFacts facts_of(const ShardSet& shards);

}  // namespace zckpt
