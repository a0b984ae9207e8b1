// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "lora/python_regex.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// Keeps the order of keys, which decides between patterns.
using Json = nlohmann::ordered_json;

// Keys of PEFT's LoraConfig that are read here, or that do not matter once
// training is over (peft/tuners/lora/config.py). Any other that is set may mean
// other arithmetic.
constexpr std::array<std::string_view, 35> kKnownKeys{
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_bias",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "target_parameters",
    "task_type",
    "trainable_token_indices",
    "use_dora",
    "use_rslora",
    "unsloth_fixed",  // says that lengths of tokenizers were repaired
    "unsloth_version",
};

class ConfigReader {
 public:
  ConfigReader(const Json& root, const std::string& file)
      : root_(root), file_(file) {}

  AdapterConfig read() const {
    const Json* method = find("peft_type");
    if (method == nullptr || !method->is_string()) {
      corrupt("peft_type", "a method's name");
    }
    if (*method != "LORA") {
      throw Error(ErrorCode::Unsupported,
                  "adapters of the method " +
                      escape(method->get<std::string>()) +
                      " are not read yet, only LORA",
                  {.file = file_});
    }
    if (const Json* parameters = find("target_parameters");
        parameters != nullptr && !parameters->empty()) {
      throw Error(ErrorCode::Unsupported,
                  "adapters with target_parameters are not read yet",
                  {.file = file_});
    }
    AdapterConfig config;
    config.rank = count("r", find("r"), config.rank);
    if (const Json* alpha = find("lora_alpha")) {
      if (!alpha->is_number()) corrupt("lora_alpha", "a number");
      config.alpha = alpha->get<double>();
    }
    config.use_rslora = flag("use_rslora");
    config.use_dora = flag("use_dora");
    config.fan_in_fan_out = flag("fan_in_fan_out");
    config.lora_bias = flag("lora_bias");
    if (const Json* bias = find("bias")) {
      if (!bias->is_string()) corrupt("bias", "a word");
      config.bias = bias->get<std::string>();
    }
    if (const Json* pattern = find("rank_pattern")) {
      if (!pattern->is_object()) corrupt("rank_pattern", "an object");
      for (const auto& [key, value] : pattern->items()) {
        config.rank_pattern.emplace_back(key, count(key, &value, 0));
      }
    }
    if (const Json* pattern = find("alpha_pattern")) {
      if (!pattern->is_object()) corrupt("alpha_pattern", "an object");
      for (const auto& [key, value] : pattern->items()) {
        if (!value.is_number()) corrupt("alpha_pattern", "numbers");
        config.alpha_pattern.emplace_back(key, value.get<double>());
      }
    }
    config.modules_to_save = names("modules_to_save", nullptr);
    config.target_modules = names("target_modules", &config.target_pattern);
    config.exclude_modules = names("exclude_modules", &config.exclude_pattern);
    read_layers(config.layers);
    read_tokens(config.tokens);
    config.ensure_weight_tying = flag("ensure_weight_tying");
    const Json* pattern_of_layers = find("layers_pattern");
    config.has_layers_pattern =
        pattern_of_layers != nullptr && is_set(*pattern_of_layers);
    if (const Json* base = find("base_model_name_or_path");
        base != nullptr && base->is_string()) {
      config.base_model = base->get<std::string>();
    }
    for (const auto& [key, value] : root_.items()) {
      if (is_set(value) && !is_known(key)) config.unknown.push_back(key);
    }
    if (const Json* init = find("init_lora_weights");
        init != nullptr && init->is_string()) {
      config.init = init->get<std::string>();
    }
    return config;
  }

 private:
  [[noreturn]] void corrupt(const std::string& key,
                            const std::string& expected) const {
    throw Error(ErrorCode::Corrupt,
                "expected " + expected + " as " + escape(key), {.file = file_});
  }

  const Json* find(const char* key) const {
    const auto it = root_.find(key);
    return it == root_.end() || it->is_null() ? nullptr : &*it;
  }

  // A list of names; or one text, where that is allowed.
  std::vector<std::string> names(const char* key,
                                 std::optional<std::string>* single) const {
    std::vector<std::string> listed;
    const Json* value = find(key);
    if (value == nullptr) return listed;
    if (single != nullptr && value->is_string()) {
      *single = value->get<std::string>();
      return listed;
    }
    if (!value->is_array()) corrupt(key, "a list of names");
    for (const Json& name : *value) {
      if (!name.is_string()) corrupt(key, "a list of names");
      listed.push_back(name.get<std::string>());
    }
    return listed;
  }

  void read_layers(std::vector<uint64_t>& layers) const {
    const Json* value = find("layers_to_transform");
    if (value == nullptr) return;
    for (const Json& layer :
         value->is_array() ? *value : Json::array({*value})) {
      if (!layer.is_number_unsigned())
        corrupt("layers_to_transform", "numbers");
      layers.push_back(layer.get<uint64_t>());
    }
  }

  void read_tokens(std::vector<std::pair<std::string, std::vector<uint64_t>>>&
                       tokens) const {
    const Json* value = find("trainable_token_indices");
    if (value == nullptr) return;
    const auto add = [&](const std::string& module, const Json& list) {
      if (!list.is_array()) corrupt("trainable_token_indices", "indices");
      std::vector<uint64_t>& rows = tokens.emplace_back(module, 0).second;
      for (const Json& row : list) {
        if (!row.is_number_unsigned()) {
          corrupt("trainable_token_indices", "indices");
        }
        rows.push_back(row.get<uint64_t>());
      }
    };
    if (!value->is_object()) return add("", *value);
    for (const auto& [module, list] : value->items()) add(module, list);
  }

  // A key that changes nothing says nothing, whoever invented it.
  static bool is_set(const Json& value) {
    if (value.is_null() || value == false) return false;
    if (value.is_string()) return !value.get<std::string>().empty();
    return !value.is_structured() || !value.empty();
  }

  static bool is_known(const std::string& key) {
    return std::find(kKnownKeys.begin(), kKnownKeys.end(), key) !=
           kKnownKeys.end();
  }

  bool flag(const char* key) const {
    const Json* value = find(key);
    if (value != nullptr && !value->is_boolean()) corrupt(key, "true or false");
    return value != nullptr && value->get<bool>();
  }

  uint64_t count(const std::string& key, const Json* value,
                 uint64_t fallback) const {
    if (value == nullptr) return fallback;
    if (!value->is_number_unsigned() || value->get<uint64_t>() == 0) {
      corrupt(key, "a rank above 0");
    }
    return value->get<uint64_t>();
  }

  const Json& root_;
  const std::string& file_;
};

// Whether a number within the name, which PEFT may take for its layer's, is one
// of `layers`: newer versions take the first, older ones the last.
bool has_layer(const std::string& module, const std::vector<uint64_t>& layers) {
  size_t component = 0;
  for (size_t begin = 0; begin < module.size(); ++component) {
    const size_t end = module.find('.', begin);
    if (end == std::string::npos) return false;
    const auto number =
        parse_uint(std::string_view(module).substr(begin, end - begin));
    if (component >= 2 && number &&
        std::find(layers.begin(), layers.end(), *number) != layers.end()) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

}  // namespace

const std::vector<uint64_t>* AdapterConfig::tokens_of(
    std::string_view module) const {
  for (const auto& [key, rows] : tokens) {
    if (key.empty() || module == key || module.ends_with("." + key)) {
      return &rows;
    }
  }
  return nullptr;
}

bool AdapterConfig::changes_base() const {
  return !init.empty() && init != "gaussian" && init != "eva" &&
         init != "orthogonal" && init != "mica";
}

double AdapterConfig::scale_of(std::string_view module) const {
  double value = alpha;
  for (const auto& [key, given] : alpha_pattern) {
    if (!matches_module(key, module)) continue;
    value = given;
    break;
  }
  const auto r = static_cast<double>(rank_of(module));
  return use_rslora ? value / std::sqrt(r) : value / r;
}

uint64_t AdapterConfig::rank_of(std::string_view module) const {
  for (const auto& [key, value] : rank_pattern) {
    if (matches_module(key, module)) return value;
  }
  return rank;
}

bool AdapterConfig::targets(const std::string& module) const {
  const auto listed = [&](const std::vector<std::string>& names) {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) {
      return module == name || module.ends_with("." + name);
    });
  };
  const auto matches = [&](const std::optional<std::string>& pattern) {
    return pattern && matches_fully(*pattern, module);
  };
  if (listed(exclude_modules) || matches(exclude_pattern)) return false;
  if (target_pattern == "all-linear") return true;
  // PEFT then takes what is usual for the type of model.
  if (target_modules.empty() && !target_pattern) return true;
  if (target_pattern) return matches(target_pattern);
  if (std::find(target_modules.begin(), target_modules.end(), module) !=
      target_modules.end()) {
    return true;
  }
  // PEFT then adds the other side of a tie by itself.
  const bool tied = ensure_weight_tying && (module.ends_with("lm_head") ||
                                            module.ends_with("embed_tokens"));
  if (tied) return true;
  return listed(target_modules) &&
         (layers.empty() || has_layers_pattern || has_layer(module, layers));
}

AdapterConfig parse_adapter_config(const std::string& text,
                                   const std::string& file) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    throw Error(ErrorCode::Corrupt, "expected a JSON object", {.file = file});
  }
  return ConfigReader(root, file).read();
}

std::string make_adapter_config(const std::map<std::string, uint64_t>& ranks,
                                const std::set<std::string>& saved_modules,
                                double alpha, bool use_dora, bool lora_bias) {
  std::map<uint64_t, size_t> uses;
  for (const auto& [module, rank] : ranks) ++uses[rank];
  uint64_t common = ranks.begin()->second;
  for (const auto& [rank, count] : uses) {
    if (count > uses[common]) common = rank;
  }
  Json pattern = Json::object();
  Json targets = Json::array();
  for (const auto& [module, rank] : ranks) {
    targets.push_back(module);
    if (rank == common) continue;
    std::string key;  // a regular expression that matches nothing else
    for (const char c : module) {
      if (c == '.') key += '\\';
      key += c;
    }
    pattern[key] = rank;
  }
  Json alpha_json = alpha;
  constexpr double kWhole = 9.0e15;  // integers up to here are exact
  if (alpha < kWhole && alpha == std::floor(alpha)) {
    alpha_json = static_cast<int64_t>(alpha);
  }
  Json saved = nullptr;
  for (const std::string& module : saved_modules) saved.push_back(module);
  // Sorted, as PEFT writes it; what is left out has PEFT's defaults.
  Json config = Json::object();
  config["base_model_name_or_path"] = nullptr;
  config["bias"] = "none";
  config["inference_mode"] = true;
  config["lora_alpha"] = alpha_json;
  config["lora_bias"] = lora_bias;
  config["lora_dropout"] = 0.0;
  config["modules_to_save"] = saved;
  config["peft_type"] = "LORA";
  config["r"] = common;
  config["rank_pattern"] = pattern;
  config["target_modules"] = targets;
  config["task_type"] = nullptr;
  config["use_dora"] = use_dora;
  config["use_rslora"] = false;
  return config.dump(2);
}

}  // namespace zckpt
