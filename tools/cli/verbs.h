// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "cli/options.h"

namespace zckpt::cli {

// A verb that is ready to run: its subcommand holds the parsed options.
struct Verb {
  std::string name;
  const bool* json = nullptr;
  const bool* quiet = nullptr;
  std::function<int(const Context&)> run;
};

Verb add_export_hf(CLI::App& app);
Verb add_extract_lora(CLI::App& app);
Verb add_inspect(CLI::App& app);
Verb add_merge(CLI::App& app);
Verb add_verify(CLI::App& app);
Verb add_zero_to_fp32(CLI::App& app);

}  // namespace zckpt::cli
