// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/checkpoint.h"

#include <gtest/gtest.h>

#include <random>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/zero_partitions.h"

namespace zckpt::test {
namespace {

// A run, written and opened.
struct Opened {
  explicit Opened(const ZeroRun& run) : made(run) {
    made.write(folder.path());
    checkpoint.emplace(Checkpoint::open(folder.path().string()));
  }

  TempFolder folder;
  ZeroCheckpoint made;
  std::optional<Checkpoint> checkpoint;
};

struct RunCase {
  std::string name;
  ZeroRun run;
  std::string layout;
};

RunCase run_case(const std::string& name, Writer writer, uint32_t ranks,
                 const std::string& layout,
                 const std::function<void(ZeroRun&)>& change = {}) {
  RunCase made{name, sample_run(writer, ranks), layout};
  if (change) change(made.run);
  return made;
}

std::vector<RunCase> run_cases() {
  return {
      run_case("Stage2", Writer::Stage2, 2, "ZeRO-2"),
      run_case("Stage2OneRank", Writer::Stage2, 1, "ZeRO-2"),
      run_case("Stage2TwelveRanks", Writer::Stage2, 12, "ZeRO-2"),
      run_case("Stage2MoreRanksThanElements", Writer::Stage2, 40, "ZeRO-2"),
      run_case("Stage1", Writer::Stage1, 3, "ZeRO-1"),
      run_case("Stage1Fp32", Writer::Stage1, 3, "ZeRO-1",
               [](ZeroRun& run) { run.model_dtype = DType::F32; }),
      run_case("Bf16Optimizer", Writer::Bf16Optimizer, 3, "BF16_Optimizer"),
      run_case("Bf16OptimizerWithoutPaddings", Writer::Bf16Optimizer, 3,
               "BF16_Optimizer",
               [](ZeroRun& run) { run.no_group_paddings = true; }),
      run_case("Stage3", Writer::Stage3, 2, "ZeRO-3"),
      run_case("Stage3OneRank", Writer::Stage3, 1, "ZeRO-3"),
      run_case("Stage3TwelveRanks", Writer::Stage3, 12, "ZeRO-3"),
      run_case("Stage3Swapped", Writer::Stage3, 3, "ZeRO-3",
               [](ZeroRun& run) { run.swapped = {0}; }),
      run_case("Stage3NothingFrozen", Writer::Stage3, 3, "ZeRO-3",
               [](ZeroRun& run) { run.frozen.clear(); }),
      run_case("Stage3OldPlaceholders", Writer::Stage3, 3, "ZeRO-3",
               [](ZeroRun& run) {
                 run.old_placeholders = true;
                 run.shapes_in_optim = true;
                 run.frozen.clear();
                 run.version = "0.5.8";
                 run.stage_form = StageForm::Integer;
               }),
      run_case("Stage0", Writer::Stage0, 2, "ZeRO-0"),
      run_case("Stage0Unfused", Writer::Stage0, 2, "ZeRO-0",
               [](ZeroRun& run) { run.unfused = true; }),
      run_case("OldStage1", Writer::OldStage1, 3, "ZeRO-1 (before 0.5.9)",
               [](ZeroRun& run) {
                 run.shapes_in_optim = true;
                 run.version = "0.5.8";
                 run.stage_form = StageForm::Integer;
               }),
      run_case("OldStage1Intervals", Writer::OldStage1, 2,
               "ZeRO-1 (before 0.5.9)",
               [](ZeroRun& run) {
                 run.shapes_in_optim = true;
                 run.intervals = 3;
                 run.version = "0.4.0";
                 run.stage_form = StageForm::Integer;
               }),
      run_case("Version0314", Writer::Stage2, 3, "ZeRO-2",
               [](ZeroRun& run) {
                 run.groups = {run.groups[0]};
                 run.shapes_in_optim = run.shapes_as_dict = true;
                 run.elastic = run.narrow_alignment = true;
                 run.no_group_paddings = run.no_buffer_names = true;
                 run.no_shared_params = true;
                 run.stage_form = StageForm::Integer;
                 run.version.clear();
                 run.frozen.clear();
                 run.buffers.clear();
               }),
      run_case("Version090", Writer::Stage2, 3, "ZeRO-2",
               [](ZeroRun& run) {
                 run.no_shared_params = run.surplus_padding = true;
                 run.version = "0.9.0";
               }),
      run_case("TupleShapes", Writer::Stage3, 2, "ZeRO-3",
               [](ZeroRun& run) { run.shapes_as_tuples = true; }),
      run_case("GetattrStage", Writer::Stage1, 2, "ZeRO-1",
               [](ZeroRun& run) { run.stage_form = StageForm::Getattr; }),
      run_case("GetattrStage3", Writer::Stage3, 2, "ZeRO-3",
               [](ZeroRun& run) { run.stage_form = StageForm::Getattr; }),
      run_case("SurplusPadding", Writer::Stage2, 5, "ZeRO-2",
               [](ZeroRun& run) {
                 run.surplus_padding = true;
                 run.version = "0.16.3";
               }),
      run_case("Elastic", Writer::Stage2, 3, "ZeRO-2",
               [](ZeroRun& run) { run.elastic = true; }),
      run_case("ParameterAlignment", Writer::Stage2, 3, "ZeRO-2",
               [](ZeroRun& run) { run.parameter_alignment = true; }),
      run_case("IntegerStep", Writer::Stage2, 2, "ZeRO-2",
               [](ZeroRun& run) { run.integer_step = true; }),
      run_case("ArchivePrefix", Writer::Stage2, 2, "ZeRO-2",
               [](ZeroRun& run) { run.archive_prefix = true; }),
      run_case("LegacyContainer2", Writer::Stage2, 3, "ZeRO-2",
               [](ZeroRun& run) { run.legacy_container = true; }),
      run_case("LegacyContainer3", Writer::Stage3, 3, "ZeRO-3",
               [](ZeroRun& run) { run.legacy_container = true; }),
      run_case("OldNames", Writer::Stage2, 2, "ZeRO-2",
               [](ZeroRun& run) { run.old_names = true; }),
      run_case("EmptyAndScalar", Writer::Stage2, 3, "ZeRO-2",
               [](ZeroRun& run) {
                 run.groups[1].push_back({"nothing", {0, 5}});
                 run.groups[1].push_back({"scale", {}});
               }),
      run_case("EmptyAndScalar3", Writer::Stage3, 3, "ZeRO-3",
               [](ZeroRun& run) {
                 run.groups[1].push_back({"nothing", {0, 5}});
                 run.groups[1].push_back({"scale", {}});
                 run.frozen.push_back({"empty", {0}});
                 run.frozen.push_back({"temperature", {}});
               }),
      run_case("AliasFirst", Writer::Stage2, 2, "ZeRO-2",
               [](ZeroRun& run) {
                 run.module_order = {
                     "head.weight",    "gain",         "embed.weight",
                     "up.weight",      "up.bias",      "norm.weight",
                     "adapter.weight", "adapter.bias", "seen",
                     "mask",           "table"};
               }),
  };
}

class EveryRun : public testing::TestWithParam<RunCase> {};

// Every tensor of every role, bit for bit, and nothing found on the way.
TEST_P(EveryRun, IsReadBack) {
  TempFolder folder;
  const ZeroCheckpoint made(GetParam().run);
  made.write(folder.path());
  const CheckedCheckpoint checked = check_folder(folder.path().string());
  ASSERT_TRUE(checked.checkpoint) << describe(checked.findings);
  EXPECT_EQ(describe(checked.findings), "");
  EXPECT_EQ(checked.checkpoint->facts().layout, GetParam().layout);
  expect_truth(*checked.checkpoint, made.truth());
  EXPECT_EQ(checked.checkpoint->facts().aliases, GetParam().run.aliases);
}

// The extents of any range are those of the whole, cut.
TEST_P(EveryRun, GivesAnyRange) {
  const Opened opened(GetParam().run);
  std::mt19937 random(7);
  for (const Tensor& tensor : opened.checkpoint->tensors()) {
    const std::string whole = read_tensor(*opened.checkpoint, tensor);
    const uint64_t size = size_of(tensor.dtype);
    for (int i = 0; i < 20; ++i) {
      const uint64_t first = random() % (tensor.numel + 1);
      const uint64_t numel = random() % (tensor.numel - first + 1);
      std::string part(numel * size, '\0');
      opened.checkpoint->read(tensor, first, numel,
                              std::as_writable_bytes(std::span(part)));
      EXPECT_TRUE(part == whole.substr(first * size, numel * size))
          << tensor.name << " " << first << " " << numel;
    }
  }
}

// What the layouts themselves refuse where nobody made the checks before.
class Contradiction : public testing::Test {
 protected:
  void refuse(Writer writer, const std::string& part,
              const std::function<void(ZeroCheckpoint&)>& change) {
    const TempFolder folder;
    ZeroCheckpoint made(sample_run(writer, 2));
    change(made);
    made.write(folder.path());
    const auto error =
        caught([&] { Checkpoint::open(folder.path().string()); });
    ASSERT_TRUE(error) << part;
    EXPECT_EQ(error->code(), ErrorCode::Corrupt);
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos)
        << error->what();
  }
};

TEST_F(Contradiction, BetweenRanksOfOldStage1) {
  refuse(Writer::OldStage1, "number of sub-partitions",
         [](ZeroCheckpoint& made) {
           Py first = Py::list({made.optim(1).archive.tensor(
               DType::F32, {2}, std::vector<float>{1, 2})});
           made.inner(1).set("local_sub_partitions_of_fp32_groups",
                             Py::list({first}));
         });
}

TEST_F(Contradiction, BetweenShapesAndOldStage1) {
  refuse(Writer::OldStage1, "needs at least", [](ZeroCheckpoint& made) {
    made.model().root.set(
        "param_shapes",
        Py::list({Py::ordered_dict({{"a", Py::size({9999})}}),
                  Py::ordered_dict({{"gain", Py::size({13})}})}));
  });
}

TEST_F(Contradiction, BetweenGroupsOfStage3) {
  refuse(Writer::Stage3, "another number of groups than rank 0",
         [](ZeroCheckpoint& made) {
           made.inner(1).set("fp32_flat_groups", Py::list());
         });
}

TEST_F(Contradiction, BetweenShapesAndStage3) {
  // Another number of groups than the shards hold, so that their lengths count.
  refuse(Writer::Stage3, "elements per rank", [](ZeroCheckpoint& made) {
    for (const uint32_t rank : {0U, 1U}) {
      made.model(rank).root.set(
          "param_shapes",
          Py::list({Py::ordered_dict({{"a", Py::size({9999})}})}));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, EveryRun, testing::ValuesIn(run_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace zckpt::test
