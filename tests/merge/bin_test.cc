// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// --format bin: the same weights as in safetensors, which fixtures_test.cc
// holds against the runs' memory. tests/torch and tests/conformance read them
// with torch itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/stored_weights.h"
#include "writer/output_tools.h"
#include "zckpt/merge.h"

namespace zckpt {
namespace {

using testing::UnorderedElementsAre;
using Json = nlohmann::json;

std::vector<std::string> sound_cases() {
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(ZCKPT_FIXTURES) / "zero")) {
    if (!fs::exists(entry.path() / "case.json")) continue;
    const Json recipe =
        Json::parse(read_all(entry.path() / "case.json")).at("recipe");
    if (recipe.contains("grid") || recipe.contains("save")) continue;
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class BinTest : public OutputTestBase {
 protected:
  MergeResult merge(const std::string& name) {
    options_.output = out_;
    options_.sync = false;
    options_.force = true;
    return zckpt::merge(std::string(ZCKPT_FIXTURES) + "/zero/" + name + "/ckpt",
                        options_);
  }
  // All tensors of a folder of weights, as our reader sees them.
  static std::map<std::string, std::string> values(const std::string& folder) {
    std::map<std::string, std::string> values;
    const Checkpoint weights = Checkpoint::open(folder);
    for (const Tensor& tensor : weights.tensors()) {
      values[tensor.name] = std::string(short_name(tensor.dtype)) + ":" +
                            test::read_tensor(weights, tensor);
    }
    return values;
  }

  MergeOptions options_{.format = WeightFormat::Bin};
};

TEST_F(BinTest, EveryCaseHasTheValuesOfItsSafetensors) {
  const std::vector<std::string> cases = sound_cases();
  ASSERT_GT(cases.size(), 50U);
  for (const std::string& name : cases) {
    SCOPED_TRACE(name);
    for (const std::optional<DType> dtype :
         {std::optional(DType::F32), std::optional(DType::BF16),
          std::optional<DType>()}) {
      options_.dtype = dtype;
      options_.format = WeightFormat::Bin;
      const MergeResult result = merge(name);
      ASSERT_EQ(result.plan.files.size(), 1U);
      EXPECT_EQ(fs::file_size(fs::path(out_) / "pytorch_model.bin"),
                result.plan.files[0].size_bytes);
      std::map<std::string, std::string> bin = values(out_);
      options_.format = WeightFormat::Safetensors;
      merge(name);
      std::map<std::string, std::string> expected = values(out_);
      for (const auto& [alias, kept] : result.plan.aliases) {
        expected[alias] = expected.at(kept);
      }
      // Our reader may take one of two names over one storage for an alias.
      for (const auto& [read, value] : bin) {
        ASSERT_TRUE(expected.contains(read)) << read;
        EXPECT_EQ(value, expected[read]) << read;
        expected.erase(read);
      }
      for (const auto& item : expected) {
        const auto is_alias = [&](const auto& alias) {
          return alias.first == item.first || alias.second == item.first;
        };
        EXPECT_TRUE(std::any_of(result.plan.aliases.begin(),
                                result.plan.aliases.end(), is_alias))
            << item.first;
      }
    }
  }
}

TEST_F(BinTest, SameBytesHoweverItIsDone) {
  for (const char* name : {"v0.19.8-z2-bf16-n2", "v0.19.8-z3-bf16-n2"}) {
    options_ = {.format = WeightFormat::Bin, .max_shard_bytes = 3000};
    merge(name);
    const Tree expected = tree_of(out_);
    ASSERT_GT(expected.size(), 2U);
    for (const int threads : {1, 2, 8}) {
      for (const uint64_t chunk : {12U, 28U, 1U << 20}) {
        options_.open.threads = threads;
        options_.chunk_bytes = chunk;
        merge(name);
        EXPECT_TRUE(tree_of(out_) == expected) << threads << " " << chunk;
      }
    }
  }
}

TEST_F(BinTest, ShardsHaveAnIndexWithAllNames) {
  options_.max_shard_bytes = 3000;
  const MergeResult result = merge("v0.19.8-z2-bf16-n2");
  ASSERT_EQ(result.plan.aliases.size(), 1U);
  const auto& [alias, kept] = result.plan.aliases[0];
  const Json index =
      Json::parse(read_all(fs::path(out_) / "pytorch_model.bin.index.json"));
  const Json& map = index.at("weight_map");
  EXPECT_EQ(map.size(), result.plan.tensor_count + 1);
  EXPECT_EQ(map.at(alias), map.at(kept));
  EXPECT_EQ(index.at("metadata").size(), 2U);  // no aliases
  EXPECT_EQ(index.at("metadata").at("total_size"), result.plan.data_bytes);
  std::map<std::string, int> files;
  for (const auto& [name, file] : map.items()) ++files[file];
  for (const auto& [file, count] : files) {
    EXPECT_THAT(file, testing::MatchesRegex(
                          "pytorch_model-[0-9]{5}-of-[0-9]{5}\\.bin"));
    EXPECT_TRUE(fs::exists(fs::path(out_) / file));
  }
}

TEST_F(BinTest, CopiedAliasesHaveDataOfTheirOwn) {
  options_.aliases = Aliases::Copy;
  const MergeResult copied = merge("v0.19.8-z2-bf16-n2");
  EXPECT_TRUE(copied.plan.aliases.empty());
  options_.aliases = Aliases::Drop;
  const MergeResult shared = merge("v0.19.8-z2-bf16-n2");
  EXPECT_EQ(copied.plan.tensor_count, shared.plan.tensor_count + 1);
  EXPECT_EQ(values(out_).count("embed.weight"), 1U);
}

TEST_F(BinTest, OneFile) {
  options_.single_file = true;
  out_ += ".bin";
  merge("v0.19.8-z3-bf16-n2");
  EXPECT_TRUE(fs::is_regular_file(out_));
}

// The CRC of each record is that of its bytes, also where a window brings
// them in pieces.
TEST_F(BinTest, DamageInWhatWasWrittenIsSeen) {
  options_.chunk_bytes = 64;
  merge("v0.19.8-z3-bf16-n2");
  const std::string again = (folder_ / "again").string();
  MergeOptions reading{.output = again, .sync = false};
  zckpt::merge(out_, reading);
  fs::remove_all(again);
  const Checkpoint written = Checkpoint::open(out_);
  const Tensor* tensor = written.find("embed.weight");
  ASSERT_NE(tensor, nullptr);
  uint64_t offset = 0;
  written.extents(*tensor, 1, 1, [&](const Extent& e) { offset = e.offset; });
  test::flip_byte(fs::path(out_) / "pytorch_model.bin", offset);
  const auto error = test::caught([&] { zckpt::merge(out_, reading); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Corrupt);
  EXPECT_FALSE(fs::exists(again));
}

}  // namespace
}  // namespace zckpt
