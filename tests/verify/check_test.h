// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/checkpoint_tools.h"
#include "support/zero_partitions.h"

namespace zckpt::test {

namespace fs = std::filesystem;

// A finding as tests compare it: "error step-mismatch <file> rank 1".
inline std::vector<std::string> places(const std::vector<Finding>& findings) {
  std::vector<std::string> lines;
  for (const Finding& finding : findings) {
    std::string line =
        std::string(to_string(finding.severity)) + " " + finding.code;
    if (!finding.file.empty()) line += " " + finding.file;
    if (finding.rank) line += " rank " + std::to_string(*finding.rank);
    if (!finding.tensor.empty()) line += " tensor " + finding.tensor;
    if (finding.offset) line += " @" + std::to_string(*finding.offset);
    lines.push_back(line);
  }
  return lines;
}

class CheckTest : public testing::Test {
 protected:
  // Writes the sample run, changed in memory.
  void write(Writer writer, uint32_t ranks,
             const std::function<void(ZeroCheckpoint&)>& change = {},
             const std::function<void(ZeroRun&)>& change_run = {}) {
    ZeroRun run = sample_run(writer, ranks);
    if (change_run) change_run(run);
    made_ = std::make_unique<ZeroCheckpoint>(run);
    if (change) change(*made_);
    made_->write(folder_ / "run");
  }
  fs::path tag() const { return folder_ / "run/global_step3"; }
  fs::path model(uint32_t rank = 0) const {
    return tag() / made_->model_name(rank);
  }
  fs::path optim(uint32_t rank) const {
    return tag() / made_->optim_name(rank);
  }
  std::string model_file(uint32_t rank = 0) const {
    return "global_step3/" + made_->model_name(rank);
  }
  std::string optim_file(uint32_t rank) const {
    return "global_step3/" + made_->optim_name(rank);
  }

  void expect(const std::vector<std::string>& expected,
              const OpenOptions& options = {}) {
    checked_ = check_folder(folder_ / "run", options);
    EXPECT_THAT(places(checked_.findings),
                testing::UnorderedElementsAreArray(expected))
        << describe(checked_.findings);
  }
  // Where the last expect() left what was read.
  const Finding& first() const { return checked_.findings.at(0); }

  TempFolder folder_;
  std::unique_ptr<ZeroCheckpoint> made_;
  CheckedCheckpoint checked_;
};

}  // namespace zckpt::test
