// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace zckpt::cli {

// Options of the verbs that read the adapter of a LoRA run's checkpoint.
struct AdapterOptions {
  std::string name;
  std::string config;
  double alpha = 0;  // 0: not given

  void add_to(CLI::App& verb);
  std::optional<double> lora_alpha() const;
};

}  // namespace zckpt::cli
