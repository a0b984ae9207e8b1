// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/zero_checkpoint.h"
#include "zckpt/verify.h"

namespace zckpt::test {

// One code, what brings it about, and what it must say.
struct Case {
  std::string code;
  Writer writer = Writer::Stage2;
  Severity resume = Severity::Error;
  Severity merge = Severity::Error;
  std::string file;  // the end of it
  std::optional<uint32_t> rank;
  std::function<void(ZeroCheckpoint&)> in_memory;
  std::function<void(const std::filesystem::path& folder,
                     const std::filesystem::path& tag, VerifyOptions& options)>
      on_disk;
  std::function<void(ZeroRun&)> run;
  bool trainer = false;
};

// An input for every code that verify can give from names and metadata.
std::vector<Case> cases();

}  // namespace zckpt::test
