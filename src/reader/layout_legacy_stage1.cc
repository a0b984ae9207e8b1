// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/arithmetic.h"
#include "reader/concatenation.h"
#include "reader/layout.h"

// Stage 1 before DeepSpeed 0.5.9 (format.md 3.3): each group's flat buffer is
// cut into sub-partitions of equal length, one per communication interval and
// rank; sub-partition number i belongs to rank i mod N.

namespace zckpt {
namespace {

bool fits(const ShardSet& shards) {
  return std::any_of(
      shards.files.begin(), shards.files.end(), [](const ShardFile& file) {
        return file.optim && file.optim->kind == OptimKind::LegacyStage1;
      });
}

std::shared_ptr<const Concatenation> concatenate(
    const std::vector<const ShardFile*>& ranks, size_t group) {
  const std::vector<uint32_t>& counts = ranks[0]->optim->sub_partitions;
  size_t first = 0;
  for (size_t g = 0; g < group; ++g) first += counts[g];
  auto flat = std::make_shared<Concatenation>();
  for (size_t interval = 0; interval < counts[group]; ++interval) {
    for (const ShardFile* rank : ranks) {
      const FlatVector& vector = rank->vectors->masters[first + interval];
      flat->append(rank->source, rank->base + vector.offset, vector.numel,
                   vector.dtype);
    }
  }
  return flat;
}

void read(const std::shared_ptr<const ShardSet>& shards,
          const ModelStates& states, Contents& contents) {
  if (!states.groups) {
    throw Error(ErrorCode::Unsupported,
                "a stage-1 checkpoint of DeepSpeed before 0.3.14 has no "
                "param_shapes: its masters cannot be named");
  }
  const std::vector<const ShardFile*> ranks = ranked_optim(*shards);
  for (const ShardFile* rank : ranks) {
    if (rank->optim->sub_partitions != ranks[0]->optim->sub_partitions ||
        rank->optim->sub_partitions.size() != states.groups->size()) {
      throw Error(ErrorCode::Corrupt,
                  "ranks disagree on the number of sub-partitions",
                  {.file = shards->sources->list()[rank->source].name});
    }
  }
  for (size_t g = 0; g < states.groups->size(); ++g) {
    const auto flat = concatenate(ranks, g);
    uint64_t start = 0;
    for (const NamedShape& shape : (*states.groups)[g]) {
      const uint64_t end = checked_add(start, shape.numel, "a group");
      if (end > flat->numel()) {
        throw Error(ErrorCode::Corrupt,
                    "group " + std::to_string(g) + " needs at least " +
                        std::to_string(end) + " elements, the shards hold " +
                        std::to_string(flat->numel()),
                    {.tensor = shape.name});
      }
      contents.add({.name = shape.name,
                    .role = Role::Master,
                    .dtype = flat->dtype(),
                    .shape = shape.shape,
                    .numel = shape.numel},
                   place_slice(flat, start));
      start = end;
    }
  }
}

}  // namespace

const Layout& legacy_stage1_layout() {
  static constexpr Layout kLayout{"ZeRO-1 (before 0.5.9)", &fits, &read};
  return kLayout;
}

}  // namespace zckpt
