// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/config_checks.h"

#include <algorithm>

#include "base/text.h"
#include "lora/python_regex.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

void check_rank(const AdapterConfig& config, const std::string& file,
                const std::string& module, uint64_t rank) {
  const uint64_t said = config.rank_of(module);
  if (said == rank) return;
  const bool sorted = std::any_of(
      config.rank_pattern.begin(), config.rank_pattern.end(),
      [&](const auto& entry) {
        return entry.second == rank && matches_module(entry.first, module);
      });
  throw Error(
      ErrorCode::Corrupt,
      "the config gives the module " + escape(module) + " rank " +
          std::to_string(said) + ", its factors have " + std::to_string(rank) +
          (sorted ? ": PEFT sorted rank_pattern when it saved, and the first "
                    "key that matches counts; give --adapter-config with the "
                    "keys in the run's order"
                  : ": it is the config of another adapter"),
      {.file = file});
}

// Of tied embeddings PEFT saves the rows once.
void check_tokens(const AdapterConfig& config, const std::string& file,
                  const AdapterTensors& tensors) {
  const auto refuse = [&](uint64_t listed, uint64_t held) {
    throw Error(ErrorCode::Corrupt,
                "trainable_token_indices lists " + count_of(listed, "token") +
                    ", the tensors hold " + std::to_string(held),
                {.file = file});
  };
  for (const auto& [module, rows] : tensors.token_rows) {
    const std::vector<uint64_t>* listed = config.tokens_of(module);
    if (listed == nullptr || listed->size() != rows) {
      refuse(listed == nullptr ? 0 : listed->size(), rows);
    }
  }
  if (tensors.token_rows.empty() && !config.tokens.empty()) {
    refuse(config.tokens.front().second.size(), 0);
  }
}

// PEFT sorts the keys when it saves, and the first that matches counts.
void note_alphas(const AdapterConfig& config, const std::string& module,
                 std::vector<std::string>& notes) {
  std::set<double> values;
  for (const auto& [key, value] : config.alpha_pattern) {
    if (matches_module(key, module)) values.insert(value);
  }
  if (values.size() < 2) return;
  notes.push_back(
      "several keys of alpha_pattern match " + escape(module) +
      " and say different things: PEFT sorted them when it saved, so it may "
      "load another alpha than the run had");
}

void note_init(const AdapterConfig& config, std::vector<std::string>& notes) {
  if (!config.changes_base()) return;
  const std::string& init = config.init;
  notes.push_back(
      "init_lora_weights is " + escape(init) +
      ": the run changed its base model at the start, and this adapter is "
      "right only on that base. PEFT computes it anew when it loads" +
      (init.find("niter") != std::string::npos
           ? ", by a randomised method: not the same one"
           : "") +
      "; merge the checkpoint's own base where the save holds it");
}

}  // namespace

void check_adapter_config(const AdapterConfig& config, const std::string& file,
                          const AdapterTensors& tensors,
                          std::vector<std::string>& notes) {
  for (const auto& [module, rank] : tensors.ranks) {
    check_rank(config, file, module, rank);
    if (!config.targets(module)) {
      throw Error(ErrorCode::Corrupt,
                  "by this config PEFT would give the module " +
                      escape(module) +
                      " no factors and drop those that are here: it is the "
                      "config of another adapter",
                  {.file = file});
    }
    note_alphas(config, module, notes);
  }
  check_tokens(config, file, tensors);
  note_init(config, notes);
  const auto agree = [&](bool config_says, bool tensors_say,
                         const std::string& what) {
    if (config_says == tensors_say) return;
    throw Error(ErrorCode::Corrupt,
                std::string("the config says ") + (config_says ? "" : "no ") +
                    what + ", the tensors say otherwise",
                {.file = file});
  };
  agree(config.use_dora, tensors.magnitudes, "use_dora");
  agree(config.lora_bias, tensors.biases_of_b, "lora_bias");
  for (const std::string& module : tensors.saved_modules) {
    const bool listed = std::any_of(
        config.modules_to_save.begin(), config.modules_to_save.end(),
        [&](const std::string& name) { return module.ends_with(name); });
    if (!listed) {
      throw Error(ErrorCode::Corrupt,
                  "the module " + escape(module) +
                      " was trained whole, and modules_to_save does not list "
                      "it",
                  {.file = file});
    }
  }
}

}  // namespace zckpt
