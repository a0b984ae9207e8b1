// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/arithmetic.h"
#include "reader/concatenation.h"
#include "reader/layout.h"

// ZeRO stages 1 and 2 and BF16_Optimizer (format.md 3.1, 3.2, 3.4): the
// parameters of an optimizer group, in the order of param_shapes, form one
// flat buffer that is padded at its end and cut into N equal partitions.
// Shards of ZeRO-1/2 hold masters with the padding cut off; moments, and
// everything of BF16_Optimizer, with it. Since 0.19.7 each parameter may be
// followed by alignment padding, which the shards list.

namespace zckpt {
namespace {

bool fits(const ShardSet& shards) {
  return std::any_of(
      shards.files.begin(), shards.files.end(), [](const ShardFile& file) {
        return file.optim && (file.optim->kind == OptimKind::Zero12 ||
                              file.optim->kind == OptimKind::Bf16);
      });
}

// Elements of group `group` on `rank` that are no padding at the end.
uint64_t stripped_numel(const ShardFile& rank, size_t group) {
  const uint64_t numel = rank.vectors->masters[group].numel;
  const OptimFacts& facts = *rank.optim;
  if (facts.kind != OptimKind::Bf16 || group >= facts.group_paddings.size()) {
    return numel;
  }
  const int64_t padding = facts.group_paddings[group];
  return padding > 0 ? numel - std::min(numel, static_cast<uint64_t>(padding))
                     : numel;
}

// Where each parameter of the group starts, and where the last one ends.
std::vector<uint64_t> parameter_starts(const std::vector<NamedShape>& shapes,
                                       const OptimFacts& facts, size_t group) {
  std::vector<uint64_t> starts{0};
  for (size_t k = 0; k < shapes.size(); ++k) {
    uint64_t next = checked_add(starts.back(), shapes[k].numel, "a group");
    if (group < facts.alignment_paddings.size() &&
        k < facts.alignment_paddings[group].size()) {
      next = checked_add(next, facts.alignment_paddings[group][k], "a group");
    }
    starts.push_back(next);
  }
  return starts;
}

// The masters of one group on all ranks.
std::shared_ptr<const Concatenation> concatenate_masters(
    const std::vector<const ShardFile*>& ranks, size_t group) {
  auto flat = std::make_shared<Concatenation>();
  for (const ShardFile* rank : ranks) {
    const FlatVector& vector = rank->vectors->masters[group];
    flat->append(rank->source, rank->base + vector.offset,
                 stripped_numel(*rank, group), vector.dtype);
  }
  return flat;
}

// State number `state` of one group on all ranks, cut like the masters; none
// where some rank lacks it or holds another length (moment-missing and
// moment-length of verify). A state is as long as its master (elastic) or as
// the padded partition (rigid); Muon's momentum is neither and cannot be cut
// (format.md 3.7).
std::shared_ptr<const Concatenation> concatenate_state(
    const std::vector<const ShardFile*>& ranks, size_t group, size_t state,
    uint64_t need) {
  const std::string& name = ranks[0]->vectors->states[state].name;
  const uint64_t n = ranks.size();
  auto flat = std::make_shared<Concatenation>();
  for (const ShardFile* rank : ranks) {
    const auto& states = rank->vectors->states;
    if (states.size() <= state || states[state].name != name) return nullptr;
    const FlatVector& vector = states[state].vectors[group];
    const uint64_t stripped = stripped_numel(*rank, group);
    if (vector.numel != stripped && vector.numel != align_up(need, 2 * n) / n &&
        vector.numel != align_up(need, n) / n) {
      return nullptr;
    }
    flat->append(rank->source, rank->base + vector.offset,
                 std::min(stripped, vector.numel), vector.dtype);
  }
  return flat;
}

void add_group(const std::vector<NamedShape>& shapes,
               const std::vector<uint64_t>& starts,
               const std::shared_ptr<const Concatenation>& flat, Role role,
               const std::string& state, Contents& contents) {
  for (size_t k = 0; k < shapes.size(); ++k) {
    contents.add({.name = shapes[k].name,
                  .role = role,
                  .state = state,
                  .dtype = flat->dtype(),
                  .shape = shapes[k].shape,
                  .numel = shapes[k].numel},
                 place_slice(flat, starts[k]));
  }
}

void require_equal_groups(const ShardSet& shards, const ModelStates& states,
                          const std::vector<const ShardFile*>& ranks) {
  for (const ShardFile* rank : ranks) {
    if (rank->vectors->masters.size() != states.groups->size()) {
      throw Error(ErrorCode::Corrupt,
                  "param_shapes lists " +
                      std::to_string(states.groups->size()) +
                      " groups, this shard holds " +
                      std::to_string(rank->vectors->masters.size()),
                  {.file = shards.sources->list()[rank->source].name});
    }
  }
}

void read(const std::shared_ptr<const ShardSet>& shards,
          const ModelStates& states, Contents& contents) {
  if (!states.groups) {
    throw Error(ErrorCode::Corrupt,
                "expected param_shapes, without which the shards have no "
                "names; found none");
  }
  const std::vector<const ShardFile*> ranks = ranked_optim(*shards);
  require_equal_groups(*shards, states, ranks);
  for (size_t g = 0; g < states.groups->size(); ++g) {
    const auto& shapes = (*states.groups)[g];
    const auto starts = parameter_starts(shapes, *ranks[0]->optim, g);
    const uint64_t need = starts.back();
    const auto masters = concatenate_masters(ranks, g);
    if (masters->numel() < need) {
      throw Error(ErrorCode::Corrupt, "group " + std::to_string(g) + " needs " +
                                          std::to_string(need) +
                                          " elements, the shards hold " +
                                          std::to_string(masters->numel()));
    }
    add_group(shapes, starts, masters, Role::Master, "", contents);
    for (size_t s = 0; s < ranks[0]->vectors->states.size(); ++s) {
      const auto state = concatenate_state(ranks, g, s, need);
      if (state == nullptr || state->numel() < need) continue;
      add_group(shapes, starts, state, Role::State,
                ranks[0]->vectors->states[s].name, contents);
    }
  }
}

}  // namespace

const Layout& zero12_layout() {
  static constexpr Layout kLayout{"ZeRO-1/2", &fits, &read};
  return kLayout;
}

}  // namespace zckpt
