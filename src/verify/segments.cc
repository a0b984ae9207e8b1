// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/segments.h"

#include <algorithm>

#include "zckpt/error.h"

namespace zckpt {
namespace {

// Walking over a view that repeats itself ends here.
constexpr uint64_t kMostRuns = uint64_t{1} << 22;

void sort(std::vector<Segment>& list) {
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
}

// What a partition of stages 1 and 2 holds beside its parameters is zero
// (format.md 3.2), in the masters and in every state cut like them. Stage 3
// promises nothing.
void add_padding(const ShardFile& shard, std::vector<Segment>& list) {
  if (!shard.optim || list.empty()) return;
  const OptimKind kind = shard.optim->kind;
  if (kind != OptimKind::Zero12 && kind != OptimKind::Bf16) return;
  const VectorTable& table = *shard.vectors;
  std::vector<Segment> padding;
  const auto add = [&](const FlatVector& vector) {
    const uint64_t size = size_of(vector.dtype);
    uint64_t next = shard.base + vector.offset;
    const uint64_t end = next + vector.numel * size;
    auto it = std::lower_bound(
        list.begin(), list.end(), next,
        [](const Segment& s, uint64_t offset) { return s.offset < offset; });
    const auto gap = [&](uint64_t until) {
      if (until <= next) return;
      padding.push_back({.offset = next,
                         .numel = (until - next) / size,
                         .tensor = {},
                         .dtype = vector.dtype,
                         .content = Content::Padding});
    };
    // A vector that none of our tensors lies in is no partition.
    if (it == list.end() || it->offset >= end) return;
    for (; it != list.end() && it->offset < end; ++it) {
      gap(it->offset);
      next = std::max(next, it->offset + it->numel * size_of(it->dtype));
    }
    gap(end);
  };
  for (const FlatVector& vector : table.masters) add(vector);
  for (const NamedVectors& state : table.states) {
    for (const FlatVector& vector : state.vectors) add(vector);
  }
  list.insert(list.end(), padding.begin(), padding.end());
  sort(list);
}

void collect_tensor(const Checkpoint& home, ValueChecks::Id id,
                    const std::vector<size_t>& slots,
                    std::vector<std::vector<Segment>>& segments) {
  const Tensor& tensor = home.tensors()[id.index];
  uint64_t first = 0;
  home.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
    if (const size_t slot = slots[extent.source]; slot != 0) {
      segments[slot - 1].push_back({.offset = extent.offset,
                                    .numel = extent.numel,
                                    .first = first,
                                    .tensor = id,
                                    .dtype = tensor.dtype});
    }
    first += extent.numel;
  });
}

void collect_view(const Checkpoint& home, ValueChecks::Id id,
                  const std::vector<size_t>& slots,
                  std::vector<std::vector<Segment>>& segments) {
  const Tensor& tensor = home.tensors()[id.index];
  const uint64_t size = size_of(tensor.dtype);
  size_t slot = 0;
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  uint64_t runs = 0;
  try {
    home.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
      slot = slots[extent.source];
      begin = std::min(begin, extent.offset);
      end = std::max(end, extent.offset + (extent.count - 1) * extent.stride +
                              extent.numel * size);
      if (slot == 0 || ++runs > kMostRuns) {
        throw Error(ErrorCode::Limit, "enough is known");
      }
    });
  } catch (const Error&) {
    if (runs <= kMostRuns) return;
  }
  if (slot == 0) return;
  segments[slot - 1].push_back({.offset = begin,
                                .numel = (end - begin) / size,
                                .tensor = id,
                                .dtype = tensor.dtype,
                                .content = Content::Behind});
}

}  // namespace

std::vector<std::vector<Segment>> find_segments(
    const Checkpoint& checkpoint, const Checkpoint* sidecar,
    const ValueChecks& values, const std::vector<SegmentSource>& sources) {
  std::vector<std::vector<Segment>> segments(sources.size());
  for (const bool beside : {false, true}) {
    if (beside && sidecar == nullptr) break;
    const Checkpoint& home = beside ? *sidecar : checkpoint;
    // Slots of the sources that are wanted, one more than the index.
    std::vector<size_t> slots(home.sources().size());
    bool any = false;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!sources[i].number || sources[i].sidecar != beside) continue;
      slots[*sources[i].number] = i + 1;
      any = true;
    }
    if (!any) continue;
    for (uint32_t t = 0; t < home.tensors().size(); ++t) {
      const ValueChecks::Id id{beside, t};
      switch (values.form_of(id)) {
        case ValueChecks::Form::Plain:
          collect_tensor(home, id, slots, segments);
          break;
        case ValueChecks::Form::Strided:
          collect_view(home, id, slots, segments);
          break;
        case ValueChecks::Form::Unknown: break;
      }
    }
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    sort(segments[i]);
    if (sources[i].shard != nullptr) {
      add_padding(*sources[i].shard, segments[i]);
    }
  }
  return segments;
}

}  // namespace zckpt
