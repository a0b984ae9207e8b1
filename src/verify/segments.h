// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reader/shards.h"
#include "verify/values.h"
#include "zckpt/checkpoint.h"

namespace zckpt {

enum class Content : uint8_t {
  Elements,  // of a tensor
  Behind,    // a strided view: the storage from its first to its last element
  Padding,   // of a partition, which has to be zero
};

// A run of elements in one file.
struct Segment {
  uint64_t offset = 0;
  uint64_t numel = 0;
  uint64_t first = 0;  // element of the tensor
  ValueChecks::Id tensor;
  DType dtype = DType::F32;
  Content content = Content::Elements;
};

// A file whose segments are wanted.
struct SegmentSource {
  bool sidecar = false;
  std::optional<uint32_t> number;  // of the checkpoint or the sidecar
  const ShardFile* shard = nullptr;
};

// For each of `sources` what lies in it, by offset: elements of tensors, and
// padding that has to be zero. One walk over the extents of all tensors serves
// all of them.
std::vector<std::vector<Segment>> find_segments(
    const Checkpoint& checkpoint, const Checkpoint* sidecar,
    const ValueChecks& values, const std::vector<SegmentSource>& sources);

}  // namespace zckpt
