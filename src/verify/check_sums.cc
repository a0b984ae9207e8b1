// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "base/arithmetic.h"
#include "base/bytes.h"
#include "base/text.h"
#include "reader/layout.h"
#include "verify/checks.h"

// Do the partitions add up? For stage 3 every rank must hold exactly what the
// parameters need; for stages 1 and 2 the ranks together, and each rank must
// begin where the equal cut puts it (format.md 3.2, 3.5).

namespace zckpt {
namespace {

using Version = std::array<int, 3>;

// {0, 16, 4} of "0.16.4+unknown"; nothing where there is no version.
std::optional<Version> parse_version(const std::string& text) {
  Version version{};
  const char* next = text.c_str();
  for (size_t i = 0; i < version.size() && *next >= '0' && *next <= '9'; ++i) {
    char* end = nullptr;
    version[i] = static_cast<int>(std::strtol(next, &end, 10));
    next = *end == '.' ? end + 1 : end;
  }
  if (next == text.c_str()) return std::nullopt;
  return version;
}

class SumChecker {
 public:
  SumChecker(const ShardSet& shards, const ModelStates& states)
      : shards_(shards),
        states_(states),
        ranks_(ranked_optim(shards)),
        version_(parse_version(ranks_[0]->optim->ds_version)) {}

  std::vector<Finding> run() {
    switch (ranks_[0]->optim->kind) {
      case OptimKind::Zero3: check_stage3(); break;
      case OptimKind::Zero12:
      case OptimKind::Bf16:
        if (!check_group_counts()) break;
        for (size_t g = 0; g < states_.groups->size(); ++g) check_group(g);
        break;
      case OptimKind::LegacyStage1:  // the layout checks what it can
      case OptimKind::None: break;
    }
    return std::move(findings_);
  }

 private:
  Finding& report(std::string code, std::string message) {
    findings_.push_back({.code = std::move(code),
                         .severity = Severity::Error,
                         .message = std::move(message)});
    return findings_.back();
  }

  void blame(Finding& finding, const ShardFile& file) const {
    finding.file = shards_.sources->list()[file.source].name;
    finding.rank = file.name.rank;
  }

  bool before(const Version& version) const {
    return version_ && *version_ < version;
  }

  // All ranks are equal here (check_shards), so rank 0 speaks for them.
  void check_stage3() {
    const auto& masters = ranks_[0]->vectors->masters;
    const auto& groups = *states_.groups;
    const uint64_t n = ranks_.size();
    if (groups.size() == masters.size()) {
      for (size_t g = 0; g < groups.size(); ++g) {
        uint64_t need = 0;
        for (const NamedShape& shape : groups[g]) {
          need += ceil_div(shape.numel, n);
        }
        if (masters[g].numel == 0 && need != 0 && !masters[g].swap_id.empty()) {
          check_swapped(g, need);
        } else {
          compare("sub-group " + std::to_string(g), need, masters[g].numel);
        }
      }
      return;
    }
    // Another number of sub-groups than lists: they still hold whole
    // parameters, in the lists' order.
    uint64_t need = 0;
    uint64_t have = 0;
    size_t g = 0;
    for (const auto& group : groups) {
      for (const NamedShape& shape : group) {
        while (g < masters.size() && have <= need) have += masters[g++].numel;
        need += ceil_div(shape.numel, n);
        if (need <= have || g == masters.size()) continue;
        report("group-length-mismatch",
               "sub-group " + std::to_string(g - 1) +
                   " ends inside this parameter: param_shapes is in another "
                   "order than the shards")
            .tensor = shape.name;
        return;
      }
    }
    for (; g < masters.size(); ++g) have += masters[g].numel;
    compare("all sub-groups", need, have);
  }

  void compare(const std::string& what, uint64_t need, uint64_t have) {
    if (have < need) {
      report("partition-short",
             "expected " + std::to_string(need) + " elements in " + what +
                 " of every rank, found " + std::to_string(have));
    } else if (have > need) {
      report("partition-surplus",
             "expected " + std::to_string(need) + " elements in " + what +
                 " of every rank, found " + std::to_string(have));
    }
  }

  // An empty sub-group was swapped out to NVMe: its file must be there.
  void check_swapped(size_t group, uint64_t need) {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const FlatVector& vector = ranks_[rank]->vectors->masters[group];
      const auto source = shards_.swap_source(rank, vector.swap_id);
      const uint64_t bytes = need * size_of(vector.dtype);
      if (!source) {
        blame(report("swap-file-missing",
                     "sub-group " + std::to_string(group) +
                         " was swapped out to NVMe; expected its file "
                         "offloaded_tensors/rank.../" +
                         escape(vector.swap_id) + ".tensor.swp, found none"),
              *ranks_[rank]);
      } else if (shards_.sources->list()[*source].size_bytes < bytes) {
        Finding& finding = report(
            "file-truncated",
            "expected at least " + std::to_string(bytes) + " bytes, found " +
                std::to_string(shards_.sources->list()[*source].size_bytes));
        finding.file = shards_.sources->list()[*source].name;
        finding.rank = rank;
      }
    }
  }

  uint64_t group_need(size_t group) const {
    const auto& shapes = (*states_.groups)[group];
    const auto& paddings = ranks_[0]->optim->alignment_paddings;
    uint64_t need = 0;
    for (size_t k = 0; k < shapes.size(); ++k) {
      need += shapes[k].numel;
      if (group < paddings.size() && k < paddings[group].size()) {
        need += paddings[group][k];
      }
    }
    return need;
  }

  uint64_t length(const ShardFile& rank, size_t group) const {
    const uint64_t numel = rank.vectors->masters[group].numel;
    const OptimFacts& facts = *rank.optim;
    if (facts.kind != OptimKind::Bf16 || group >= facts.group_paddings.size()) {
      return numel;
    }
    const auto padding = static_cast<uint64_t>(
        std::max<int64_t>(0, facts.group_paddings[group]));
    return numel - std::min(numel, padding);
  }

  // Whether every rank holds the groups of param_shapes, cut alike.
  bool check_group_counts() {
    const size_t expected = states_.groups->size();
    for (const ShardFile* rank : ranks_) {
      const size_t found = rank->vectors->masters.size();
      if (found != expected) {
        blame(report("group-length-mismatch",
                     "expected " + count_of(expected, "group") +
                         " as in param_shapes, found " + std::to_string(found)),
              *rank);
      } else if (rank->optim->alignment_paddings !=
                 ranks_[0]->optim->alignment_paddings) {
        blame(report("group-length-mismatch",
                     "expected the param_alignment_paddings of rank 0, found "
                     "others"),
              *rank);
      }
    }
    return findings_.empty();
  }

  void check_group(size_t group) {
    const uint64_t n = ranks_.size();
    const uint64_t need = group_need(group);
    const std::string what = "group " + std::to_string(group);
    uint64_t have = 0;
    for (const ShardFile* rank : ranks_) have += length(*rank, group);
    // Since 0.16.4 every rank strips its padding; before, up to one alignment
    // unit of zeros could stay (format.md 3.2).
    // BF16_Optimizer strips nothing, but says how much it padded.
    const OptimFacts& first = *ranks_[0]->optim;
    const bool exact = first.kind == OptimKind::Bf16
                           ? group < first.group_paddings.size()
                           : version_ && !before({0, 16, 4});
    const uint64_t allowed = exact ? 0 : 2 * n - 1;
    if (have < need) {
      report("partition-short",
             "expected " + std::to_string(need) + " elements in " + what +
                 " over all ranks, found " + std::to_string(have));
      return;
    }
    if (have - need > allowed) {
      report("partition-surplus",
             "expected " + std::to_string(need) + " elements in " + what +
                 " over all ranks and at most " + std::to_string(allowed) +
                 " of padding, found " + std::to_string(have));
      return;
    }
    check_cut(group, need);
    if (have > need) check_surplus(group, have - need);
  }

  // Rank r begins at element r * P, P being the padded group cut in N.
  void check_cut(size_t group, uint64_t need) {
    const uint64_t n = ranks_.size();
    std::vector<uint64_t> partitions;
    if (!version_ || !before({0, 5, 2})) {
      partitions.push_back(align_up(need, 2 * n) / n);
    }
    if (!version_ || before({0, 5, 2})) {
      partitions.push_back(align_up(need, n) / n);
    }
    const ShardFile* first_bad = nullptr;
    for (const uint64_t partition : partitions) {
      uint64_t start = 0;
      const ShardFile* bad = nullptr;
      for (size_t r = 0; r < n && bad == nullptr; ++r) {
        if (start < need && start != r * partition) bad = ranks_[r - 1];
        start += length(*ranks_[r], group);
      }
      if (bad == nullptr) return;
      first_bad = bad;
    }
    blame(report("group-length-mismatch",
                 "this rank's part of group " + std::to_string(group) +
                     " has " + std::to_string(length(*first_bad, group)) +
                     " elements, expected " + std::to_string(partitions[0]) +
                     " as on every rank before the last"),
          *first_bad);
  }

  // Elements behind the last parameter are padding, hence zero.
  void check_surplus(size_t group, uint64_t surplus) {
    for (size_t r = ranks_.size(); r-- > 0 && surplus != 0;) {
      const ShardFile& rank = *ranks_[r];
      const FlatVector& vector = rank.vectors->masters[group];
      const uint64_t take = std::min(surplus, length(rank, group));
      const uint64_t size = size_of(vector.dtype);
      const uint64_t at =
          rank.base + vector.offset + (length(rank, group) - take) * size;
      std::vector<std::byte> bytes(static_cast<size_t>(take * size));
      shards_.sources->open(rank.source)->read_at(at, bytes);
      if (!all_zero(bytes)) {
        Finding& finding =
            report("padding-nonzero",
                   "expected the last " + std::to_string(take) +
                       " elements of group " + std::to_string(group) +
                       ", which no parameter needs, to be zero padding; "
                       "found values");
        blame(finding, rank);
        finding.offset = at;
      }
      surplus -= take;
    }
  }

  const ShardSet& shards_;
  const ModelStates& states_;
  std::vector<const ShardFile*> ranks_;
  std::optional<Version> version_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_sums(const ShardSet& shards,
                                const ModelStates& states) {
  const bool any_optim = std::any_of(
      shards.files.begin(), shards.files.end(), [](const ShardFile& file) {
        return file.optim && file.optim->kind != OptimKind::None;
      });
  if (!any_optim || !states.groups) return {};
  return SumChecker(shards, states).run();
}

}  // namespace zckpt
