// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/text.h"
#include "reader/layout.h"
#include "verify/checks.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

// What most ranks say; a rank that says something else is the one to blame.
template <typename T>
T majority(const std::map<T, size_t>& votes) {
  return std::max_element(
             votes.begin(), votes.end(),
             [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

class ShardChecker {
 public:
  explicit ShardChecker(const ShardSet& shards)
      : shards_(shards), ranks_(world_size(shards)) {
    // Most files say what the folder is; the others are blamed.
    int partitioned = 0;
    for (const ShardFile& file : shards.files) {
      if (const auto inside = is_stage3(file)) partitioned += *inside ? 1 : -1;
      any_optim_ = any_optim_ || file.name.kind == ShardKind::Optim;
    }
    stage3_ = partitioned > 0;
    const ShardFile* model = shards.leading_model();
    frozen_ = model != nullptr && model->vectors != nullptr &&
              !model->vectors->fragments.empty();
  }

  std::vector<Severity> severities() const {
    std::vector<Severity> found(shards_.sources->list().size(),
                                Severity::Error);
    for (const ShardFile& file : shards_.files) {
      found[file.source] = severity_of(file);
    }
    return found;
  }

  std::vector<Finding> run() {
    findings_ = shards_.where.findings;
    findings_.insert(findings_.end(), shards_.findings.begin(),
                     shards_.findings.end());
    if (const auto reason = unsupported_layout(shards_)) {
      report("unsupported-layout", Severity::Error,
             "this layout is not read yet: " + *reason);
      for (const ShardFile& file : shards_.files) check_file(file);
      for (Finding& finding : check_grid(shards_)) {
        findings_.push_back(std::move(finding));
      }
      return std::move(findings_);
    }
    for (const ShardFile& file : shards_.files) check_file(file);
    check_set();
    check_stage();
    check_world_size();
    check_same_save();
    check_groups();
    for (Finding& finding : check_duplicates(shards_)) {
      findings_.push_back(std::move(finding));
    }
    return std::move(findings_);
  }

 private:
  Finding& report(std::string code, Severity severity, std::string message) {
    findings_.push_back({.code = std::move(code),
                         .severity = severity,
                         .message = std::move(message)});
    return findings_.back();
  }

  Finding& report(std::string code, Severity severity, std::string message,
                  const ShardFile& file) {
    Finding& finding = report(std::move(code), severity, std::move(message));
    finding.file = name_of(file);
    finding.rank = file.name.rank;
    return finding;
  }

  const std::string& name_of(const ShardFile& file) const {
    return shards_.sources->list()[file.source].name;
  }

  // Whether the weights need this file. Other ranks' stage-3 model files hold
  // nothing of them but parts of frozen weights.
  bool needed(const ShardFile& file) const {
    if (file.name.rank && *file.name.rank >= ranks_) return false;
    if (file.name.kind == ShardKind::Optim) return true;
    if (!stage3_) return file.name.mp_rank == 0;
    return frozen_ || shards_.leading_model() == nullptr;
  }

  // Whether the file is one of a stage-3 save, if it can tell.
  std::optional<bool> is_stage3(const ShardFile& file) const {
    if (file.name.rank && *file.name.rank >= ranks_) return std::nullopt;
    if (file.name.kind == ShardKind::Model) return file.name.rank.has_value();
    if (!file.optim || file.optim->kind == OptimKind::None) return std::nullopt;
    return file.optim->kind == OptimKind::Zero3;
  }

  Severity severity_of(const ShardFile& file) const {
    return needed(file) ? Severity::Error : Severity::Warning;
  }

  void check_file(const ShardFile& file) {
    if (file.fault) {
      Finding& finding = report(file.fault->code, severity_of(file),
                                file.fault->message, file);
      finding.tensor = file.fault->tensor;
      finding.offset = file.fault->offset;
      return;
    }
    if (file.model && file.model->is_placeholder) {
      report("foreign-writer", Severity::Error,
             "the file holds nothing but a string: a placeholder that the "
             "Nebula engine leaves where the data is stored elsewhere",
             file);
    }
    check_archive_name(file);
  }

  // A stale shard of a larger run: reported as such, and ignored.
  bool is_surplus(const ShardFile& file) const {
    return file.name.rank && *file.name.rank >= ranks_;
  }

  // torch names the folder inside the archive after the file: nothing else
  // inside a stage-3 shard tells its rank.
  void check_archive_name(const ShardFile& file) {
    const ShardName inside = classify(file.archive_prefix + ".pt");
    if (inside.kind == ShardKind::Other || is_surplus(file)) return;
    if (inside.kind == file.name.kind && inside.rank == file.name.rank &&
        inside.mp_rank == file.name.mp_rank) {
      return;
    }
    report("file-misnamed", Severity::Error,
           "the archive calls itself " + escape(file.archive_prefix) +
               ": this is another shard under this name; put the right file "
               "back",
           file);
  }

  static std::string optim_name(uint32_t rank, std::string_view prefix) {
    return std::string(prefix) + "zero_pp_rank_" + std::to_string(rank) +
           "_mp_rank_00_optim_states.pt";
  }

  void check_set() {
    std::set<uint32_t> optim;
    std::set<uint32_t> model;
    std::set<std::string_view> prefixes;
    std::vector<std::string> surplus;
    bool whole_model = false;
    for (const ShardFile& file : shards_.files) {
      const bool is_optim = file.name.kind == ShardKind::Optim;
      if (is_optim) prefixes.insert(file.name.prefix);
      if (!file.name.rank) {
        whole_model = true;
      } else if (*file.name.rank >= ranks_) {
        surplus.push_back(name_of(file));
      } else if (!(is_optim ? optim : model).insert(*file.name.rank).second) {
        report("shard-conflict", Severity::Error,
               "there are two shards of this rank", file);
      }
    }
    if (prefixes.size() > 1) {
      report("prefix-mixed", Severity::Error,
             "expected optimizer shards of one precision, found names with "
             "and without bf16_: two runs saved into this folder; remove the "
             "shards of one of them");
    }
    if (any_optim_) {
      report_missing(optim, "optim-shard-missing", Severity::Error,
                     "optimizer shard",
                     prefixes.empty() ? "" : *prefixes.rbegin(), false);
    }
    if (!any_optim_ && has_lost_masters()) {
      report("optim-shard-missing", Severity::Warning,
             "the run had optimizer shards, none is here: the weights are the "
             "model's own copies, in its own precision");
    }
    if (stage3_) {
      const bool all_needed = frozen_ || model.empty();
      report_missing(model, "model-shard-missing",
                     all_needed ? Severity::Error : Severity::Warning,
                     "model file", "", true);
    } else if (!whole_model) {
      report("model-shard-missing", Severity::Error,
             "expected mp_rank_00_model_states.pt, without which the shards "
             "have no names; found none");
    }
    if (!surplus.empty()) {
      std::string names;
      for (const std::string& name : surplus) names += " " + escape(name);
      report("shard-surplus", Severity::Warning,
             "expected shards of " + count_of(ranks_, "rank") +
                 "; ignored those of a larger, earlier run:" + names);
    }
  }

  // A stage-1 or -2 model file without a single optimizer shard.
  bool has_lost_masters() const {
    const ShardFile* model = shards_.leading_model();
    return model != nullptr && !model->model->has_optimizer &&
           model->model->config_stage.value_or(0) > 0;
  }

  void report_missing(const std::set<uint32_t>& present,
                      const std::string& code, Severity severity,
                      const std::string& what, std::string_view prefix,
                      bool model) {
    // A hostile partition_count must not make a million findings.
    constexpr size_t kMost = 1024;
    size_t reported = 0;
    for (uint32_t rank = 0; rank < ranks_ && reported < kMost; ++rank) {
      if (present.contains(rank)) continue;
      ++reported;
      const std::string name = model ? "zero_pp_rank_" + std::to_string(rank) +
                                           "_mp_rank_00_model_states.pt"
                                     : optim_name(rank, prefix);
      Finding& finding =
          report(code, severity,
                 "the " + what + " of rank " + std::to_string(rank) + " of " +
                     std::to_string(ranks_) + " is missing");
      finding.file = shards_.where.tag + "/" + name;
      finding.rank = rank;
      look_elsewhere(name, rank);
    }
  }

  // A rank whose clock ran on may have saved into a sibling folder
  // (OpenTau #396); node-local disks hold their own ranks only.
  void look_elsewhere(const std::string& name, uint32_t rank) {
    for (const fs::path& folder : siblings()) {
      const fs::path candidate = folder / name;
      std::error_code ignored;
      if (!fs::is_regular_file(candidate, ignored)) continue;
      Finding& finding = report("shard-elsewhere", Severity::Note,
                                "a file of this name lies in " +
                                    escape(candidate.parent_path().string()) +
                                    "; --also takes it from there");
      finding.file = shards_.where.tag + "/" + name;
      finding.rank = rank;
    }
  }

  // What a late rank wrote may lie in the folder's name of before the save
  // was done.
  static std::optional<uint64_t> step_of(const fs::path& folder) {
    const std::string name = folder.filename().string();
    const auto step = number_after(name, "checkpoint-");
    return step ? step : number_after(name, "tmp-checkpoint-");
  }

  // Tag folders of the same name in the folders beside this one.
  const std::vector<fs::path>& siblings() {
    if (siblings_) return *siblings_;
    siblings_.emplace();
    std::error_code error;
    fs::path own = fs::absolute(shards_.where.folder, error).lexically_normal();
    if (!own.has_filename()) own = own.parent_path();  // "run/"
    for (fs::directory_iterator it(own.parent_path(), error);
         !error && it != fs::directory_iterator(); it.increment(error)) {
      std::error_code ignored;
      const fs::path folder = it->path() / shards_.where.tag;
      // Another step of the same run is no part of this save.
      if (step_of(it->path()) != step_of(own)) continue;
      if (it->path() != own && fs::is_directory(folder, ignored)) {
        siblings_->push_back(folder);
      }
    }
    return *siblings_;
  }

  void check_stage() {
    for (const ShardFile& file : shards_.files) {
      const auto inside = is_stage3(file);
      if (!inside) continue;
      const bool said = !file.optim || !file.optim->zero_stage ||
                        (*file.optim->zero_stage == 3) == *inside;
      if (*inside == stage3_ && said) continue;
      report("stage-conflict", Severity::Error,
             std::string("expected files of one ZeRO stage, found ") +
                 (said ? "" : "another zero_stage and ") +
                 (*inside ? "stage-3" : "stage-0/1/2") +
                 " contents in this file: two runs saved into this folder; "
                 "remove the files of one of them",
             file);
    }
  }

  void check_world_size() {
    for (const ShardFile& file : shards_.files) {
      if (file.name.rank && *file.name.rank >= ranks_) continue;
      if (file.optim && !file.optim->partition_count.empty()) {
        const auto& counts = file.optim->partition_count;
        const int64_t most = *std::max_element(counts.begin(), counts.end());
        if (most != static_cast<int64_t>(ranks_)) {
          world_size_conflict(file, "partition_count", most);
        }
      }
      if (file.model && any_optim_ && file.model->dp_world_size &&
          *file.model->dp_world_size != static_cast<int64_t>(ranks_)) {
        world_size_conflict(file, "dp_world_size", *file.model->dp_world_size);
      }
    }
  }

  void world_size_conflict(const ShardFile& file, const std::string& key,
                           int64_t found) {
    report("world-size-conflict", Severity::Error,
           "expected " + key + " " + std::to_string(ranks_) + ", found " +
               std::to_string(found) +
               ": this file belongs to a run with another number of ranks",
           file);
  }

  // Compares what `value` gives over all files that give anything.
  template <typename T, typename Get>
  void compare(const std::string& code, Severity severity,
               const std::string& what, Get get) {
    std::map<T, size_t> votes;
    for (const ShardFile& file : shards_.files) {
      if (file.name.rank && *file.name.rank >= ranks_) continue;
      if (const std::optional<T> value = get(file)) ++votes[*value];
    }
    if (votes.size() < 2) return;
    const T expected = majority(votes);
    for (const ShardFile& file : shards_.files) {
      if (file.name.rank && *file.name.rank >= ranks_) continue;
      const std::optional<T> value = get(file);
      if (!value || *value == expected) continue;
      report(code, severity, describe(what, expected, *value), file);
    }
  }

  static std::string describe(const std::string& what, const auto& expected,
                              const auto& found) {
    std::string text = "this file's " + what +
                       " differs from that of the other ranks: the files are "
                       "not from one save";
    if constexpr (std::is_same_v<std::decay_t<decltype(found)>, std::string>) {
      text +=
          " (expected " + escape(expected) + ", found " + escape(found) + ")";
    } else if constexpr (std::is_same_v<std::decay_t<decltype(found)>,
                                        int64_t> ||
                         std::is_same_v<std::decay_t<decltype(found)>,
                                        double>) {
      text += " (expected " + std::to_string(static_cast<int64_t>(expected)) +
              ", found " + std::to_string(static_cast<int64_t>(found)) + ")";
    }
    return text;
  }

  // Another number of parameter groups is told as that, once.
  bool has_other_groups(const ShardFile& file) const {
    const ShardFile* first = shards_.optim(0);
    return first != nullptr && first->optim &&
           first->optim->listed_params != file.optim->listed_params;
  }

  void check_same_save() {
    compare<int64_t>("step-mismatch", Severity::Error, "global step",
                     [](const ShardFile& file) {
                       return file.model ? file.model->global_steps
                                         : std::nullopt;
                     });
    compare<double>("step-mismatch", Severity::Error, "optimizer step",
                    [](const ShardFile& file) {
                      return file.optim ? file.optim->step : std::nullopt;
                    });
    // Some optimizers count no steps; their settings still tell saves apart.
    for (const auto digest :
         {&OptimFacts::settings_digest, &OptimFacts::scaler_digest}) {
      compare<uint64_t>("step-mismatch", Severity::Error,
                        "optimizer settings (learning rates, loss scale)",
                        [&](const ShardFile& file) -> std::optional<uint64_t> {
                          if (!file.optim || *file.optim.*digest == 0 ||
                              has_other_groups(file)) {
                            return std::nullopt;
                          }
                          return *file.optim.*digest;
                        });
    }
    compare<std::string>(
        "version-mismatch", Severity::Warning, "DeepSpeed version",
        [](const ShardFile& file) -> std::optional<std::string> {
          if (file.model && !file.model->ds_version.empty()) {
            return file.model->ds_version;
          }
          if (file.optim && !file.optim->ds_version.empty()) {
            return file.optim->ds_version;
          }
          return std::nullopt;
        });
    compare<uint64_t>("config-mismatch", Severity::Warning, "ds_config",
                      [](const ShardFile& file) -> std::optional<uint64_t> {
                        if (file.model) return file.model->config_digest;
                        if (file.optim) return file.optim->config_digest;
                        return std::nullopt;
                      });
    for (const auto digest :
         {&ModelFacts::shapes_digest, &ModelFacts::frozen_digest}) {
      compare<uint64_t>("shapes-mismatch", Severity::Error,
                        "list of parameter names and shapes",
                        [&](const ShardFile& file) -> std::optional<uint64_t> {
                          if (!file.model || !file.name.rank) {
                            return std::nullopt;
                          }
                          return *file.model.*digest;
                        });
    }
  }

  // The lengths of a stage-3 shard's sub-groups are equal on all ranks.
  void check_groups() {
    if (!stage3_) return;
    compare<std::vector<uint64_t>>(
        "group-length-mismatch", Severity::Error, "length of its groups",
        [](const ShardFile& file) -> std::optional<std::vector<uint64_t>> {
          if (!file.optim || file.optim->kind != OptimKind::Zero3) {
            return std::nullopt;
          }
          std::vector<uint64_t> lengths;
          for (const FlatVector& vector : file.vectors->masters) {
            lengths.push_back(vector.numel);
          }
          return lengths;
        });
  }

  const ShardSet& shards_;
  uint32_t ranks_;
  bool stage3_ = false;
  bool any_optim_ = false;
  bool frozen_ = false;
  std::optional<std::vector<fs::path>> siblings_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Severity> file_severities(const ShardSet& shards) {
  return ShardChecker(shards).severities();
}

std::vector<Finding> check_shards(const ShardSet& shards) {
  return ShardChecker(shards).run();
}

}  // namespace zckpt
