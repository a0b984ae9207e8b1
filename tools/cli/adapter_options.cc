// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/adapter_options.h"

#include <cmath>

#include "base/text.h"

namespace zckpt::cli {

void AdapterOptions::add_to(CLI::App& verb) {
  verb.add_option("--adapter-name", name,
                  "Which of several adapters of the checkpoint, e.g. default")
      ->type_name("NAME");
  verb.add_option("--adapter-config", config,
                  "adapter_config.json of the run, instead of the "
                  "checkpoint's")
      ->type_name("FILE");
  verb.add_option("--lora-alpha", alpha,
                  "lora_alpha of the run, where no config is at hand")
      ->type_name("X")
      ->check([](const std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value > 0 &&
            std::isfinite(value)) {
          return "";
        }
        return "expected a number above 0, found " + escape(text);
      });
}

std::optional<double> AdapterOptions::lora_alpha() const {
  return alpha == 0 ? std::nullopt : std::optional(alpha);
}

}  // namespace zckpt::cli
