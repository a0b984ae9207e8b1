// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/inspect.h"

#include <algorithm>
#include <filesystem>

#include "base/parallel.h"
#include "base/text.h"
#include "inspect/census.h"
#include "reader/checkpoint_data.h"
#include "reader/safetensors_file.h"
#include "verify/checks.h"
#include "verify/resume_checks.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

std::string path_of(const CheckpointPath& where) {
  return where.tag_folder.empty() ? where.folder : where.tag_folder;
}

class Inspector {
 public:
  Inspector(const CheckpointPath& where, const OpenOptions& options)
      : where_(where), options_(options) {}

  Inspection run() {
    result_.path = path_of(where_);
    CheckedCheckpoint checked = check_for_merge(where_, options_);
    result_.findings = std::move(checked.findings);
    result_.checkpoint = std::move(checked.checkpoint);
    shards_ = std::move(checked.shards);
    if (result_.checkpoint) {
      result_.facts = result_.checkpoint->facts();
    } else if (shards_ != nullptr) {
      result_.facts = facts_of(*shards_);
      result_.facts.layout = unsupported_layout(*shards_).value_or("damaged");
    }
    account_shards();
    account_other_files();
    sum_up();
    write_notes();
    return std::move(result_);
  }

 private:
  void account_shards() {
    if (shards_ == nullptr) return;
    std::optional<UsefulBytes> useful;
    if (result_.checkpoint) useful.emplace(*result_.checkpoint);
    std::vector<FileBytes> files(shards_->files.size());
    parallel_for(
        files.size(), resolve_threads(options_.threads), options_.stop,
        [&](size_t i, int) {
          const ShardFile& shard = shards_->files[i];
          const std::string& name = shards_->sources->list()[shard.source].name;
          if (shard.fault) {
            files[i] = unread(name, shard.size_bytes);
            files[i].rank = shard.name.rank;
          } else {
            files[i] = account_shard(shard, name, useful ? &*useful : nullptr);
          }
        });
    result_.files = std::move(files);
    for (const auto& [key, source] : shards_->swap_files) {
      account_swap_file(source, useful);
      // "rank03/..."
      const auto rank =
          number_after(std::string_view(key).substr(0, key.find('/')), "rank");
      if (rank && *rank <= UINT32_MAX) {
        result_.files.back().rank = static_cast<uint32_t>(*rank);
      }
    }
  }

  static FileBytes unread(const std::string& name, uint64_t bytes) {
    return {.file = name, .bytes = bytes, .contents = {{"unread", bytes}}};
  }

  // A swap file is one vector and its padding up to the I/O block.
  void account_swap_file(uint32_t source,
                         const std::optional<UsefulBytes>& useful) {
    const Source& file = shards_->sources->list()[source];
    FileBytes bytes{.file = file.name, .bytes = file.size_bytes};
    uint64_t left = file.size_bytes;
    if (useful) {
      for (const Tensor& tensor : result_.checkpoint->tensors()) {
        const std::string content = content_of(tensor);
        if (std::any_of(bytes.contents.begin(), bytes.contents.end(),
                        [&](const auto& c) { return c.content == content; })) {
          continue;
        }
        const uint64_t part = useful->of(source, content).value_or(0);
        if (part == 0) continue;
        bytes.contents.push_back({content, part});
        left -= std::min(left, part);
      }
    }
    if (left != 0) {
      bytes.contents.push_back({useful ? "padding" : "unread", left});
    }
    result_.files.push_back(std::move(bytes));
  }

  // Everything else in the checkpoint's folder and its tag folder.
  void account_other_files() {
    std::vector<std::string> known;
    for (const FileBytes& file : result_.files) known.push_back(file.file);
    std::sort(known.begin(), known.end());
    const auto add = [&](const std::string& folder) {
      std::vector<FileBytes> found;
      std::error_code error;
      for (fs::directory_iterator it(folder, error);
           !error && it != fs::directory_iterator(); it.increment(error)) {
        std::error_code ignored;
        if (!it->is_regular_file(ignored)) continue;
        const std::string name =
            it->path().lexically_relative(where_.folder).generic_string();
        if (std::binary_search(known.begin(), known.end(), name)) continue;
        const uint64_t size = it->file_size(ignored);
        FileBytes file = account_other(it->path(), size);
        file.file = name;
        found.push_back(std::move(file));
      }
      std::sort(found.begin(), found.end(),
                [](const auto& a, const auto& b) { return a.file < b.file; });
      result_.files.insert(result_.files.end(), found.begin(), found.end());
    };
    if (!where_.tag_folder.empty()) add(where_.tag_folder);
    add(where_.folder);
  }

  static FileBytes account_other(const fs::path& path, uint64_t size) {
    FileBytes file{.bytes = size};
    const std::string name = path.filename().string();
    const ShardName shard = classify(name);
    file.rank = shard.rank;
    if (name.ends_with(".safetensors")) {
      try {
        const FileSource source(path.string());
        const uint64_t header = read_safetensors_header(source).header_bytes;
        file.contents = {{"weights", size - header}, {"container", header}};
      } catch (const Error&) {
        file.contents = {{"unread", size}};
      }
      return file;
    }
    const bool bin =
        name.ends_with(".bin") && (name.starts_with("pytorch_model") ||
                                   name.starts_with("adapter_model"));
    file.contents = {{shard.kind != ShardKind::Other ? "unread"
                      : bin                          ? "weights"
                                                     : "side_files",
                      size}};
    return file;
  }

  void sum_up() {
    for (const std::string& content : content_order(result_.files)) {
      ContentBytes total{content, 0};
      for (const FileBytes& file : result_.files) {
        for (const ContentBytes& part : file.contents) {
          if (part.content == content) total.bytes += part.bytes;
        }
      }
      result_.totals.push_back(total);
      result_.total_bytes += total.bytes;
    }
  }

  uint64_t total_of(const std::string& content) const {
    for (const ContentBytes& total : result_.totals) {
      if (total.content == content) return total.bytes;
    }
    return 0;
  }

  void note(std::string text) { result_.notes.push_back(std::move(text)); }

  void write_notes() {
    for (const std::string& text : result_.facts.notes) note(text);
    note_frozen();
    note_save_only_model();
    if (shards_ != nullptr) {
      for (Finding& finding : check_placeholders(*shards_)) {
        result_.findings.push_back(std::move(finding));
      }
    }
    note_merge();
  }

  void note_frozen() {
    const uint64_t frozen = total_of("frozen");
    if (frozen == 0 || shards_ == nullptr) return;
    std::optional<DType> dtype;
    if (result_.checkpoint) {
      for (const Tensor& tensor : result_.checkpoint->tensors()) {
        if (tensor.role == Role::Frozen && !dtype) dtype = tensor.dtype;
      }
    }
    note("frozen weights take " + format_bytes(frozen) +
         (dtype ? " (" + std::string(short_name(*dtype)) + ")" : "") +
         ", which every save of this run repeats");
  }

  // save_only_model under ZeRO-3 without gathered weights: the Trainer leaves
  // out scheduler and random states, DeepSpeed saves everything all the same
  // (seen with DeepSpeed 0.14.2 and 0.19.8).
  void note_save_only_model() {
    if (where_.framework != Framework::HfTrainer || shards_ == nullptr) return;
    const bool scheduler = exists("scheduler.pt");
    const bool random = exists("rng_state_0.pth") || exists("rng_state.pth");
    if (scheduler || random || total_of("masters") == 0) return;
    uint64_t states = total_of("masters");
    for (const ContentBytes& total : result_.totals) {
      if (total.content.starts_with("exp_avg") ||
          total.content == "momentum_buffer") {
        states += total.bytes;
      }
    }
    note(
        "this looks like save_only_model: true, which has no effect on the "
        "shards under ZeRO-3 (the optimizer's " +
        format_bytes(states) +
        " are here all the same), but leaves out scheduler.pt and rng_state "
        "files, so the Trainer cannot resume from it");
  }

  bool exists(const std::string& name) const {
    std::error_code ignored;
    return fs::exists(fs::path(where_.folder) / name, ignored);
  }

  void note_merge() {
    if (!result_.checkpoint) return;
    uint64_t elements = 0;
    uint64_t fixed = 0;  // bytes of tensors that are not cast
    for (const std::string& name : result_.facts.module_order) {
      const Tensor* tensor = result_.checkpoint->find(name);
      if (tensor == nullptr) continue;
      if (is_floating(tensor->dtype)) {
        elements += tensor->numel;
      } else {
        fixed += tensor->numel * size_of(tensor->dtype);
      }
    }
    note("zckpt merge would write " + format_bytes(elements * 4 + fixed) +
         " as fp32, " + format_bytes(elements * 2 + fixed) +
         " as bf16 or fp16, in memory that does not grow with the model");
  }

  const CheckpointPath& where_;
  const OpenOptions& options_;
  std::shared_ptr<const ShardSet> shards_;
  Inspection result_;
};

}  // namespace

Inspection inspect(const std::string& path, const OpenOptions& options) {
  const std::vector<CheckpointPath> found = find_checkpoints(path, options);
  Inspection result = Inspector(found.front(), options).run();
  for (size_t i = 1; i < found.size(); ++i) {
    result.others.push_back(path_of(found[i]));
  }
  if (found.size() > 1) {
    result.notes.insert(result.notes.begin(),
                        "this is the highest step of " +
                            count_of(found.size(), "checkpoint") + " here");
  }
  return result;
}

}  // namespace zckpt
