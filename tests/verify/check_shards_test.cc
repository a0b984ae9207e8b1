// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "verify/check_test.h"

// What the files say, alone and compared with each other: one kind of damage
// per test, and exactly the findings that it deserves.

namespace zckpt::test {
namespace {

using CheckShards = CheckTest;

TEST_F(CheckShards, AcceptsWhatIsWhole) {
  for (const Writer writer : {Writer::Stage0, Writer::Stage1, Writer::Stage2,
                              Writer::Bf16Optimizer, Writer::Stage3}) {
    write(writer, 3);
    expect({});
    EXPECT_TRUE(checked_.checkpoint);
    fs::remove_all(tag());
  }
}

// -- the set of files

TEST_F(CheckShards, ReportsMissingOptimizerShards) {
  write(Writer::Stage2, 3);
  fs::remove(optim(0));
  fs::remove(optim(2));
  expect({"error optim-shard-missing " + optim_file(0) + " rank 0",
          "error optim-shard-missing " + optim_file(2) + " rank 2"});
  EXPECT_FALSE(checked_.checkpoint);
}

TEST_F(CheckShards, ReportsAMissingModelFile) {
  write(Writer::Stage2, 2);
  fs::remove(model());
  expect({"error model-shard-missing"});
}

TEST_F(CheckShards, ReportsAModelFileThatHoldsFrozenParts) {
  write(Writer::Stage3, 3);
  fs::remove(model(1));
  expect({"error model-shard-missing " + model_file(1) + " rank 1"});
}

TEST_F(CheckShards, DoesNotNeedOtherRanksModelFilesForTrainedWeights) {
  write(Writer::Stage3, 3, {}, [](ZeroRun& run) { run.frozen.clear(); });
  fs::remove(model(1));
  expect({"warning model-shard-missing " + model_file(1) + " rank 1"});
  ASSERT_TRUE(checked_.checkpoint);
  expect_truth(*checked_.checkpoint, made_->truth());
}

TEST_F(CheckShards, ReportsEveryModelFileGone) {
  write(Writer::Stage3, 2);
  fs::remove(model(0));
  fs::remove(model(1));
  expect({"error model-shard-missing " + model_file(0) + " rank 0",
          "error model-shard-missing " + model_file(1) + " rank 1"});
}

TEST_F(CheckShards, FindsAMissingShardElsewhere) {
  write(Writer::Stage3, 2);
  const fs::path other = folder_ / "node1/global_step3";
  fs::create_directories(other);
  fs::rename(optim(1), other / made_->optim_name(1));
  expect({"error optim-shard-missing " + optim_file(1) + " rank 1",
          "note shard-elsewhere " + optim_file(1) + " rank 1"});
  EXPECT_NE(checked_.findings[1].message.find(other.string()),
            std::string::npos);
  OpenOptions options;
  options.also = {folder_ / "node1"};
  expect({}, options);
  ASSERT_TRUE(checked_.checkpoint);
  expect_truth(*checked_.checkpoint, made_->truth());
}

TEST_F(CheckShards, LooksElsewhereFromARelativePathToo) {
  write(Writer::Stage3, 2);
  const fs::path other = folder_ / "node1/global_step3";
  fs::create_directories(other);
  fs::rename(optim(1), other / made_->optim_name(1));
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  const auto findings = check_folder("run/").findings;
  fs::current_path(before);
  EXPECT_THAT(places(findings),
              testing::UnorderedElementsAre(
                  "error optim-shard-missing " + optim_file(1) + " rank 1",
                  "note shard-elsewhere " + optim_file(1) + " rank 1"));
}

TEST_F(CheckShards, ReportsTwoFilesForOneShard) {
  write(Writer::Stage3, 2);
  ZeroCheckpoint later(sample_run(Writer::Stage3, 2));
  later.optim(1).root.set("ds_config", Py::dict());
  later.write(folder_ / "also");
  OpenOptions options;
  options.also = {folder_ / "also"};
  expect({"error shard-conflict " + made_->optim_name(1) + " rank 1"}, options);
  EXPECT_NE(first().message.find("also"), std::string::npos);
}

TEST_F(CheckShards, AcceptsTheSameFileTwice) {
  for (const bool legacy : {false, true}) {
    write(Writer::Stage3, 2, {},
          [&](ZeroRun& run) { run.legacy_container = legacy; });
    OpenOptions options;
    options.also = {folder_ / "run"};
    expect({}, options);
  }
}

TEST_F(CheckShards, TrustsNoSizesWithoutChecksums) {
  const auto no_crc = [](ZeroCheckpoint& made) {
    for (auto& record : made.optim(1).archive.records()) record.crc = 0;
  };
  write(Writer::Stage3, 2, no_crc);
  ZeroCheckpoint later(sample_run(Writer::Stage3, 2));
  no_crc(later);
  later.write(folder_ / "also");
  OpenOptions options;
  options.also = {folder_ / "also"};
  expect({"error shard-conflict " + made_->optim_name(1) + " rank 1"}, options);
}

TEST_F(CheckShards, IgnoresTheSurplusOfALargerRun) {
  write(Writer::Stage2, 4);
  write(Writer::Stage2, 2);
  expect({"warning shard-surplus"});
  EXPECT_NE(first().message.find(optim_file(3)), std::string::npos);
  ASSERT_TRUE(checked_.checkpoint);
  expect_truth(*checked_.checkpoint, made_->truth());
}

TEST_F(CheckShards, ReportsMixedPrecisions) {
  write(Writer::Stage2, 2);
  write(Writer::Stage2, 2, {},
        [](ZeroRun& run) { run.model_dtype = DType::F32; });
  expect({"error prefix-mixed",
          "error shard-conflict " + optim_file(0) + " rank 0",
          "error shard-conflict " + optim_file(1) + " rank 1"});
}

TEST_F(CheckShards, ReportsAShardOfAnotherStage) {
  write(Writer::Stage2, 2);
  ZeroCheckpoint other(sample_run(Writer::Stage3, 2));
  other.write(folder_ / "other");
  fs::copy_file(folder_ / ("other/" + optim_file(1)), optim(1),
                fs::copy_options::overwrite_existing);
  expect({"error stage-conflict " + optim_file(1) + " rank 1",
          "warning config-mismatch " + optim_file(1) + " rank 1"});
  EXPECT_FALSE(checked_.checkpoint);
  EXPECT_TRUE(caught([&] { Checkpoint::open(folder_ / "run"); }));
}

TEST_F(CheckShards, ReportsModelFilesOfAnotherStage) {
  write(Writer::Stage3, 2);
  fs::copy_file(model(0), folder_ / "kept");
  write(Writer::Stage2, 2);
  fs::copy_file(folder_ / "kept",
                tag() / "zero_pp_rank_0_mp_rank_00_model_states.pt",
                fs::copy_options::overwrite_existing);
  fs::remove(tag() / "zero_pp_rank_1_mp_rank_00_model_states.pt");
  expect(
      {"error stage-conflict global_step3/"
       "zero_pp_rank_0_mp_rank_00_model_states.pt rank 0",
       "warning config-mismatch global_step3/"
       "zero_pp_rank_0_mp_rank_00_model_states.pt rank 0"});
}

TEST_F(CheckShards, ReportsAStageThatContradictsItsPartitions) {
  write(Writer::Stage3, 2,
        [](ZeroCheckpoint& made) { made.inner(1).set("zero_stage", 2); });
  expect({"error stage-conflict " + optim_file(1) + " rank 1"});
}

TEST_F(CheckShards, ReportsAnotherWorldSize) {
  write(Writer::Stage2, 3, [](ZeroCheckpoint& made) {
    made.inner(2).set("partition_count", Py::list({5, 5}));
  });
  expect({"error world-size-conflict " + optim_file(2) + " rank 2"});
  EXPECT_NE(first().message.find("expected partition_count 3, found 5"),
            std::string::npos);
}

TEST_F(CheckShards, ReportsAModelFileOfAnotherWorldSize) {
  write(Writer::Stage2, 2, [](ZeroCheckpoint& made) {
    made.model().root.set("dp_world_size", 4);
  });
  expect({"error world-size-conflict " + model_file()});
}

// -- one save

TEST_F(CheckShards, ReportsAModelFileOfAnotherStep) {
  write(Writer::Stage3, 3, [](ZeroCheckpoint& made) {
    made.model(1).root.set("global_steps", 4);
  });
  expect({"error step-mismatch " + model_file(1) + " rank 1"});
  EXPECT_NE(first().message.find("expected 3, found 4"), std::string::npos);
}

TEST_F(CheckShards, ReportsAnOptimizerOfAnotherStep) {
  for (const bool integer : {false, true}) {
    ZeroRun run = sample_run(Writer::Stage2, 3);
    run.integer_step = integer;
    write(Writer::Stage2, 3, {},
          [&](ZeroRun& same) { same.integer_step = integer; });
    run.step = 2;
    run.tag = "other";
    ZeroCheckpoint(run).write(folder_ / "elsewhere");
    fs::copy_file(folder_ / ("elsewhere/other/" + made_->optim_name(1)),
                  optim(1), fs::copy_options::overwrite_existing);
    expect({"error step-mismatch " + optim_file(1) + " rank 1"});
  }
}

TEST_F(CheckShards, IgnoresAStepThatIsNoCount) {
  write(Writer::Stage2, 2, [](ZeroCheckpoint& made) {
    const Py nan = made.optim(0).archive.tensor(
        DType::F32, {}, std::vector<uint32_t>{0x7fc00000U});
    made.inner(0)
        .at("base_optimizer_state")
        .at("state")
        .set(0, Py::dict({{"step", nan}}))
        .set(1, Py::dict({{"step", -1e300}}));
  });
  expect({});
}

TEST_F(CheckShards, ReportsAnotherVersion) {
  write(Writer::Stage2, 3, [](ZeroCheckpoint& made) {
    made.optim(1).root.set("ds_version", "0.19.7");
  });
  expect({"warning version-mismatch " + optim_file(1) + " rank 1"});
  EXPECT_NE(first().message.find("expected 0.19.8, found 0.19.7"),
            std::string::npos);
}

TEST_F(CheckShards, ReportsAnotherConfiguration) {
  write(Writer::Stage3, 3, [](ZeroCheckpoint& made) {
    made.optim(2).root.at("ds_config").set("train_batch_size", 9);
  });
  expect({"warning config-mismatch " + optim_file(2) + " rank 2"});
}

TEST_F(CheckShards, ReportsOtherShapes) {
  write(Writer::Stage3, 3, [](ZeroCheckpoint& made) {
    made.model(2).root.set(
        "param_shapes", Py::list({Py::ordered_dict({{"w", Py::size({3})}})}));
  });
  expect({"error shapes-mismatch " + model_file(2) + " rank 2"});
}

TEST_F(CheckShards, ReportsOtherFrozenShapes) {
  write(Writer::Stage3, 3, [](ZeroCheckpoint& made) {
    made.model(0)
        .root.at("frozen_param_shapes")
        .set("adapter.bias", Py::size({6}));
  });
  expect({"error shapes-mismatch " + model_file(0) + " rank 0"});
}

TEST_F(CheckShards, ReportsGroupsOfAnotherLength) {
  write(Writer::Stage3, 3, [](ZeroCheckpoint& made) {
    made.inner(1).set(
        "fp32_flat_groups",
        Py::list({made.optim(1).archive.tensor(DType::F32, {3},
                                               std::vector<float>{1, 2, 3}),
                  made.inner(1).at("fp32_flat_groups")}));
    Py list = Py::list();
    list.append(made.optim(1).archive.tensor(DType::F32, {3},
                                             std::vector<float>{1, 2, 3}));
    made.inner(1).set("fp32_flat_groups", list);
  });
  expect({"error group-length-mismatch " + optim_file(1) + " rank 1"});
}

// -- files under another's name

TEST_F(CheckShards, ReportsSwappedRanks) {
  write(Writer::Stage3, 3);
  swap_files(optim(0), optim(2));
  expect({"error file-misnamed " + optim_file(0) + " rank 0",
          "error file-misnamed " + optim_file(2) + " rank 2"});
  EXPECT_NE(first().message.find("bf16_zero_pp_rank_2"), std::string::npos);
}

TEST_F(CheckShards, ReportsACopiedShard) {
  write(Writer::Stage3, 3, {}, [](ZeroRun& run) {
    run.groups[0].push_back({"wide", {40, 10}});
  });
  fs::copy_file(optim(0), optim(2), fs::copy_options::overwrite_existing);
  expect({"error file-misnamed " + optim_file(2) + " rank 2",
          "error file-duplicate " + optim_file(2) + " rank 2"});
}

// Without a rank in the archive only the contents tell.
TEST_F(CheckShards, ReportsACopiedShardWithoutAPrefix) {
  write(Writer::Stage3, 3, {}, [](ZeroRun& run) {
    run.archive_prefix = true;
    run.groups[0].push_back({"wide", {40, 10}});
  });
  fs::copy_file(optim(0), optim(2), fs::copy_options::overwrite_existing);
  expect({"error file-duplicate " + optim_file(2) + " rank 2"});
}

}  // namespace
}  // namespace zckpt::test
