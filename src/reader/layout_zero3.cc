// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/arithmetic.h"
#include "reader/layout.h"

// ZeRO stage 3 (format.md 3.5): every parameter of n elements is cut into N
// partitions of ceil(n / N); rank d holds partition d of each parameter, one
// after the other, in one vector per sub-group. The end of a partition that
// reaches past n is uninitialised memory and belongs to no extent.

namespace zckpt {
namespace {

// The vectors of one kind (masters, or one state) on all ranks, each rank's
// sub-groups seen as one long vector.
class RankVectors {
 public:
  RankVectors(std::shared_ptr<const ShardSet> shards,
              std::vector<const ShardFile*> ranks, std::optional<size_t> state,
              std::vector<uint64_t> group_starts)
      : shards_(std::move(shards)),
        ranks_(std::move(ranks)),
        state_(state),
        group_starts_(std::move(group_starts)) {}

  uint64_t rank_count() const { return ranks_.size(); }
  DType dtype() const { return vectors(0)[0].dtype; }

  // Whether every rank holds elements of the same dtype.
  bool of_one_dtype() const {
    const VectorTable* seen = nullptr;  // equal tables are one object
    for (uint64_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank]->vectors.get() == seen) continue;
      seen = ranks_[rank]->vectors.get();
      for (const FlatVector& vector : vectors(rank)) {
        if (vector.dtype != dtype()) return false;
      }
    }
    return true;
  }

  // Extents of elements [offset, offset + numel) of `rank`'s long vector.
  void extents(uint64_t rank, uint64_t offset, uint64_t numel,
               const ExtentSink& sink) const {
    size_t group = static_cast<size_t>(
        std::upper_bound(group_starts_.begin(), group_starts_.end(), offset) -
        group_starts_.begin() - 1);
    while (numel != 0) {
      const uint64_t within = offset - group_starts_[group];
      const uint64_t left = group_starts_[group + 1] - offset;
      const uint64_t take = std::min(numel, left);
      if (take != 0) sink(extent(rank, group, within, take));
      offset += take;
      numel -= take;
      ++group;
    }
  }

 private:
  const std::vector<FlatVector>& vectors(uint64_t rank) const {
    const VectorTable& table = *ranks_[rank]->vectors;
    return state_ ? table.states[*state_].vectors : table.masters;
  }

  Extent extent(uint64_t rank, size_t group, uint64_t within,
                uint64_t numel) const {
    const ShardFile& shard = *ranks_[rank];
    const FlatVector& vector = vectors(rank)[group];
    const uint64_t start = within * size_of(vector.dtype);
    if (vector.numel == 0 && !vector.swap_id.empty()) {
      // Swapped out to NVMe: the vector is a file of its own.
      const auto source =
          shards_->swap_source(static_cast<uint32_t>(rank), vector.swap_id);
      if (source) return {.source = *source, .offset = start, .numel = numel};
    }
    if (within > vector.numel || numel > vector.numel - within) {
      throw Error(ErrorCode::Corrupt,
                  "rank " + std::to_string(rank) + " holds " +
                      std::to_string(vector.numel) + " elements of sub-group " +
                      std::to_string(group) + ", expected at least " +
                      std::to_string(within + numel),
                  {.file = shards_->sources->list()[shard.source].name});
    }
    return {.source = shard.source,
            .offset = shard.base + vector.offset + start,
            .numel = numel};
  }

  std::shared_ptr<const ShardSet> shards_;
  std::vector<const ShardFile*> ranks_;
  std::optional<size_t> state_;         // index into VectorTable::states
  std::vector<uint64_t> group_starts_;  // one more than groups
};

// A parameter cut over the ranks, `offset` elements into each rank's vector.
class PartitionedPlacement final : public Placement {
 public:
  PartitionedPlacement(std::shared_ptr<const RankVectors> vectors,
                       uint64_t offset, uint64_t numel)
      : vectors_(std::move(vectors)),
        offset_(offset),
        partition_(ceil_div(numel, vectors_->rank_count())) {}

  void extents(uint64_t first, uint64_t numel,
               const ExtentSink& sink) const override {
    while (numel != 0) {
      const uint64_t rank = first / partition_;
      const uint64_t within = first % partition_;
      const uint64_t take = std::min(numel, partition_ - within);
      vectors_->extents(rank, offset_ + within, take, sink);
      first += take;
      numel -= take;
    }
  }

 private:
  std::shared_ptr<const RankVectors> vectors_;
  uint64_t offset_;
  uint64_t partition_;
};

bool fits(const ShardSet& shards) {
  return std::any_of(
      shards.files.begin(), shards.files.end(), [](const ShardFile& file) {
        return file.optim && file.optim->kind == OptimKind::Zero3;
      });
}

// Whether every rank holds state number `state` under the same name. A state
// that some rank lacks cannot be put together (moment-missing of verify).
bool on_every_rank(const std::vector<const ShardFile*>& ranks, size_t state) {
  const std::string& name = ranks[0]->vectors->states[state].name;
  return std::all_of(ranks.begin(), ranks.end(), [&](const ShardFile* rank) {
    const auto& states = rank->vectors->states;
    return rank->vectors == ranks[0]->vectors ||
           (state < states.size() && states[state].name == name);
  });
}

// Where each sub-group starts in a rank's long vector. param_shapes tells
// (a sub-group that was swapped out has no length of its own); where it lists
// another number of groups than the shards hold, their lengths do.
std::vector<uint64_t> group_starts(const ModelStates& states,
                                   const VectorTable& first, uint64_t ranks) {
  std::vector<uint64_t> starts{0};
  if (states.groups->size() == first.masters.size()) {
    for (const auto& group : *states.groups) {
      uint64_t numel = 0;
      for (const NamedShape& shape : group) {
        numel = checked_add(numel, ceil_div(shape.numel, ranks), "a group");
      }
      starts.push_back(checked_add(starts.back(), numel, "the groups"));
    }
  } else {
    for (const FlatVector& vector : first.masters) {
      starts.push_back(checked_add(starts.back(), vector.numel, "the groups"));
    }
  }
  return starts;
}

void read(const std::shared_ptr<const ShardSet>& shards,
          const ModelStates& states, Contents& contents) {
  if (!states.groups) {
    throw Error(ErrorCode::Corrupt,
                "expected param_shapes, without which the shards have no "
                "names; found none");
  }
  const std::vector<const ShardFile*> ranks = ranked_optim(*shards);
  const VectorTable& first = *ranks[0]->vectors;
  for (const ShardFile* rank : ranks) {
    // Equal tables are one object, so this is cheap.
    if (rank->vectors->masters.size() != first.masters.size()) {
      throw Error(ErrorCode::Corrupt,
                  "this rank holds another number of groups than rank 0",
                  {.file = shards->sources->list()[rank->source].name});
    }
  }
  const auto starts = group_starts(states, first, ranks.size());
  if (first.masters.empty()) return;

  const auto add = [&](std::optional<size_t> state, Role role,
                       const std::string& state_name) {
    const auto vectors =
        std::make_shared<const RankVectors>(shards, ranks, state, starts);
    if (!vectors->of_one_dtype()) {
      if (state) return;
      throw Error(ErrorCode::Corrupt,
                  "the shards hold masters of different dtypes",
                  {.file = shards->where.tag});
    }
    uint64_t offset = 0;
    for (const auto& group : *states.groups) {
      for (const NamedShape& shape : group) {
        contents.add({.name = shape.name,
                      .role = role,
                      .state = state_name,
                      .dtype = vectors->dtype(),
                      .shape = shape.shape,
                      .numel = shape.numel},
                     std::make_unique<PartitionedPlacement>(vectors, offset,
                                                            shape.numel));
        offset = checked_add(offset, ceil_div(shape.numel, ranks.size()),
                             "the groups");
      }
    }
    if (offset > starts.back()) {
      throw Error(ErrorCode::Corrupt,
                  "param_shapes needs " + std::to_string(offset) +
                      " elements per rank, the shards hold " +
                      std::to_string(starts.back()));
    }
  };
  add(std::nullopt, Role::Master, "");
  for (size_t s = 0; s < first.states.size(); ++s) {
    if (on_every_rank(ranks, s)) add(s, Role::State, first.states[s].name);
  }
}

}  // namespace

const Layout& zero3_layout() {
  static constexpr Layout kLayout{"ZeRO-3", &fits, &read};
  return kLayout;
}

}  // namespace zckpt
