// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/live_adapter.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "lora/config_checks.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

std::string list_of(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + escape(name);
  }
  return text;
}

class Finder {
 public:
  Finder(const Checkpoint& checkpoint, const LiveAdapterOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  LiveAdapter find() {
    choose_adapter();
    collect();
    check_pairs();
    settle_config();
    return std::move(found_);
  }

 private:
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
    std::set<std::string> trained;
    for (const Tensor& tensor : checkpoint_.tensors()) {
      const auto live = parse_live_name(tensor.name);
      if (!live || !is_best(checkpoint_, tensor)) continue;
      adapters_.insert(live->adapter);
      if (tensor.role == Role::Master) trained.insert(live->adapter);
    }
    if (adapters_.empty()) {
      throw Error(ErrorCode::Invalid,
                  "no tensor here has a name of a live PEFT model "
                  "(base_model.model.….lora_A.NAME.weight)" +
                      foreign_factors());
    }
    found_.name = options_.adapter_name;
    if (found_.name.empty()) {
      // The one that was trained is meant, others are scenery.
      const auto& choice = trained.size() == 1 ? trained : adapters_;
      if (choice.size() != 1) {
        throw Error(ErrorCode::Invalid,
                    "several adapters are here: " + list_of(adapters_) +
                        "; choose one with --adapter-name");
      }
      found_.name = *choice.begin();
    } else if (!adapters_.contains(found_.name)) {
      throw Error(ErrorCode::Invalid, "there is no adapter " +
                                          escape(found_.name) + " here, only " +
                                          list_of(adapters_));
    }
  }

  void collect() {
    for (const std::string& name : checkpoint_.facts().module_order) {
      const Tensor* tensor = checkpoint_.find(name);
      if (tensor == nullptr || tensor->name != name) continue;
      auto live = parse_live_name(name);
      if (live) {
        if (live->adapter != found_.name) continue;
        add(std::move(*live), tensor);
      } else if (tensor->role == Role::Master) {
        found_.others.push_back(tensor);
      }
    }
    for (const auto& [alias, kept] : checkpoint_.facts().aliases) {
      const auto live = parse_live_name(alias);
      if (!live || live->adapter != found_.name) continue;
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
    found_.parts.push_back({std::move(live), tensor});
  }

  // Factors come in pairs whose shapes fit.
  void check_pairs() {
    std::map<std::string, std::pair<const LivePart*, const LivePart*>> pairs;
    for (const LivePart& part : found_.parts) {
      if (part.live.part == AdapterPart::A) {
        pairs[part.live.module].first = &part;
      } else if (part.live.part == AdapterPart::B) {
        pairs[part.live.module].second = &part;
      }
    }
    for (const auto& [module, pair] : pairs) {
      const auto& [a, b] = pair;
      if (a == nullptr || b == nullptr) {
        const LivePart& there = a == nullptr ? *b : *a;
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
      found_.ranks[module] = left[0];
    }
    if (found_.parts.empty()) {
      throw Error(ErrorCode::Invalid, "the adapter holds nothing");
    }
  }

  // PEFT keeps the config of "default" in the checkpoint's folder, and those of
  // other adapters in folders of their names.
  fs::path find_config() const {
    const fs::path folder = checkpoint_.facts().folder;
    std::error_code ignored;
    if (found_.name != "default" &&
        found_.name.find('/') == std::string::npos) {
      fs::path own = folder / found_.name / kAdapterConfigName;
      if (fs::exists(own, ignored)) return own;
      if (adapters_.contains("default")) return {};
    }
    const fs::path root = folder / kAdapterConfigName;
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
    found_.config_text = read_text_file(file.string(), kAdapterConfigCap);
    found_.config_from = file.string();
    found_.config = parse_adapter_config(found_.config_text, file.string());
    check_config(file.string());
  }

  void make_config() {
    if (!options_.lora_alpha) {
      throw Error(ErrorCode::Invalid,
                  "there is no adapter_config.json of the adapter " +
                      escape(found_.name) + " in " +
                      escape(checkpoint_.facts().folder) +
                      ", and a checkpoint does not tell lora_alpha: give "
                      "--adapter-config FILE, or --lora-alpha X");
    }
    if (found_.has(AdapterPart::Tokens)) {
      throw Error(ErrorCode::Invalid,
                  "single tokens were trained, and only a config says which: "
                  "give --adapter-config FILE");
    }
    if (found_.ranks.empty()) {
      throw Error(ErrorCode::Invalid,
                  "no module has factors: give --adapter-config FILE");
    }
    std::set<std::string> saved;
    for (const LivePart& part : found_.parts) {
      if (part.live.part == AdapterPart::SavedModule) {
        saved.insert(part.live.module);
      }
    }
    found_.config_text = make_adapter_config(
        found_.ranks, saved, *options_.lora_alpha,
        found_.has(AdapterPart::Magnitude), found_.has(AdapterPart::BiasOfB));
    found_.config = parse_adapter_config(found_.config_text, "");
    found_.notes.push_back(
        "adapter_config.json was made with the alpha given and PEFT's "
        "defaults: plain scaling (no use_rslora), no target_parameters, no "
        "base model's name. A run that began with PiSSA, OLoRA, CorDA, "
        "LoRA-GA or LoftQ changed its base: it needs its own config");
  }

  void check_config(const std::string& file) {
    AdapterTensors tensors{.ranks = found_.ranks,
                           .token_rows = {},
                           .magnitudes = found_.has(AdapterPart::Magnitude),
                           .biases_of_b = found_.has(AdapterPart::BiasOfB)};
    for (const LivePart& part : found_.parts) {
      if (part.live.part == AdapterPart::Tokens) {
        const auto& shape = part.tensor->shape;
        tensors.token_rows[part.live.module] = shape.empty() ? 0 : shape[0];
      }
      if (part.live.part == AdapterPart::SavedModule &&
          !tied_.contains(part.live.module)) {
        tensors.saved_modules.insert(part.live.module);
      }
    }
    check_adapter_config(found_.config, file, tensors, found_.notes);
  }

  const Checkpoint& checkpoint_;
  const LiveAdapterOptions& options_;
  LiveAdapter found_;
  std::set<std::string> adapters_;  // all that are here
  std::set<std::string> tied_;      // modules that repeat another's data
  std::set<std::string> names_;
};

}  // namespace

bool LiveAdapter::has(AdapterPart part) const {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const LivePart& it) { return it.live.part == part; });
}

bool has_live_adapter(const Checkpoint& checkpoint) {
  const auto tensors = checkpoint.tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return parse_live_name(tensor.name).has_value();
  });
}

bool is_best(const Checkpoint& checkpoint, const Tensor& tensor) {
  return tensor.role != Role::State && checkpoint.find(tensor.name) == &tensor;
}

LiveAdapter find_live_adapter(const Checkpoint& checkpoint,
                              const LiveAdapterOptions& options) {
  return Finder(checkpoint, options).find();
}

}  // namespace zckpt
