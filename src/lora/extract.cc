// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/bytes.h"
#include "base/file.h"
#include "base/nonfinite.h"
#include "base/parallel.h"
#include "base/text.h"
#include "lora/adapter_config.h"
#include "lora/config_checks.h"
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
    if (!options_.write.dry_run) check_values();  // reads payloads
    Plan& plan = result_.written.plan;
    plan.dtype = options_.write.dtype;
    std::vector<NamedTensor> selected;
    const auto select = [&](const std::string& name, const Tensor* tensor) {
      selected.push_back(
          {name, static_cast<uint32_t>(tensor - checkpoint_.tensors().data())});
    };
    for (const Part& part : parts_) select(part.live.file_name, part.tensor);
    for (const auto& [name, tensor] : extra_) select(name, tensor);
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

  // Factors under names that PEFT's own files do not have.
  std::string foreign_factors() const {
    for (const Tensor& tensor : checkpoint_.tensors()) {
      if (tensor.name.find(".lora_A.") != std::string::npos) {
        return ", but there are factors under other names, such as " +
               escape(tensor.name) + ", which are not read yet";
      }
    }
    return ": this is no checkpoint of a LoRA run";
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
                  "(base_model.model.….lora_A.NAME.weight)" +
                      foreign_factors());
    }
    adapters_ = adapters;
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
        if (live->adapter != result_.adapter_name) continue;
        add(std::move(*live), tensor);
      } else if (tensor->role == Role::Master) {
        add_other(*tensor);
      }
    }
    for (const auto& [alias, kept] : checkpoint_.facts().aliases) {
      const auto live = parse_live_name(alias);
      if (!live || live->adapter != result_.adapter_name) continue;
      const auto other = parse_live_name(kept);
      const Tensor* tensor = checkpoint_.find(kept);
      const bool alike = other && tensor != nullptr &&
                         other->adapter == live->adapter &&
                         other->part == live->part;
      if (alike && live->part == AdapterPart::Tokens) {
        continue;  // PEFT saves one and ties the other when it loads
      }
      if (alike && live->part == AdapterPart::SavedModule) {
        add(*live, tensor);  // PEFT saves both
        tied_.insert(live->module);
        continue;
      }
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
    if (!peft_name(tensor.name).empty() && tensor.name.ends_with(".bias")) {
      biases_.push_back(&tensor);
      return;
    }
    throw Error(ErrorCode::Unsupported,
                "this weight was trained beside the adapter, and an adapter "
                "file has no place for it (a value head, an unwrapped module); "
                "merge --exclude-frozen writes all that was trained",
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
      if (module.ends_with(".base_layer")) {
        throw Error(ErrorCode::Unsupported,
                    "factors within factors, as target_parameters of several "
                    "parameters leave them, are not read yet",
                    {.tensor = a->tensor->name});
      }
      ranks_[module] = left[0];
      add_embedding(module);
    }
    result_.modules = ranks_.size();
    if (parts_.empty()) {
      throw Error(ErrorCode::Invalid, "the adapter holds nothing");
    }
  }

  // PEFT saves the embedding beside the factors that were put on it.
  void add_embedding(const std::string& module) {
    const std::string name = module.substr(module.rfind('.') + 1);
    if (name != "embed_tokens" && name != "lm_head") return;
    const std::string end = module + ".base_layer.weight";
    for (const Tensor& tensor : checkpoint_.tensors()) {
      if (is_best(tensor) && peft_name(tensor.name).ends_with("." + end)) {
        extra_.push_back({std::string(kPeftPrefix) + end, &tensor});
        return;
      }
    }
    result_.notes.push_back(
        "PEFT would save the weight of " + escape(module) +
        " beside its factors; this save left it out: the base model must be "
        "the one of the run, with as many rows");
  }

  bool has(AdapterPart kind) const {
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) {
      return part.live.part == kind;
    });
  }

  // PEFT keeps the config of "default" in the checkpoint's folder, and those of
  // other adapters in folders of their names.
  fs::path find_config() const {
    const fs::path folder = checkpoint_.facts().folder;
    const std::string& name = result_.adapter_name;
    std::error_code ignored;
    if (name != "default" && name.find('/') == std::string::npos) {
      fs::path own = folder / name / kConfigName;
      if (fs::exists(own, ignored)) return own;
      if (adapters_.contains("default")) return {};
    }
    const fs::path root = folder / kConfigName;
    return fs::exists(root, ignored) ? root : fs::path();
  }

  void settle_config() {
    fs::path file = options_.adapter_config;
    if (file.empty()) file = find_config();
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
                  "there is no adapter_config.json of the adapter " +
                      escape(result_.adapter_name) + " in " +
                      escape(checkpoint_.facts().folder) +
                      ", and a checkpoint does not tell lora_alpha: give "
                      "--adapter-config FILE, or --lora-alpha X");
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
        "defaults: plain scaling (no use_rslora), no target_parameters, no "
        "base model's name. A run that began with PiSSA, OLoRA, CorDA, "
        "LoRA-GA or LoftQ changed its base: it needs its own config");
  }

  void check_config(const AdapterConfig& config, const std::string& file) {
    AdapterTensors tensors{.ranks = ranks_,
                           .token_rows = token_rows(),
                           .magnitudes = has(AdapterPart::Magnitude),
                           .biases_of_b = has(AdapterPart::BiasOfB)};
    for (const Part& part : parts_) {
      if (part.live.part == AdapterPart::SavedModule &&
          !tied_.contains(part.live.module)) {
        tensors.saved_modules.insert(part.live.module);
      }
    }
    check_adapter_config(config, file, tensors, result_.notes);
    add_biases(config, file);
  }

  // Rows of all trained tokens.
  uint64_t token_rows() const {
    uint64_t rows = 0;
    for (const Part& part : parts_) {
      if (part.live.part != AdapterPart::Tokens) continue;
      rows += part.tensor->shape.empty() ? 0 : part.tensor->shape[0];
    }
    return rows;
  }

  // PEFT saves them under their own names.
  void add_biases(const AdapterConfig& config, const std::string& file) {
    if (!biases_.empty() && config.bias == "none") {
      throw Error(ErrorCode::Corrupt,
                  "this bias was trained, and the config says bias: none",
                  {.file = file, .tensor = biases_.front()->name});
    }
    for (const Tensor* bias : biases_) {
      extra_.push_back({std::string(peft_name(bias->name)), bias});
    }
  }

  void check_values() {
    bool any_effect = false;
    for (const Part& part : parts_) {
      // The factor that begins as zero: A of embeddings, B of all others.
      const bool begins_random =
          part.live.part ==
          (part.live.is_embedding ? AdapterPart::B : AdapterPart::A);
      const bool found = has_value(*part.tensor);
      any_effect = any_effect || (found && !begins_random);
    }
    if (!any_effect) {
      result_.notes.push_back(
          "every factor that begins as zero still is: the adapter has no "
          "effect (nothing was trained yet)");
    }
  }

  // Whether anything is not zero. NaN and infinity are findings.
  bool has_value(const Tensor& tensor) {
    std::vector<std::byte> bytes;
    bool found = false;
    NonFinite all;
    for (uint64_t first = 0; first < tensor.numel;) {
      throw_if_stopped(options_.write.open.stop);
      const uint64_t count = std::min(kChunk, tensor.numel - first);
      bytes.resize(static_cast<size_t>(count * size_of(tensor.dtype)));
      checkpoint_.read(tensor, first, count, bytes);
      found = found || !all_zero(bytes);
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
  // What PEFT saves of the base model beside the adapter, by file name.
  std::vector<std::pair<std::string, const Tensor*>> extra_;
  std::set<std::string> adapters_;  // all that are here
  std::set<std::string> tied_;      // modules that repeat another's data
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
