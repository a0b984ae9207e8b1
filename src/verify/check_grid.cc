// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "reader/layout.h"
#include "reader/recognise.h"
#include "verify/checks.h"

// Files that are spread over more than data-parallel ranks: experts, pipeline
// layers, model-parallel ranks. What their names say of each other holds
// whether or not the layout can be read.

namespace zckpt {
namespace {

class GridChecker {
 public:
  explicit GridChecker(const ShardSet& shards) : shards_(shards) {}

  std::vector<Finding> run() {
    check_ranks();
    check_experts();
    check_layers();
    for (const OtherFile& file : shards_.others) check_file(file);
    return std::move(findings_);
  }

 private:
  using Numbers = std::set<uint32_t>;

  Finding& report(std::string code, Severity severity, std::string message,
                  std::string file) {
    findings_.push_back({.code = std::move(code),
                         .severity = severity,
                         .message = std::move(message),
                         .file = std::move(file)});
    return findings_.back();
  }

  std::string in_tag(const std::string& name) const {
    return shards_.where.tag + "/" + name;
  }

  // Numbers of layers and model-parallel ranks have two digits or more.
  static std::string padded(uint64_t number) {
    const std::string text = std::to_string(number);
    return text.size() < 2 ? "0" + text : text;
  }

  bool full() const { return findings_.size() >= kMost; }

  // Every model-parallel rank has a shard of every data-parallel one, and a
  // model file (one of each, too, where stage 3 writes them so).
  void check_ranks() {
    std::map<uint32_t, Numbers> optim;  // mp rank -> dp ranks
    std::map<uint32_t, Numbers> model;
    uint64_t mp_ranks = 0;
    uint64_t dp_ranks = 0;
    bool cut_model = false;
    std::string prefix;
    for (const ShardFile& file : shards_.files) {
      const bool is_optim = file.name.kind == ShardKind::Optim;
      auto& found = (is_optim ? optim : model)[file.name.mp_rank];
      mp_ranks = std::max<uint64_t>(mp_ranks, file.name.mp_rank + uint64_t{1});
      if (file.name.rank) {
        found.insert(*file.name.rank);
        dp_ranks = std::max<uint64_t>(dp_ranks, *file.name.rank + uint64_t{1});
      }
      if (is_optim) prefix = file.name.prefix;
      cut_model = cut_model || (!is_optim && file.name.rank);
      if (file.model && file.model->mp_world_size.value_or(0) > 0) {
        mp_ranks = std::max(mp_ranks,
                            static_cast<uint64_t>(*file.model->mp_world_size));
      }
    }
    if (optim.empty()) return;
    dp_ranks = std::max<uint64_t>(dp_ranks, world_size(shards_));
    for (uint64_t mp = 0; mp < mp_ranks && !full(); ++mp) {
      const auto mp_rank = static_cast<uint32_t>(mp);
      const std::string end = "mp_rank_" + padded(mp);
      if (!cut_model && !model.contains(mp_rank)) {
        report("model-shard-missing", Severity::Error,
               "the model file of model-parallel rank " + std::to_string(mp) +
                   " is missing",
               in_tag(end + "_model_states.pt"));
      }
      for (uint64_t dp = 0; dp < dp_ranks && !full(); ++dp) {
        const auto rank = static_cast<uint32_t>(dp);
        const std::string cell =
            "zero_pp_rank_" + std::to_string(dp) + "_" + end;
        const std::string what = "of data-parallel rank " + std::to_string(dp) +
                                 ", model-parallel rank " + std::to_string(mp) +
                                 " is missing";
        if (!optim[mp_rank].contains(rank)) {
          report("optim-shard-missing", Severity::Error,
                 "the optimizer shard " + what,
                 in_tag(std::string(prefix).append(cell).append(
                     "_optim_states.pt")))
              .rank = rank;
        }
        if (cut_model && !model[mp_rank].contains(rank)) {
          report("model-shard-missing", Severity::Error,
                 "the model file " + what, in_tag(cell + "_model_states.pt"))
              .rank = rank;
        }
      }
    }
  }

  // Expert weights that stage 3 cuts, or a universal checkpoint renames, have
  // no files of their own.
  bool expects_expert_files() const {
    const ShardFile* model = shards_.leading_model();
    return !shards_.has_universal && model != nullptr && !model->name.rank &&
           std::none_of(shards_.files.begin(), shards_.files.end(),
                        [](const ShardFile& file) {
                          return file.optim && file.optim->has_partition_groups;
                        });
  }

  static std::string expert_name(int64_t layer, uint64_t expert,
                                 uint32_t mp_rank) {
    return (layer < 0 ? "" : "layer_" + std::to_string(layer) + "_") +
           "expert_" + std::to_string(expert) + "_mp_rank_" + padded(mp_rank) +
           "_model_states.pt";
  }

  void check_experts() {
    // By layer and model-parallel rank; -1: names without a layer.
    std::map<std::pair<int64_t, uint32_t>, Numbers> found;
    std::set<int64_t> layers;
    Numbers mp_ranks;
    for (const OtherFile& file : shards_.others) {
      if (file.name.kind != ShardKind::Expert || !file.name.expert) continue;
      const int64_t layer = file.name.layer ? int64_t{*file.name.layer} : -1;
      found[{layer, file.name.mp_rank}].insert(*file.name.expert);
      layers.insert(layer);
    }
    if (found.empty()) {
      const ShardFile* model = shards_.leading_model();
      if (expects_expert_files() && !model->model->num_experts.empty() &&
          model->model->num_experts.front() > 0) {
        report("expert-missing", Severity::Error,
               "the model file lists experts, but there is no file of any", "");
      }
      return;
    }
    for (const ShardFile& file : shards_.files) {
      mp_ranks.insert(file.name.mp_rank);
    }
    for (const int64_t layer : layers) {
      for (const uint32_t mp_rank : mp_ranks) {
        check_experts_of(layer, mp_rank, found[{layer, mp_rank}]);
      }
    }
    int64_t next = 0;
    for (const int64_t layer : layers) {
      for (; next < layer && !full(); ++next) {
        report("expert-missing", Severity::Error,
               "MoE layers are numbered without gaps, and there is no file of "
               "layer " +
                   std::to_string(next),
               "");
      }
      if (full()) return;
      next = layer + 1;
    }
  }

  void check_experts_of(int64_t layer, uint32_t mp_rank,
                        const Numbers& experts) {
    uint64_t expected = listed_experts(layer);
    if (!experts.empty()) {
      expected = std::max(expected, *experts.rbegin() + uint64_t{1});
    }
    for (uint64_t expert = 0; expert < expected && !full(); ++expert) {
      if (experts.contains(static_cast<uint32_t>(expert))) continue;
      report("expert-missing", Severity::Error,
             "expected experts 0 to " + std::to_string(expected - 1) +
                 " of this layer, found no file of expert " +
                 std::to_string(expert),
             in_tag(expert_name(layer, expert, mp_rank)));
    }
  }

  uint64_t listed_experts(int64_t layer) const {
    const ShardFile* model = shards_.leading_model();
    if (model == nullptr) return 0;
    const auto& listed = model->model->num_experts;
    const auto i = static_cast<size_t>(std::max<int64_t>(layer, 0));
    const int64_t count = i < listed.size()    ? listed[i]
                          : listed.size() == 1 ? listed[0]
                                               : 0;
    return count < 0 ? 0 : static_cast<uint64_t>(count);
  }

  void check_layers() {
    std::map<uint32_t, Numbers> found;  // layer -> model-parallel ranks
    Numbers all;
    for (const OtherFile& file : shards_.others) {
      if (file.name.kind != ShardKind::PipelineLayer || !file.name.layer) {
        continue;
      }
      found[*file.name.layer].insert(file.name.mp_rank);
      all.insert(file.name.mp_rank);
    }
    uint64_t next = 0;
    for (const auto& [layer, ranks] : found) {
      for (; next < layer && !full(); ++next) {
        report("layer-missing", Severity::Warning,
               "there is no file of layer " + std::to_string(next) +
                   " before others: right only where that layer is a plain "
                   "function without parameters",
               in_tag("layer_" + padded(next) + "-model_states.pt"));
      }
      for (const uint32_t rank : all) {
        if (ranks.contains(rank) || full()) continue;
        report("layer-missing", Severity::Error,
               "other layers have a file of model-parallel rank " +
                   std::to_string(rank) + ", layer " + std::to_string(layer) +
                   " has none",
               in_tag("layer_" + padded(layer) + "-model_" + padded(rank) +
                      "-model_states.pt"));
      }
      if (full()) return;
      next = uint64_t{layer} + 1;
    }
  }

  // These are not read, but whether they can be, and whether they are what
  // their names say, is told all the same.
  void check_file(const OtherFile& file) {
    if (file.name.kind == ShardKind::FastPart) return;  // no torch file
    const std::string name = relative_name(file.path, shards_.where.folder);
    try {
      const FileSource source(file.path);
      switch (recognise(source)) {
        case FileForm::Empty:
          report("file-empty", Severity::Error, "the file has no bytes", name);
          return;
        case FileForm::TorchZipTorn:
          report("file-truncated", Severity::Error,
                 "the archive has no end record: its end is missing", name);
          return;
        default: break;
      }
      const TorchFile opened = TorchFile::open(source);
      const ShardName inside = classify(opened.prefix() + ".pt");
      if (inside.kind == ShardKind::Other || inside == file.name) return;
      report("file-misnamed", Severity::Error,
             "the archive calls itself " + escape(opened.prefix()) +
                 ": this is another file under this name",
             name);
    } catch (const Error& error) {
      report(error.code() == ErrorCode::Io ? "file-unreadable"
                                           : "container-damaged",
             Severity::Error, error.message(), name)
          .offset = error.offset();
    }
  }

  // A hostile name must not make a list without end.
  static constexpr size_t kMost = 256;

  const ShardSet& shards_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_grid(const ShardSet& shards) {
  return GridChecker(shards).run();
}

}  // namespace zckpt
