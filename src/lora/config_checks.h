// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lora/adapter_config.h"

namespace zckpt {

// What an adapter's tensors say of themselves.
struct AdapterTensors {
  std::map<std::string, uint64_t> ranks;  // by module with factors
  std::set<std::string> saved_modules;
  std::map<std::string, uint64_t> token_rows;  // by module
  bool magnitudes = false;                     // DoRA
  bool biases_of_b = false;                    // lora_bias
};

// Holds a config against the tensors that it is to describe: PEFT drops in
// silence what its config does not speak of. Adds remarks to `notes`.
// Errors: Corrupt, with `file`, where they contradict each other.
void check_adapter_config(const AdapterConfig& config, const std::string& file,
                          const AdapterTensors& tensors,
                          std::vector<std::string>& notes);

}  // namespace zckpt
