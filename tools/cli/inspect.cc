// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs.h"

namespace zckpt::cli {

Verb add_inspect(CLI::App& app) {
  const auto common = std::make_shared<CommonOptions>();
  CLI::App* command = app.add_subcommand("inspect", "Say what a folder is");
  common->add_to(*command);
  return {.name = "inspect",
          .json = &common->json,
          .run = [common](const Context&) { return 0; }};
}

}  // namespace zckpt::cli
