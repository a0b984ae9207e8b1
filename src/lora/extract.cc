// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/file.h"
#include "base/nonfinite.h"
#include "base/text.h"
#include "lora/adapter_config.h"
#include "lora/live_names.h"
#include "merge/plan_files.h"
#include "merge/write.h"
#include "zckpt/error.h"
#include "zckpt/lora.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConfigCap = uint64_t{1} << 24;
constexpr uint64_t kChunk = uint64_t{1} << 16;
constexpr const char* kConfigName = "adapter_config.json";

// A tensor of the adapter that is taken.
struct Part {
  LiveName live;
  const Tensor* tensor = nullptr;
};

std::string list_of(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + escape(name);
  }
  return text;
}

class Extractor {
 public:
  Extractor(const Checkpoint& checkpoint, const ExtractOptions& options,
            ExtractResult& result)
      : checkpoint_(checkpoint), options_(options), result_(result) {}

  void plan() {
    choose_adapter();
    collect();
    check_pairs();
    settle_config();
    check_values();
    Plan& plan = result_.written.plan;
    plan.dtype = options_.write.dtype;
    std::vector<NamedTensor> selected;
    for (const Part& part : parts_) {
      selected.push_back(
          {part.live.file_name,
           static_cast<uint32_t>(part.tensor - checkpoint_.tensors().data())});
    }
    // PEFT reads an adapter from one file.
    MergeOptions whole = options_.write;
    whole.max_shard_bytes = UINT64_MAX;
    plan_files(checkpoint_, selected, whole, "adapter_model", plan);
    PlannedFile config{.name = kConfigName, .header = config_text_};
    config.size_bytes = config.header.size();
    plan.files.push_back(std::move(config));
  }

 private:
  // What is written for a name: the best value there is.
  bool is_best(const Tensor& tensor) const {
    return tensor.role != Role::State &&
           checkpoint_.find(tensor.name) == &tensor;
  }

  void choose_adapter() {
    std::set<std::string> adapters;
    std::set<std::string> trained;
    for (const Tensor& tensor : checkpoint_.tensors()) {
      const auto live = parse_live_name(tensor.name);
      if (!live || !is_best(tensor)) continue;
      adapters.insert(live->adapter);
      if (tensor.role == Role::Master) trained.insert(live->adapter);
    }
    if (adapters.empty()) {
      throw Error(ErrorCode::Invalid,
                  "no tensor here has a name of a live PEFT model "
                  "(base_model.model.….lora_A.NAME.weight): this is no "
                  "checkpoint of a LoRA run");
    }
    std::string& name = result_.adapter_name;
    name = options_.adapter_name;
    if (name.empty()) {
      // The one that was trained is meant, others are scenery.
      const auto& choice = trained.size() == 1 ? trained : adapters;
      if (choice.size() != 1) {
        throw Error(ErrorCode::Invalid,
                    "several adapters are here: " + list_of(adapters) +
                        "; choose one with --adapter-name");
      }
      name = *choice.begin();
    } else if (!adapters.contains(name)) {
      throw Error(ErrorCode::Invalid, "there is no adapter " + escape(name) +
                                          " here, only " + list_of(adapters));
    }
  }

  void collect() {
    for (const std::string& name : checkpoint_.facts().module_order) {
      const Tensor* tensor = checkpoint_.find(name);
      if (tensor == nullptr || tensor->name != name) continue;
      auto live = parse_live_name(name);
      if (live) {
        if (live->adapter == result_.adapter_name)
          add(std::move(*live), tensor);
      } else if (tensor->role == Role::Master) {
        add_other(*tensor);
      }
    }
    for (const auto& [alias, kept] : checkpoint_.facts().aliases) {
      const auto live = parse_live_name(alias);
      if (!live || live->adapter != result_.adapter_name) continue;
      throw Error(ErrorCode::Unsupported,
                  "this part of the adapter is tied to " + escape(kept) +
                      ", which an adapter file cannot say",
                  {.tensor = alias});
    }
  }

  void add(LiveName live, const Tensor* tensor) {
    if (!names_.insert(live.file_name).second) {
      throw Error(ErrorCode::Corrupt,
                  "two tensors of the adapter would be called " +
                      escape(live.file_name),
                  {.tensor = tensor->name});
    }
    if (tensor->numel == 0) {
      throw Error(ErrorCode::Corrupt, "this part of the adapter is empty",
                  {.tensor = tensor->name});
    }
    parts_.push_back({std::move(live), tensor});
  }

  // Trained, but under no adapter's name: biases have a place in the file.
  void add_other(const Tensor& tensor) {
    if (tensor.name.starts_with(kPeftPrefix) &&
        tensor.name.ends_with(".bias")) {
      biases_.push_back(&tensor);
      return;
    }
    throw Error(ErrorCode::Unsupported,
                "this weight was trained beside the adapter, and an adapter "
                "file has no place for it; merge --exclude-frozen writes all "
                "that was trained",
                {.tensor = tensor.name});
  }

  // Factors come in pairs whose shapes fit.
  void check_pairs() {
    std::map<std::string, std::pair<const Part*, const Part*>> pairs;
    for (const Part& part : parts_) {
      if (part.live.part == AdapterPart::A) {
        pairs[part.live.module].first = &part;
      } else if (part.live.part == AdapterPart::B) {
        pairs[part.live.module].second = &part;
      }
    }
    for (const auto& [module, pair] : pairs) {
      const auto& [a, b] = pair;
      if (a == nullptr || b == nullptr) {
        const Part& there = a == nullptr ? *b : *a;
        throw Error(ErrorCode::Corrupt,
                    std::string("its counterpart lora_") +
                        (a == nullptr ? "A" : "B") + " is not here",
                    {.tensor = there.tensor->name});
      }
      const auto& left = a->tensor->shape;
      const auto& right = b->tensor->shape;
      if (left.size() < 2 || right.size() < 2 || left[0] != right[1]) {
        throw Error(ErrorCode::Corrupt,
                    "lora_A and lora_B of this module do not fit each other",
                    {.tensor = a->tensor->name});
      }
      ranks_[module] = left[0];
    }
    result_.modules = ranks_.size();
    if (parts_.empty()) {
      throw Error(ErrorCode::Invalid, "the adapter holds nothing");
    }
  }

  bool has(AdapterPart kind) const {
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) {
      return part.live.part == kind;
    });
  }

  void settle_config() {
    fs::path file = options_.adapter_config;
    if (file.empty()) {
      const fs::path own = fs::path(checkpoint_.facts().folder) / kConfigName;
      std::error_code ignored;
      if (fs::is_regular_file(own, ignored)) file = own;
    }
    if (file.empty()) {
      make_config();
      return;
    }
    if (options_.lora_alpha) {
      throw Error(ErrorCode::Invalid,
                  "--lora-alpha is for checkpoints without a config; this one "
                  "has " +
                      escape(file.string()));
    }
    config_text_ = read_text_file(file.string(), kConfigCap);
    result_.config_from = file.string();
    check_config(parse_adapter_config(config_text_, file.string()),
                 file.string());
  }

  void make_config() {
    if (!options_.lora_alpha) {
      throw Error(ErrorCode::Invalid,
                  "there is no adapter_config.json here, and a checkpoint does "
                  "not tell lora_alpha: give --adapter-config FILE, or "
                  "--lora-alpha X");
    }
    if (!biases_.empty()) {
      throw Error(ErrorCode::Invalid,
                  "biases were trained too; which of them a config would have "
                  "to say: give --adapter-config FILE",
                  {.tensor = biases_.front()->name});
    }
    if (has(AdapterPart::Tokens)) {
      throw Error(ErrorCode::Invalid,
                  "single tokens were trained, and only a config says which: "
                  "give --adapter-config FILE");
    }
    if (ranks_.empty()) {
      throw Error(ErrorCode::Invalid,
                  "no module has factors: give --adapter-config FILE");
    }
    std::set<std::string> saved;
    for (const Part& part : parts_) {
      if (part.live.part == AdapterPart::SavedModule) {
        saved.insert(part.live.module);
      }
    }
    config_text_ = make_adapter_config(ranks_, saved, *options_.lora_alpha,
                                       has(AdapterPart::Magnitude),
                                       has(AdapterPart::BiasOfB));
    result_.notes.push_back(
        "adapter_config.json was made with the alpha given and PEFT's "
        "defaults: plain scaling (no use_rslora), no base model's name");
  }

  void check_config(const AdapterConfig& config, const std::string& file) {
    for (const auto& [module, rank] : ranks_) {
      const uint64_t said = config.rank_of(module);
      if (said == rank) continue;
      throw Error(ErrorCode::Corrupt,
                  "the config gives the module " + escape(module) + " rank " +
                      std::to_string(said) + ", its factors have " +
                      std::to_string(rank) +
                      ": it is the config of another adapter",
                  {.file = file});
    }
    const auto agree = [&](bool config_says, bool tensors_say,
                           const std::string& what) {
      if (config_says == tensors_say) return;
      throw Error(ErrorCode::Corrupt,
                  std::string("the config says ") + (config_says ? "" : "no ") +
                      what + ", the tensors say otherwise",
                  {.file = file});
    };
    agree(config.use_dora, has(AdapterPart::Magnitude), "use_dora");
    agree(config.lora_bias, has(AdapterPart::BiasOfB), "lora_bias");
    for (const Part& part : parts_) {
      if (part.live.part != AdapterPart::SavedModule) continue;
      const std::string& module = part.live.module;
      const bool listed = std::any_of(
          config.modules_to_save.begin(), config.modules_to_save.end(),
          [&](const std::string& name) { return module.ends_with(name); });
      if (!listed) {
        throw Error(ErrorCode::Corrupt,
                    "the module " + escape(module) +
                        " was trained whole, and modules_to_save does not "
                        "list it",
                    {.file = file});
      }
    }
    add_biases(config, file);
  }

  // PEFT saves them under their own names.
  void add_biases(const AdapterConfig& config, const std::string& file) {
    if (!biases_.empty() && config.bias == "none") {
      throw Error(ErrorCode::Corrupt,
                  "this bias was trained, and the config says bias: none",
                  {.file = file, .tensor = biases_.front()->name});
    }
    for (const Tensor* bias : biases_) {
      parts_.push_back({{.file_name = bias->name}, bias});
    }
  }

  void check_values() {
    bool any_effect = false;
    for (const Part& part : parts_) {
      const bool found = has_value(*part.tensor);
      any_effect = any_effect || (found && part.live.part != AdapterPart::A);
    }
    if (!any_effect) {
      result_.notes.push_back(
          "every lora_B is zero: the adapter has no effect (nothing was "
          "trained yet)");
    }
  }

  // Whether anything is not zero. NaN and infinity are findings.
  bool has_value(const Tensor& tensor) {
    std::vector<std::byte> bytes;
    bool found = false;
    NonFinite all;
    for (uint64_t first = 0; first < tensor.numel;) {
      const uint64_t count = std::min(kChunk, tensor.numel - first);
      bytes.resize(static_cast<size_t>(count * size_of(tensor.dtype)));
      checkpoint_.read(tensor, first, count, bytes);
      found = found || std::any_of(bytes.begin(), bytes.end(), [](std::byte b) {
                return b != std::byte{};
              });
      const NonFinite here = count_nonfinite(tensor.dtype, bytes);
      all.nan += here.nan;
      all.inf += here.inf;
      first += count;
    }
    if (all.nan + all.inf != 0) {
      result_.written.findings.push_back(
          {.code = all.nan != 0 ? "nan" : "inf",
           .severity = Severity::Warning,
           .message = std::to_string(all.nan + all.inf) + " of " +
                      count_of(tensor.numel, "element") +
                      " are NaN or infinite",
           .tensor = tensor.name});
    }
    return found;
  }

  const Checkpoint& checkpoint_;
  const ExtractOptions& options_;
  ExtractResult& result_;
  std::vector<Part> parts_;
  std::vector<const Tensor*> biases_;  // trained, of the base model
  std::set<std::string> names_;
  std::map<std::string, uint64_t> ranks_;  // by module
  std::string config_text_;
};

}  // namespace

ExtractResult extract_lora(const std::string& path,
                           const ExtractOptions& options) {
  MergeOptions opening = options.write;
  opening.exclude_frozen = true;  // the base is no part of an adapter
  CheckedCheckpoint checked = open_checked(path, opening);
  ExtractResult result;
  result.written = begin_result(checked, options.write);
  // Remarks on the base model's names.
  std::erase_if(result.written.findings, [](const Finding& finding) {
    return finding.severity == Severity::Note;
  });
  Extractor(*checked.checkpoint, options, result).plan();
  write_plan(*checked.checkpoint, options.write, result.written);
  return result;
}

}  // namespace zckpt
