// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zckpt {

inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr uint64_t kAdapterConfigCap = uint64_t{1} << 24;

// What adapter_config.json says that decides what an adapter's tensors mean.
struct AdapterConfig {
  uint64_t rank = 8;
  double alpha = 8;
  bool use_rslora = false;
  bool use_dora = false;
  bool fan_in_fan_out = false;
  bool lora_bias = false;
  std::string bias = "none";
  // In the order of the file: the first key that matches counts.
  std::vector<std::pair<std::string, uint64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;
  // Which modules PEFT gives factors to: names or their ends, or one regular
  // expression.
  std::vector<std::string> target_modules;
  std::optional<std::string> target_pattern;
  std::vector<std::string> exclude_modules;
  std::optional<std::string> exclude_pattern;
  std::vector<uint64_t> layers;  // layers_to_transform
  // Rows that trainable_token_indices lists, by module; "" for the plain list,
  // which speaks of the input embedding.
  std::vector<std::pair<std::string, std::vector<uint64_t>>> tokens;
  // How the factors began; empty for true and false.
  std::string init;
  std::string base_model;  // base_model_name_or_path
  // Keys that are set and that this program does not know or handle.
  std::vector<std::string> unknown;

  bool ensure_weight_tying = false;
  // A pattern tells which number is a layer's; it is not evaluated here.
  bool has_layers_pattern = false;

  // The rows that were trained of a module; null where it is not listed.
  const std::vector<uint64_t>* tokens_of(std::string_view module) const;
  // Whether the run changed its base model at the start, so that the adapter
  // is right on that one only (PiSSA and its like).
  bool changes_base() const;
  // The rank of the factors of `module`.
  uint64_t rank_of(std::string_view module) const;
  // What its product is multiplied with.
  double scale_of(std::string_view module) const;
  // Whether PEFT would give `module` factors when it loads the adapter; what
  // is in the file for other modules it drops in silence.
  bool targets(const std::string& module) const;
};

// Reads a config. Errors: Unsupported for a method other than LoRA, by its
// name; Corrupt for anything else that is no config of LoRA. Both name `file`.
AdapterConfig parse_adapter_config(const std::string& text,
                                   const std::string& file);

// What a config that is made has to say: ranks by module.
// REQUIRES: ranks is not empty.
std::string make_adapter_config(const std::map<std::string, uint64_t>& ranks,
                                const std::set<std::string>& saved_modules,
                                double alpha, bool use_dora, bool lora_bias);

}  // namespace zckpt
