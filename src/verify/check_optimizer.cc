// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "reader/layout.h"
#include "verify/resume_checks.h"

// What DeepSpeed's load_checkpoint needs of the optimizer (format.md 6.1): a
// moment wherever another rank or group has one, each as long as the rank's
// partition, and the keys that are read without asking.

namespace zckpt {
namespace {

class OptimizerChecker {
 public:
  explicit OptimizerChecker(const ShardSet& shards)
      : shards_(shards), ranks_(world_size(shards)) {}

  std::vector<Finding> run() {
    for (const ShardFile& file : shards_.files) {
      if (file.name.rank && *file.name.rank >= ranks_) continue;
      check_keys(file);
    }
    collect_states();
    if (with_masters_.empty()) {
      check_stage0();
      return std::move(findings_);
    }
    if (states_.empty()) {
      report("optimizer-state-absent", Severity::Note,
             "no rank has optimizer state yet: as after a run whose steps "
             "were all skipped");
    }
    for (const ShardFile* file : with_masters_) check_states(*file);
    check_swap();
    return std::move(findings_);
  }

 private:
  Finding& report(std::string code, Severity severity, std::string message) {
    findings_.push_back({.code = std::move(code),
                         .severity = severity,
                         .message = std::move(message)});
    return findings_.back();
  }

  void report(std::string code, std::string message, const ShardFile& file) {
    Finding& finding =
        report(std::move(code), Severity::Error, std::move(message));
    finding.file = shards_.sources->list()[file.source].name;
    finding.rank = file.name.rank;
  }

  void check_keys(const ShardFile& file) {
    for (const std::string& key : file.missing_keys) {
      report("key-missing",
             "expected the key " + key +
                 ", which loading reads without asking; found none",
             file);
    }
  }

  void collect_states() {
    for (const ShardFile& file : shards_.files) {
      if (!file.optim || !file.vectors || *file.name.rank >= ranks_) continue;
      if (file.vectors->masters.empty()) continue;
      with_masters_.push_back(&file);
      for (const NamedVectors& state : file.vectors->states) {
        const bool any = std::any_of(
            state.vectors.begin(), state.vectors.end(),
            [](const auto& v) { return v.numel != 0 || !v.swap_id.empty(); });
        if (any) states_.insert(state.name);
      }
    }
  }

  // Stage 0 keeps its optimizer in the model file; bf16 stage 0 of DeepSpeed
  // 0.17.6 to 0.18.4 saved it nowhere (format.md 1.3).
  void check_stage0() {
    const ShardFile* model = shards_.leading_model();
    if (model == nullptr || model->name.rank || model->model->has_optimizer) {
      return;
    }
    report("optimizer-state-absent", Severity::Error,
           "there are no optimizer shards and the model file holds no "
           "optimizer: the weights are here, the optimizer is not");
  }

  static uint64_t padding(const OptimFacts& facts, size_t group) {
    if (group >= facts.group_paddings.size()) return 0;
    return static_cast<uint64_t>(
        std::max<int64_t>(0, facts.group_paddings[group]));
  }

  void check_states(const ShardFile& file) {
    const VectorTable& table = *file.vectors;
    for (const std::string& name : states_) {
      const auto state =
          std::find_if(table.states.begin(), table.states.end(),
                       [&](const auto& s) { return s.name == name; });
      for (size_t g = 0; g < table.masters.size(); ++g) {
        const FlatVector* vector =
            state == table.states.end() ? nullptr : &state->vectors[g];
        check_state(file, name, g, vector);
      }
    }
  }

  void check_state(const ShardFile& file, const std::string& name, size_t group,
                   const FlatVector* vector) {
    const FlatVector& master = file.vectors->masters[group];
    const OptimFacts& facts = *file.optim;
    const bool swapped = master.numel == 0 && !master.swap_id.empty();
    const bool strips = facts.kind == OptimKind::Zero12;
    const uint64_t padded = master.numel + (strips ? padding(facts, group) : 0);
    const bool expected = swapped || padded != 0;
    if (!expected) return;
    const std::string what =
        escape(name) + " of group " + std::to_string(group);
    if (vector == nullptr || (vector->numel == 0 && vector->swap_id.empty())) {
      report("moment-missing",
             "expected " + what +
                 " as other ranks or groups have it, found "
                 "none",
             file);
      return;
    }
    if (swapped) return;
    const bool elastic = strips && facts.elastic_state;
    // Files before 0.7.0 do not tell their padding.
    const bool known = !strips || group < facts.group_paddings.size();
    const uint64_t least = elastic ? master.numel : padded;
    const uint64_t most = known ? least : master.numel + 2 * ranks_;
    if (vector->numel >= least && vector->numel <= most) return;
    // Before 0.16.4 the last rank was charged with the padding of the whole
    // group, and Python's slice to a negative length keeps what it keeps
    // (format.md 3.2).
    const uint64_t pad = strips ? padding(facts, group) : 0;
    if (pad > vector->numel &&
        master.numel == 2 * vector->numel - std::min(2 * vector->numel, pad)) {
      return;
    }
    report("moment-length",
           "expected " + std::to_string(least) + " elements in " + what +
               ", found " + std::to_string(vector->numel),
           file);
  }

  // DeepSpeed restores swapped sub-groups and forgets the rest of the shard
  // (seen with DeepSpeed 0.19.8).
  void check_swap() {
    for (const ShardFile* file : with_masters_) {
      for (const FlatVector& master : file->vectors->masters) {
        if (master.numel != 0 || master.swap_id.empty()) continue;
        report("swap-resume-broken", Severity::Error,
               "the optimizer was offloaded to NVMe: its swap files are here, "
               "but DeepSpeed's own load does not restore the rest of the "
               "shard (small groups, moments, the step); merging reads all of "
               "it");
        return;
      }
    }
  }

  const ShardSet& shards_;
  uint32_t ranks_;
  std::vector<const ShardFile*> with_masters_;
  std::set<std::string> states_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_optimizer(const ShardSet& shards) {
  return OptimizerChecker(shards).run();
}

}  // namespace zckpt
