// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// Every checkpoint under tests/fixtures, merged and held against what the run
// had in memory. Outputs are read and numbers converted by code of the tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rounding_oracle.h"
#include "reader/torch_file.h"
#include "support/caught.h"
#include "support/stored_weights.h"
#include "writer/output_tools.h"
#include "zckpt/merge.h"

namespace zckpt {
namespace {

using test::read_stored_file;
using test::read_stored_folder;
using test::StoredTensor;
using test::StoredWeights;
using testing::HasSubstr;
using Json = nlohmann::json;

enum class Kind { Full, FrozenLeftOut, Grid };

struct Fixture {
  std::string name;
  std::string folder;  // with case.json and truth.safetensors
  std::string checkpoint;
  Kind kind = Kind::Full;
  std::string layout;  // Grid: what the refusal must name
};

void PrintTo(const Fixture& fixture, std::ostream* out) {
  *out << fixture.name;
}

Json case_of(const fs::path& folder) {
  return Json::parse(read_all(folder / "case.json"));
}

void add_zero(const fs::path& folder, std::vector<Fixture>& out) {
  Fixture fixture{.name = folder.filename().string(),
                  .folder = folder.string(),
                  .checkpoint = (folder / "ckpt").string()};
  const Json recipe = case_of(folder).at("recipe");
  if (recipe.contains("grid")) {
    fixture.kind = Kind::Grid;
    const std::string grid = recipe["grid"];
    fixture.layout = grid == "experts"    ? "mixture of experts"
                     : grid == "pipeline" ? "pipeline parallelism"
                                          : "tensor or model parallelism";
  } else if (recipe.contains("save")) {
    fixture.kind = Kind::FrozenLeftOut;
  }
  out.push_back(fixture);
}

void add_hf(const fs::path& folder, std::vector<Fixture>& out) {
  const Json what = case_of(folder).at("case");
  const bool lora = !what.at("lora").is_null();
  for (const char* name : {"checkpoint-2", "state", "last.ckpt", "final"}) {
    const fs::path checkpoint = folder / name;
    if (!fs::exists(checkpoint / "latest")) continue;  // an adapter alone
    // What trainer.save_model and save_only_model write holds frozen weights.
    const bool frozen_left_out = lora && checkpoint.filename() != "final" &&
                                 !what.at("save_only_model").get<bool>();
    out.push_back({.name = folder.filename().string() + "_" + name,
                   .folder = folder.string(),
                   .checkpoint = checkpoint.string(),
                   .kind = frozen_left_out ? Kind::FrozenLeftOut : Kind::Full});
  }
}

std::vector<Fixture> fixtures(bool (*wanted)(const Fixture&)) {
  std::vector<Fixture> found;
  for (const auto& [family, add] :
       {std::pair{"zero", &add_zero}, std::pair{"hf", &add_hf}}) {
    std::vector<fs::path> folders;
    for (const auto& entry :
         fs::directory_iterator(fs::path(ZCKPT_FIXTURES) / family)) {
      if (fs::exists(entry.path() / "case.json")) {
        folders.push_back(entry.path());
      }
    }
    std::sort(folders.begin(), folders.end());
    for (const fs::path& folder : folders) add(folder, found);
  }
  std::erase_if(found, [&](const Fixture& f) { return !wanted(f); });
  return found;
}

std::string test_name(const testing::TestParamInfo<Fixture>& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; },
      '_');
  return name;
}

// ---- the truth, and what it becomes in another dtype ----

struct Truth {
  StoredWeights weights;
  std::map<std::string, std::string> aliases;  // zero/ only
};

Truth truth_of(const Fixture& fixture) {
  Truth truth{.weights =
                  read_stored_file(fixture.folder + "/truth.safetensors")};
  if (truth.weights.metadata.contains("aliases")) {
    truth.aliases = Json::parse(truth.weights.metadata["aliases"])
                        .get<std::map<std::string, std::string>>();
  }
  // Buffers of hf/: those that are not persistent are in no checkpoint.
  std::erase_if(truth.weights.tensors,
                [](const auto& t) { return t.first.starts_with("buffer:"); });
  return truth;
}

double half_value(const RoundingOracle& oracle, uint16_t bits) {
  const auto magnitude = static_cast<uint16_t>(bits & 0x7fffU);
  double number = std::numeric_limits<double>::infinity();
  if (magnitude > oracle.infinity()) {
    number = std::numeric_limits<double>::quiet_NaN();
  } else if (magnitude < oracle.infinity()) {
    number = oracle.value(magnitude);
  }
  return std::copysign(number, (bits & 0x8000U) != 0 ? -1.0 : 1.0);
}

StoredTensor converted(const StoredTensor& tensor, const std::string& to) {
  const std::string& from = tensor.dtype;
  if (from == to || (from != "F32" && from != "BF16" && from != "F16")) {
    return tensor;
  }
  StoredTensor result{.dtype = to, .shape = tensor.shape};
  const size_t size = from == "F32" ? 4 : 2;
  for (size_t at = 0; at < tensor.bytes.size(); at += size) {
    double number = 0;
    if (from == "F32") {
      float value = 0;
      std::memcpy(&value, &tensor.bytes[at], 4);
      number = static_cast<double>(value);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, &tensor.bytes[at], 2);
      number = half_value(
          from == "BF16" ? RoundingOracle::bf16() : RoundingOracle::fp16(),
          bits);
    }
    if (to == "F32") {
      const auto value = static_cast<float>(number);  // exact
      result.bytes.append(reinterpret_cast<const char*>(&value), 4);
    } else {
      const uint16_t bits =
          (to == "BF16" ? RoundingOracle::bf16() : RoundingOracle::fp16())
              .convert(number);
      result.bytes.append(reinterpret_cast<const char*>(&bits), 2);
    }
  }
  return result;
}

void expect_equal(const StoredWeights& found, const Truth& truth,
                  const std::string& dtype) {
  std::vector<std::string> names;
  std::vector<std::string> expected;
  for (const auto& [name, t] : found.tensors) names.push_back(name);
  for (const auto& [name, t] : truth.weights.tensors) expected.push_back(name);
  ASSERT_EQ(names, expected);
  for (const auto& [name, tensor] : truth.weights.tensors) {
    const StoredTensor& have = found.tensors.at(name);
    const StoredTensor want = dtype.empty() ? tensor : converted(tensor, dtype);
    EXPECT_EQ(have.dtype, want.dtype) << name;
    EXPECT_EQ(have.shape, want.shape) << name;
    EXPECT_TRUE(have.bytes == want.bytes) << name << " as " << dtype;
  }
}

constexpr uint64_t kWhole = 5'000'000'000;  // bytes: all in one file

// ---- the tests ----

class Merging : public OutputTestBase,
                public testing::WithParamInterface<Fixture> {
 protected:
  MergeOptions options() const {
    MergeOptions options{.output = out_, .force = true, .sync = false};
    options.open.threads = 1;
    return options;
  }
};

using MergeFixture = Merging;

TEST_P(MergeFixture, GivesTheTruthInEveryDtype) {
  const Truth truth = truth_of(GetParam());
  const std::map<std::string, std::optional<DType>> dtypes{
      {"", std::nullopt},
      {"F32", DType::F32},
      {"BF16", DType::BF16},
      {"F16", DType::F16}};
  for (const auto& [name, dtype] : dtypes) {
    for (const uint64_t shard : {kWhole, uint64_t{2000}, uint64_t{700}}) {
      MergeOptions options = this->options();
      options.dtype = dtype;
      options.max_shard_bytes = shard;
      merge(GetParam().checkpoint, options);
      expect_equal(read_stored_folder(out_), truth, name);
    }
    MergeOptions options = this->options();
    options.dtype = dtype;
    options.output = out_ + "-one.safetensors";
    options.single_file = true;
    merge(GetParam().checkpoint, options);
    expect_equal(read_stored_file(options.output), truth, name);
  }
}

TEST_P(MergeFixture, HowItIsReadChangesNoByte) {
  struct How {
    int threads;
    uint64_t chunk_bytes;
    uint64_t memory_bytes;
  };
  for (const auto& [shard, dtype] :
       {std::pair{kWhole, std::optional<DType>()},
        std::pair{uint64_t{700}, std::optional(DType::BF16)}}) {
    MergeOptions options = this->options();
    options.max_shard_bytes = shard;
    options.dtype = dtype;
    merge(GetParam().checkpoint, options);
    const Tree expected = tree_of(out_);
    for (const How how :
         {How{2, 4U << 20U, 16U << 20U}, How{8, 4U << 20U, 16U << 20U},
          How{1, 4, 16U << 20U}, How{8, 12, 16U << 20U}, How{2, 28, 16U << 20U},
          How{1, 4U << 20U, 32}, How{2, 4U << 20U, 1000},
          How{8, 4U << 20U, 1U << 30U}, How{2, 100, 100}}) {
      options.open.threads = how.threads;
      options.chunk_bytes = how.chunk_bytes;
      options.memory_bytes = how.memory_bytes;
      merge(GetParam().checkpoint, options);
      EXPECT_TRUE(tree_of(out_) == expected)
          << how.threads << " threads, chunks of " << how.chunk_bytes
          << ", memory " << how.memory_bytes;
    }
  }
}

TEST_P(MergeFixture, TiedNamesAreThoseOfTheRun) {
  const Truth truth = truth_of(GetParam());
  MergeOptions options = this->options();
  for (const uint64_t shard : {kWhole, uint64_t{700}}) {
    options.max_shard_bytes = shard;
    const MergeResult result = merge(GetParam().checkpoint, options);
    const StoredWeights found = read_stored_folder(out_);
    std::map<std::string, std::string> metadata = found.metadata;
    metadata.erase("format");
    if (truth.weights.metadata.contains("aliases") ||
        GetParam().name.starts_with("v")) {
      EXPECT_EQ(metadata, truth.aliases);
    }
    EXPECT_EQ((std::map<std::string, std::string>(result.plan.aliases.begin(),
                                                  result.plan.aliases.end())),
              metadata);

    options.aliases = Aliases::Copy;
    merge(GetParam().checkpoint, options);
    const StoredWeights copied = read_stored_folder(out_);
    options.aliases = Aliases::Drop;
    EXPECT_EQ(copied.tensors.size(), found.tensors.size() + metadata.size());
    for (const auto& [alias, kept] : metadata) {
      EXPECT_TRUE(copied.tensors.at(alias) == found.tensors.at(kept)) << alias;
      EXPECT_FALSE(copied.metadata.contains(alias));
    }
  }
}

// A file for every tensor shows the order in which names are written; those
// without elements end up in the last one.
TEST_P(MergeFixture, FollowsTheModulesOrder) {
  MergeOptions options = this->options();
  options.max_shard_bytes = 1;
  options.dry_run = true;
  const MergeResult result = merge(GetParam().checkpoint, options);
  const Truth truth = truth_of(GetParam());
  fs::path model_file;
  for (const auto& entry :
       fs::recursive_directory_iterator(GetParam().checkpoint)) {
    const std::string name = entry.path().filename().string();
    if (name == "mp_rank_00_model_states.pt" ||
        name == "zero_pp_rank_0_mp_rank_00_model_states.pt") {
      model_file = entry.path();
    }
  }
  const FileSource source(model_file.string());
  const TorchFile file = TorchFile::open(source);
  const Value module = *file.root().find("module");
  const std::map<std::string, std::string> aliases(result.plan.aliases.begin(),
                                                   result.plan.aliases.end());
  std::vector<std::string> expected;
  for (size_t i = 0; i < module.size(); ++i) {
    const std::string name(*module.key(i).string());
    if (!aliases.contains(name) && truth.weights.tensors.contains(name) &&
        !truth.weights.tensors.at(name).bytes.empty()) {
      expected.push_back(name);
    }
  }
  std::vector<std::string> found;
  for (const PlannedFile& planned : result.plan.files) {
    for (const PlannedTensor& tensor : planned.tensors) {
      if (tensor.size_bytes != 0) found.push_back(tensor.name);
    }
  }
  EXPECT_EQ(found, expected);
  EXPECT_FALSE(fs::exists(out_));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MergeFixture,
                         testing::ValuesIn(fixtures([](const Fixture& f) {
                           return f.kind == Kind::Full;
                         })),
                         test_name);

std::vector<std::string> codes_of(const Error& error) {
  std::vector<std::string> codes;
  for (const Finding& finding : error.findings()) {
    if (finding.severity == Severity::Error) codes.push_back(finding.code);
  }
  return codes;
}

using RefuseGrid = Merging;

TEST_P(RefuseGrid, NamesTheLayout) {
  const std::optional<Error> error =
      test::caught([&] { merge(GetParam().checkpoint, options()); });
  ASSERT_TRUE(error);
  EXPECT_EQ(to_string(error->code()), to_string(ErrorCode::Unsupported));
  EXPECT_EQ(codes_of(*error), std::vector<std::string>{"unsupported-layout"});
  EXPECT_THAT(error->message(), HasSubstr(GetParam().layout));
  EXPECT_TRUE(fs::is_empty(folder_));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RefuseGrid,
                         testing::ValuesIn(fixtures([](const Fixture& f) {
                           return f.kind == Kind::Grid;
                         })),
                         test_name);

using FrozenLeftOut = Merging;

TEST_P(FrozenLeftOut, IsRefusedUnlessAskedFor) {
  const std::optional<Error> error =
      test::caught([&] { merge(GetParam().checkpoint, options()); });
  ASSERT_TRUE(error);
  EXPECT_EQ(codes_of(*error), std::vector<std::string>{"frozen-missing"});
  EXPECT_THAT(error->message(), HasSubstr("--exclude-frozen"));
  EXPECT_TRUE(fs::is_empty(folder_));

  MergeOptions options = this->options();
  options.dtype = std::nullopt;
  options.exclude_frozen = true;
  merge(GetParam().checkpoint, options);
  const StoredWeights found = read_stored_folder(out_);
  const Truth truth = truth_of(GetParam());
  const Json facts = case_of(GetParam().folder);
  size_t trained = 0;
  for (const auto& [name, tensor] : found.tensors) {
    const auto expected = truth.weights.tensors.find(name);
    if (expected == truth.weights.tensors.end()) {
      // Tied to a frozen weight that is not in the save, but held by the
      // model file under its own name.
      EXPECT_THAT(name, HasSubstr("lm_head"));
      continue;
    }
    EXPECT_TRUE(tensor == expected->second) << name;
    trained +=
        facts.contains("parameters") && facts["parameters"].contains(name);
    trained += name.find(".lora_") != std::string::npos;
  }
  EXPECT_GT(trained, 0U);
  if (facts.contains("parameters")) {
    EXPECT_EQ(trained, facts["parameters"].size());
    EXPECT_EQ(found.tensors.size(),
              facts["parameters"].size() + facts["buffers"].size());
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FrozenLeftOut,
                         testing::ValuesIn(fixtures([](const Fixture& f) {
                           return f.kind == Kind::FrozenLeftOut;
                         })),
                         test_name);

// The folders are found, not listed: a wrong path must not pass as success.
TEST(Fixtures, AreThere) {
  EXPECT_GE(
      fixtures([](const Fixture& f) { return f.kind == Kind::Full; }).size(),
      90U);
  EXPECT_GE(
      fixtures([](const Fixture& f) { return f.kind == Kind::Grid; }).size(),
      8U);
  EXPECT_GE(fixtures([](const Fixture& f) {
              return f.kind == Kind::FrozenLeftOut;
            }).size(),
            8U);
}

}  // namespace
}  // namespace zckpt
