// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// What the options make of a checkpoint's plan. The checkpoint is a real one:
// ten trained tensors, two frozen ones, three buffers, head.weight tied to
// embed.weight.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/zero_checkpoint.h"
#include "zckpt/merge.h"

namespace zckpt {
namespace {

using test::caught;
using test::expect_error;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;
using Aliased = std::vector<std::pair<std::string, std::string>>;

Checkpoint open_case(const std::string& name) {
  return Checkpoint::open(std::string(ZCKPT_FIXTURES) + "/zero/" + name +
                          "/ckpt");
}

class PlanTest : public testing::Test {
 protected:
  Plan plan() const { return plan_merge(checkpoint_, options_); }
  std::set<std::string> names() const {
    std::set<std::string> names;
    const Plan plan = this->plan();
    for (const PlannedFile& file : plan.files) {
      for (const PlannedTensor& tensor : file.tensors) {
        EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
      }
    }
    return names;
  }
  // One name per file shows the order in which files are cut.
  std::vector<std::string> order() {
    options_.max_shard_bytes = 1;
    std::vector<std::string> names;
    const Plan plan = this->plan();
    for (const PlannedFile& file : plan.files) {
      for (const PlannedTensor& tensor : file.tensors) {
        names.push_back(tensor.name);
      }
    }
    return names;
  }
  void expect_refusal(ErrorCode code, std::string_view part) {
    expect_error(code, std::nullopt, part, [&] { plan(); });
  }

  Checkpoint checkpoint_ = open_case("v0.19.8-z2-bf16-n2");
  MergeOptions options_;
};

TEST_F(PlanTest, AllOfItInOneFile) {
  const Plan plan = this->plan();
  ASSERT_EQ(plan.files.size(), 1U);
  const PlannedFile& file = plan.files[0];
  EXPECT_EQ(file.name, "model.safetensors");
  EXPECT_EQ(plan.tensor_count, 15U);
  EXPECT_EQ(file.tensors.size(), 15U);
  EXPECT_EQ(plan.aliases, (Aliased{{"head.weight", "embed.weight"}}));
  uint64_t next = file.header.size();
  for (const PlannedTensor& tensor : file.tensors) {
    EXPECT_EQ(tensor.offset, next) << tensor.name;
    next += tensor.size_bytes;
  }
  EXPECT_EQ(next, file.size_bytes);
  EXPECT_EQ(next - file.header.size(), plan.data_bytes);
}

TEST_F(PlanTest, CountsLeaveBuffersAndTiedNamesOut) {
  // 1 + 37*13 + 13*2 + 29*13 + 29 + 13*29 + 13 + 13*2 + 13*13 + 13 elements.
  EXPECT_EQ(plan().parameter_count, 1512U);
  // As fp32, and tokens_seen (int64), mask (5 bools), table (3 x 7).
  EXPECT_EQ(plan().data_bytes, 1512U * 4 + 8 + 5 + 21 * 4);
  options_.aliases = Aliases::Copy;
  EXPECT_EQ(plan().parameter_count, 1512U + 37 * 13);
}

TEST_F(PlanTest, TheIndexSaysWhatTheFilesHold) {
  options_.max_shard_bytes = 2000;
  const Plan plan = this->plan();
  ASSERT_GT(plan.files.size(), 3U);
  const PlannedFile& last = plan.files.back();
  EXPECT_EQ(last.name, "model.safetensors.index.json");
  EXPECT_TRUE(last.tensors.empty());
  EXPECT_EQ(last.size_bytes, last.header.size());
  const Json index = Json::parse(last.header);
  EXPECT_EQ(index["metadata"]["total_size"], plan.data_bytes);
  EXPECT_EQ(index["metadata"]["total_parameters"], plan.parameter_count);
  EXPECT_EQ(index["metadata"]["head.weight"], "embed.weight");
  std::map<std::string, std::string> expected;
  for (const PlannedFile& file : plan.files) {
    uint64_t size = 0;
    for (const PlannedTensor& tensor : file.tensors) {
      expected[tensor.name] = file.name;
      size += tensor.size_bytes;
    }
    EXPECT_TRUE(size <= 2000 || file.tensors.size() == 1) << file.name;
  }
  EXPECT_EQ((index["weight_map"].get<std::map<std::string, std::string>>()),
            expected);
}

TEST_F(PlanTest, ASingleFileIsNeverCut) {
  options_.max_shard_bytes = 1;
  options_.single_file = true;
  EXPECT_EQ(plan().files.size(), 1U);
}

TEST_F(PlanTest, IncludeAndExclude) {
  options_.include = {"norm?.*", "up.bias"};
  EXPECT_THAT(names(), ElementsAre("norm1.bias", "norm1.weight", "norm2.bias",
                                   "norm2.weight", "up.bias"));
  options_.exclude = {"*.weight", "up.*"};
  EXPECT_THAT(names(), ElementsAre("norm1.bias", "norm2.bias"));
  EXPECT_TRUE(plan().aliases.empty());
}

TEST_F(PlanTest, APatternThatMatchesNothingIsATypingError) {
  options_.include = {"up.*", "layers.*"};
  expect_refusal(ErrorCode::Invalid, "no tensor name matches layers.*");
  options_.include = {};
  options_.exclude = {"Up.*"};
  expect_refusal(ErrorCode::Invalid, "no tensor name matches Up.*");
}

TEST_F(PlanTest, NothingLeftIsRefused) {
  options_.exclude = {"*"};
  expect_refusal(ErrorCode::Invalid, "no tensor is left");
  options_.exclude = {"up.*"};
  options_.include = {"up.*"};
  expect_refusal(ErrorCode::Invalid, "no tensor is left");
}

TEST_F(PlanTest, AliasesAreCopiedOnRequest) {
  options_.aliases = Aliases::Copy;
  const Plan plan = this->plan();
  EXPECT_TRUE(plan.aliases.empty());
  EXPECT_EQ(plan.tensor_count, 16U);
  std::map<std::string, PlannedTensor> found;
  for (const PlannedTensor& tensor : plan.files[0].tensors) {
    found[tensor.name] = tensor;
  }
  EXPECT_EQ(found.at("head.weight").runs.front().tensor,
            found.at("embed.weight").runs.front().tensor);
  EXPECT_NE(found.at("head.weight").offset, found.at("embed.weight").offset);
}

TEST_F(PlanTest, AnAliasWhoseKeptNameIsLeftOutIsWritten) {
  options_.exclude = {"embed.*"};
  EXPECT_TRUE(names().contains("head.weight"));
  EXPECT_FALSE(names().contains("embed.weight"));
  EXPECT_TRUE(plan().aliases.empty());
  options_.exclude = {};
  options_.include = {"head.*"};
  EXPECT_THAT(names(), ElementsAre("head.weight"));
}

TEST_F(PlanTest, AnExcludedAliasIsNotMentioned) {
  options_.exclude = {"head.*"};
  EXPECT_TRUE(plan().aliases.empty());
  EXPECT_EQ(plan().files[0].header.find("head.weight"), std::string::npos);
}

TEST_F(PlanTest, FrozenWeightsCanBeLeftOut) {
  options_.exclude_frozen = true;
  EXPECT_EQ(plan().tensor_count, 13U);
  EXPECT_FALSE(names().contains("adapter.weight"));
}

TEST_F(PlanTest, PrefixesAreStrippedWhereTheyAre) {
  options_.strip_prefix = "norm";
  EXPECT_TRUE(names().contains("1.weight"));
  EXPECT_TRUE(names().contains("up.weight"));
  options_.strip_prefix = "embed.";  // aliases refer to the new name
  EXPECT_EQ(plan().aliases, (Aliased{{"head.weight", "weight"}}));
}

TEST_F(PlanTest, APrefixThatNoNameHasIsATypingError) {
  options_.strip_prefix = "module.";
  expect_refusal(ErrorCode::Invalid, "no tensor name begins with module.");
}

TEST_F(PlanTest, PrefixesOfAFrameworkAreStripped) {
  const Checkpoint lightning = Checkpoint::open(
      std::string(ZCKPT_FIXTURES) + "/hf/lightning_z2_fp32/last.ckpt");
  options_.strip_prefix = "model.";
  const Plan stripped = plan_merge(lightning, options_);
  EXPECT_EQ(stripped.aliases,
            (Aliased{{"lm_head.weight", "model.embed_tokens.weight"}}));
}

TEST_F(PlanTest, NamesThatCollideOrVanishAreRefused) {
  options_.strip_prefix = "embed.weight";
  expect_refusal(ErrorCode::Invalid, "nothing would be left");
  test::ZeroRun run;
  run.groups = {{{"a.w", {3}}, {"w", {3}}}};
  const test::TempFolder folder;
  test::ZeroCheckpoint(run).write(folder.path());
  options_.strip_prefix = "a.";
  const std::optional<Error> error = caught(
      [&] { plan_merge(Checkpoint::open(folder.path().string()), options_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Conflict);
  EXPECT_EQ(error->tensor(), "w");
}

TEST_F(PlanTest, AliasesThatCollideAreRefused) {
  test::ZeroRun run;
  run.groups = {{{"v", {3}}, {"w", {3}}}};
  run.aliases = {{"a.w", "v"}};
  const test::TempFolder folder;
  test::ZeroCheckpoint(run).write(folder.path());
  options_.strip_prefix = "a.";
  const std::optional<Error> error = caught(
      [&] { plan_merge(Checkpoint::open(folder.path().string()), options_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Conflict);
  EXPECT_EQ(error->tensor(), "w");
}

TEST_F(PlanTest, OrderOfTheModuleOrOfTheShards) {
  EXPECT_THAT(order(), ElementsAre("gain", "tokens_seen", "mask", "table",
                                   "embed.weight", "norm1.weight", "norm1.bias",
                                   "adapter.weight", "adapter.bias",
                                   "up.weight", "up.bias", "down.weight",
                                   "down.bias", "norm2.weight", "norm2.bias"));
  options_.order = TensorOrder::ParamShapes;
  // zero_to_fp32: buffers, frozen weights, groups (with and without decay).
  EXPECT_THAT(
      order(),
      ElementsAre("tokens_seen", "mask", "table", "adapter.weight",
                  "adapter.bias", "embed.weight", "up.weight", "down.weight",
                  "gain", "norm1.weight", "norm1.bias", "up.bias", "down.bias",
                  "norm2.weight", "norm2.bias"));
}

TEST_F(PlanTest, OnlyFloatingTensorsAreCast) {
  for (const auto dtype : {DType::F32, DType::BF16, DType::F16}) {
    options_.dtype = dtype;
    const Plan plan = this->plan();
    for (const PlannedTensor& tensor : plan.files[0].tensors) {
      const DType expected = tensor.name == "tokens_seen" ? DType::I64
                             : tensor.name == "mask"      ? DType::Bool
                                                          : dtype;
      EXPECT_EQ(tensor.dtype, expected) << tensor.name;
    }
  }
  options_.dtype = std::nullopt;
  const Plan kept = plan();
  for (const PlannedTensor& tensor : kept.files[0].tensors) {
    if (tensor.name.starts_with("adapter")) {
      EXPECT_EQ(tensor.dtype, DType::BF16);
    }
  }
}

TEST_F(PlanTest, TheSameInputsGiveTheSamePlan) {
  options_.max_shard_bytes = 2000;
  const Plan a = plan();
  const Plan b = plan_merge(open_case("v0.19.8-z2-bf16-n2"), options_);
  ASSERT_EQ(a.files.size(), b.files.size());
  for (size_t i = 0; i < a.files.size(); ++i) {
    EXPECT_EQ(a.files[i].header, b.files[i].header);
    EXPECT_EQ(a.files[i].size_bytes, b.files[i].size_bytes);
  }
}

}  // namespace
}  // namespace zckpt
