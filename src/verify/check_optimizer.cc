// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "reader/digest.h"
#include "reader/layout.h"
#include "reader/model_states.h"
#include "verify/resume_checks.h"
#include "zckpt/error.h"

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
    check_module();
    collect_states();
    if (with_masters_.empty()) {
      check_stage0();
      return std::move(findings_);
    }
    if (states_.empty()) report_no_states();
    check_duplicates();
    check_pairs();
    check_slices();
    for (const ShardFile* file : with_masters_) {
      check_param_groups(*file);
      check_states(*file);
    }
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

  // param_slice_mappings against where the parameters lie. They are wrong in
  // genuine files (round_robin_gradients), and loading does not read them.
  void check_slices() {
    if (!states_of_model_ || !states_of_model_->groups) return;
    const auto& groups = *states_of_model_->groups;
    for (const ShardFile* file : with_masters_) {
      const auto& slices = file->optim->slices;
      if (slices.size() != groups.size() || !file->name.rank ||
          has_alignment(*file)) {
        continue;
      }
      for (size_t g = 0; g < groups.size(); ++g) {
        if (same_slices(slices[g], slices_of(groups[g], *file->name.rank))) {
          continue;
        }
        Finding& finding = report(
            "slice-map-mismatch", Severity::Note,
            "param_slice_mappings put parameters of group " +
                std::to_string(g) +
                " elsewhere than param_shapes does, as DeepSpeed writes them "
                "under round_robin_gradients. Neither loading nor zckpt takes "
                "anything from them, ds_to_universal does");
        finding.file = shards_.sources->list()[file->source].name;
        finding.rank = file->name.rank;
        return;  // one says it for all
      }
    }
  }

  // What lies in this rank's partition of a group (format.md 3.2).
  std::vector<Slice> slices_of(const std::vector<NamedShape>& group,
                               uint32_t rank) const {
    uint64_t need = 0;
    for (const NamedShape& shape : group) need += shape.numel;
    const uint64_t unit = 2 * uint64_t{ranks_};
    const uint64_t partition = (need + unit - 1) / unit * 2;
    const uint64_t begin = rank * partition;
    std::vector<Slice> slices;
    uint64_t at = 0;
    for (const NamedShape& shape : group) {
      const uint64_t from = std::max(at, begin);
      const uint64_t to = std::min(at + shape.numel, begin + partition);
      if (from < to) {
        slices.push_back({.name = digest(shape.name),
                          .start = from - begin,
                          .numel = to - from});
      }
      at += shape.numel;
    }
    return slices;
  }

  static bool same_slices(std::vector<Slice> a, std::vector<Slice> b) {
    std::erase_if(a, [](const Slice& s) { return s.numel == 0; });
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    return a == b;
  }

  static bool has_alignment(const ShardFile& file) {
    for (const auto& group : file.optim->alignment_paddings) {
      for (const uint64_t padding : group) {
        if (padding != 0) return true;
      }
    }
    return false;
  }

  void check_keys(const ShardFile& file) {
    for (const std::string& key : file.missing_keys) {
      report("key-missing",
             "expected the key " + key +
                 ", which loading reads without asking; found none",
             file);
    }
  }

  // What load_state_dict of the model itself asks for: an entry of every name
  // that the file lists.
  void check_module() {
    const ShardFile* model = shards_.leading_model();
    if (model == nullptr || !model->model->has_module) return;
    try {
      states_of_model_ = read_model_states(shards_, *model);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::Io) throw;
      return;  // the checks on the weights say what is wrong with it
    }
    check_names(*states_of_model_, *model);
    check_sub_groups(*states_of_model_);
  }

  void check_names(const ModelStates& states, const ShardFile& model) {
    std::map<std::string_view, const ModuleEntry*> unlisted;
    for (const ModuleEntry& entry : states.module) {
      unlisted[entry.name] = &entry;
    }
    const auto present = unlisted;
    std::vector<std::string_view> absent;
    std::vector<const NamedShape*> absent_parameters;
    if (states.groups) {
      for (const auto& group : *states.groups) {
        for (const NamedShape& shape : group) {
          unlisted.erase(shape.name);
          if (!present.contains(shape.name)) {
            absent_parameters.push_back(&shape);
          }
        }
      }
    }
    const auto need = [&](const std::string& name) {
      unlisted.erase(name);
      if (!present.contains(name)) absent.push_back(name);
    };
    if (states.frozen_shapes) {
      for (const NamedShape& shape : *states.frozen_shapes) need(shape.name);
    }
    if (states.buffer_names) {
      for (const std::string& name : *states.buffer_names) need(name);
    }
    for (const auto& [alias, kept] : states.shared) unlisted.erase(alias);
    for (const std::string_view name : absent) {
      report_absent(name, model, Severity::Error);
    }
    for (const NamedShape* shape : absent_parameters) {
      // DeepSpeed does not read param_shapes: the name may be wrong there.
      const bool renamed =
          std::any_of(unlisted.begin(), unlisted.end(), [&](const auto& entry) {
            const auto& view = entry.second->tensor;
            return view && (view->numel == 0 || view->shape == shape->shape);
          });
      report_absent(shape->name, model,
                    renamed ? Severity::Warning : Severity::Error);
    }
  }

  void report_absent(std::string_view name, const ShardFile& model,
                     Severity severity) {
    report("key-missing",
           "expected an entry in module for each name that the file lists, as "
           "loading does; found none",
           model);
    findings_.back().severity = severity;
    findings_.back().tensor = name;
  }

  // Another sub_group_size cuts the same elements elsewhere. Before 0.6.0
  // param_shapes was not cut into sub-groups.
  void check_sub_groups(const ModelStates& states) {
    if (!states.groups || states.groups->size() < 2) return;
    for (const ShardFile& file : shards_.files) {
      if (!file.optim || file.optim->kind != OptimKind::Zero3 ||
          file.vectors->masters.size() == states.groups->size()) {
        continue;
      }
      report("group-length-mismatch",
             "expected the " + count_of(states.groups->size(), "sub-group") +
                 " of param_shapes, found " +
                 std::to_string(file.vectors->masters.size()) +
                 ": cut with another sub_group_size",
             file);
    }
  }

  // torch refuses a state for another number of parameters: one for each
  // group or sub-group.
  void check_param_groups(const ShardFile& file) {
    const auto& listed = file.optim->listed_params;
    const uint64_t masters = file.vectors->masters.size();
    if (!listed || *listed == masters) return;
    report("group-length-mismatch",
           "expected " + count_of(masters, "parameter") +
               " in param_groups, one for each group of masters; found " +
               std::to_string(*listed),
           file);
  }

  // Moments come with the first step. SGD has none.
  void report_no_states() {
    const ShardFile* model = shards_.leading_model();
    const bool stepped =
        model != nullptr && model->model->global_steps.value_or(0) >
                                model->model->skipped_steps.value_or(0);
    const bool wants_moments = std::any_of(
        with_masters_.begin(), with_masters_.end(),
        [](const ShardFile* file) { return file->optim->has_betas; });
    if (stepped && wants_moments) {
      report("optimizer-state-absent", Severity::Error,
             "no rank has optimizer state, though steps were taken: training "
             "would go on with fresh moments");
    } else {
      report("optimizer-state-absent", Severity::Note,
             "no rank has optimizer state: as after a run whose steps were "
             "all skipped, or with plain SGD");
    }
  }

  // Trained moments of two ranks are never equal. check_shards sees files that
  // are the same byte for byte; these were written again under the other name.
  void check_duplicates() {
    constexpr uint64_t kTelling = 256;  // elements: not just a few zeros
    std::map<uint64_t, const ShardFile*> seen;
    for (const ShardFile* file : with_masters_) {
      uint64_t elements = 0;
      for (const FlatVector& master : file->vectors->masters) {
        elements += master.numel;
      }
      if (file->content_digest == 0 || file->vectors->states.empty() ||
          elements < kTelling) {
        continue;
      }
      const auto [it, fresh] = seen.try_emplace(file->content_digest, file);
      if (fresh || it->second->archive_prefix == file->archive_prefix) continue;
      report("file-duplicate",
             "its masters and moments are those of rank " +
                 std::to_string(*it->second->name.rank) +
                 ": one rank's shard was saved over another's",
             *file);
    }
  }

  // The Adam family has both moments or none.
  void check_pairs() {
    if (!states_.contains("exp_avg_sq") || states_.contains("exp_avg")) return;
    report("moment-missing", Severity::Error,
           "expected exp_avg beside exp_avg_sq, found it on no rank");
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
  std::optional<ModelStates> states_of_model_;
  std::set<std::string> states_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_optimizer(const ShardSet& shards) {
  return OptimizerChecker(shards).run();
}

}  // namespace zckpt
