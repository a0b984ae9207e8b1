// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/checkpoint_tools.h"
#include "zckpt/verify.h"

namespace zckpt::test {

// What DeepSpeed's load reads beside what a merge needs.
inline void complete(ZeroCheckpoint& made, const ZeroRun& run) {
  for (auto& [name, shard] : made.shards()) {
    if (run.version.empty()) continue;
    shard.root.at("ds_config")
        .set("bf16", Py::dict({{"enabled", run.model_dtype == DType::BF16}}));
  }
  if (run.writer == Writer::Stage0 || run.writer == Writer::OldStage1) return;
  const auto group = [&](Py::List params) {
    Py options = Py::dict({{"lr", 0.5}});
    if (!run.states.empty()) options.set("betas", Py::tuple({0.9, 0.99}));
    return options.set("params", Py::list(std::move(params)));
  };
  for (uint32_t rank = 0; rank < run.ranks; ++rank) {
    Py inner = made.inner(rank);
    Py groups = Py::list();
    if (run.writer == Writer::Stage3) {
      inner.set("loss_scaler", 1).set("dynamic_loss_scale", false);
      inner.set("overflow", false);
      Py::List params;
      for (size_t g = 0; g < run.groups.size(); ++g) params.emplace_back(g);
      inner.at("optimizer_state_dict")
          .set("param_groups", groups.append(group(params)));
    } else if (run.elastic) {
      inner.set("base_optimizer_state_step", run.step);
    } else {
      for (size_t g = 0; g < run.groups.size(); ++g) {
        groups.append(group({g}));
      }
      inner.at("base_optimizer_state").set("param_groups", groups);
    }
  }
}

// A checkpoint that resumes in every respect, for tests to spoil.
class Resumable : public testing::Test {
 protected:
  using Change = std::function<void(ZeroCheckpoint&)>;

  // Writes the sample run to folder()/, changed in memory.
  void write(Writer writer, const Change& change = {}, uint32_t ranks = 2,
             const std::function<void(ZeroRun&)>& change_run = {}) {
    ZeroRun run = sample_run(writer, ranks);
    if (change_run) change_run(run);
    tag_ = run.tag;
    made_ = std::make_unique<ZeroCheckpoint>(run);
    complete(*made_, run);
    if (change) change(*made_);
    made_->write(folder());
  }

  // What the Trainer writes around it.
  void add_trainer_files(int64_t step = 3, uint32_t ranks = 2) const {
    write_bytes(folder() / "trainer_state.json",
                R"({"global_step": )" + std::to_string(step) + "}");
    write_bytes(folder() / "scheduler.pt", small_archive());
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      write_bytes(folder() / ("rng_state_" + std::to_string(rank) + ".pth"),
                  small_archive());
    }
  }
  static std::string small_archive() {
    return TorchArchive("archive").set_root(Py::dict({{"a", 1}})).bytes();
  }

  void use(const std::string& name) { name_ = name; }
  std::filesystem::path folder() const { return temp_ / name_; }
  std::filesystem::path tag() const { return folder() / tag_; }
  std::filesystem::path optim(uint32_t rank) const {
    return tag() / made_->optim_name(rank);
  }
  std::filesystem::path model(uint32_t rank = 0) const {
    return tag() / made_->model_name(rank);
  }

  Verification judge(const VerifyOptions& options = {}) const {
    const VerifyResult result = verify(folder().string(), options);
    EXPECT_FALSE(result.is_run);
    return result.checkpoints.at(0);
  }

  // "error moment-missing <file> rank 1", one for each finding.
  static std::vector<std::string> places(const Verification& verification) {
    std::vector<std::string> lines;
    for (const Finding& finding : verification.findings) {
      std::string line =
          std::string(to_string(finding.severity)) + " " + finding.code;
      if (!finding.file.empty()) line += " " + finding.file;
      if (finding.rank) line += " rank " + std::to_string(*finding.rank);
      if (!finding.tensor.empty()) line += " tensor " + finding.tensor;
      lines.push_back(line);
    }
    return lines;
  }

  TempFolder temp_;
  std::string name_ = "save";
  std::string tag_;
  std::unique_ptr<ZeroCheckpoint> made_;
};

}  // namespace zckpt::test
