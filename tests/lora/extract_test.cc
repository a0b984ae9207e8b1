// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/stored_weights.h"
#include "support/zero_partitions.h"
#include "zckpt/error.h"
#include "zckpt/lora.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path kFixtures = fs::path(ZCKPT_FIXTURES) / "hf";

class Extract : public testing::Test {
 protected:
  Extract() {
    options_.write.output = folder_ / "out";
    options_.write.sync = false;
    run_.writer = Writer::Stage3;
    run_.ranks = 2;
    run_.groups = {{{prefix_ + "q.lora_A.default.weight", {2, 3}},
                    {prefix_ + "q.lora_B.default.weight", {5, 2}}}};
    run_.frozen = {{prefix_ + "q.base_layer.weight", {5, 3}}};
  }

  void write() {
    fs::remove_all(folder_ / "run");
    made_ = std::make_unique<ZeroCheckpoint>(run_);
    made_->write(folder_ / "run");
  }
  void write_config(const std::string& more = "") {
    write_bytes(folder_ / "run/adapter_config.json",
                R"({"peft_type": "LORA", "r": 2)" + more + "}");
  }
  ExtractResult extract() { return extract_lora(folder_ / "run", options_); }
  Error refused() {
    const auto error = caught([&] { extract(); });
    EXPECT_TRUE(error);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    return *error;
  }
  StoredWeights written() {
    return read_stored_file(folder_ / "out/adapter_model.safetensors");
  }

  const std::string prefix_ = "base_model.model.";
  TempFolder folder_;
  ZeroRun run_;
  std::unique_ptr<ZeroCheckpoint> made_;
  ExtractOptions options_;
};

// Byte for byte what PEFT saved out of memory at the same step, although the
// run itself left an empty adapter or none.
class ExtractGenuine : public Extract,
                       public testing::WithParamInterface<const char*> {};

TEST_P(ExtractGenuine, EqualsWhatPeftSaves) {
  const fs::path run = kFixtures / GetParam();
  for (const int threads : {1, 2, 8}) {
    options_.write.open.threads = threads;
    options_.write.force = true;
    const ExtractResult result =
        extract_lora((run / "checkpoint-2").string(), options_);
    EXPECT_EQ(result.adapter_name, "default");
    EXPECT_THAT(result.notes, IsEmpty());
    for (const char* name :
         {"adapter_model.safetensors", "adapter_config.json"}) {
      const fs::path truth = std::string(name) == "adapter_config.json"
                                 ? run / "checkpoint-2" / name
                                 : run / "truth_adapter" / name;
      EXPECT_EQ(read_bytes(folder_ / "out/" + name), read_bytes(truth)) << name;
    }
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "out"), {}), 2);
}

INSTANTIATE_TEST_SUITE_P(
    HfRuns, ExtractGenuine,
    testing::Values("lora_z2_fp32", "lora_z2_fp32_ds0142",
                    "lora_z3_final_save_fp32", "lora_z3_final_save_fp32_ds0142",
                    "lora_z3_fp32", "lora_z3_fp32_ds0142",
                    "lora_z3_fp32_save_only", "lora_z3_fp32_save_only_ds0142",
                    "lora_z3_gather_bf16", "lora_z3_mts_gather_fp32"),
    [](const auto& tested) { return std::string(tested.param); });

TEST_F(Extract, TakesTheMastersUnderPeftsNames) {
  write();
  write_config();
  const ExtractResult result = extract();
  EXPECT_EQ(result.modules, 1);
  EXPECT_THAT(result.config_from, testing::EndsWith("adapter_config.json"));
  const StoredWeights weights = written();
  ASSERT_EQ(weights.tensors.size(), 2);
  const StoredTensor& b = weights.tensors.at(prefix_ + "q.lora_B.weight");
  EXPECT_EQ(b.dtype, "F32");
  EXPECT_EQ(b.bytes, encode(DType::F32, master_of(run_.groups[0][1])));
  options_.write.dtype = DType::BF16;
  options_.write.force = true;
  extract();
  EXPECT_EQ(written().tensors.at(prefix_ + "q.lora_B.weight").bytes,
            encode(DType::BF16, master_of(run_.groups[0][1])));
}

TEST_F(Extract, TakesAConfigFromElsewhere) {
  write();
  write_bytes(folder_ / "mine.json", R"({"peft_type": "LORA", "r": 2})");
  options_.adapter_config = folder_ / "mine.json";
  extract();
  EXPECT_EQ(read_bytes(folder_ / "out/adapter_config.json"),
            R"({"peft_type": "LORA", "r": 2})");
}

TEST_F(Extract, MakesAConfigOfTheAlphaGiven) {
  write();
  EXPECT_THAT(refused().what(), HasSubstr("--lora-alpha"));
  options_.lora_alpha = 32;
  const ExtractResult result = extract();
  EXPECT_THAT(result.config_from, IsEmpty());
  EXPECT_THAT(result.notes, Contains(HasSubstr("was made")));
  const auto config =
      nlohmann::json::parse(read_bytes(folder_ / "out/adapter_config.json"));
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(config["lora_alpha"], 32);
  EXPECT_EQ(config["target_modules"], nlohmann::json({"q"}));
  write_config();
  fs::remove_all(folder_ / "out");
  EXPECT_EQ(refused().code(), ErrorCode::Invalid);
}

TEST_F(Extract, ChoosesBetweenAdapters) {
  run_.groups[0].push_back({prefix_ + "q.lora_A.math.weight", {4, 3}});
  run_.groups[0].push_back({prefix_ + "q.lora_B.math.weight", {5, 4}});
  write();
  write_config();
  EXPECT_THAT(refused().what(), HasSubstr("default, math"));
  options_.adapter_name = "none";
  EXPECT_THAT(refused().what(), HasSubstr("there is no adapter none"));
  options_.adapter_name = "math";
  const auto config = [&](const std::string& more) {
    write_bytes(folder_ / "run/math/adapter_config.json",
                R"({"peft_type": "LORA", "r": 2)" + more + "}");
  };
  config("");
  EXPECT_THAT(refused().what(), HasSubstr("rank 2, its factors have 4"));
  config(R"(, "rank_pattern": {"q": 4})");
  extract();
  EXPECT_EQ(written().tensors.at(prefix_ + "q.lora_A.weight").shape,
            (std::vector<uint64_t>{4, 3}));
}

TEST_F(Extract, TakesTheTrainedOneOfTwo) {
  run_.frozen.push_back({prefix_ + "q.lora_A.old.weight", {4, 3}});
  run_.frozen.push_back({prefix_ + "q.lora_B.old.weight", {5, 4}});
  write();
  write_config();
  EXPECT_EQ(extract().adapter_name, "default");
}

TEST_F(Extract, KeepsModulesThatWereTrainedWhole) {
  run_.groups[0].push_back(
      {prefix_ + "lm_head.modules_to_save.default.weight", {3, 3}});
  write();
  write_config();
  EXPECT_THAT(refused().what(), HasSubstr("modules_to_save does not list it"));
  write_config(R"(, "modules_to_save": ["lm_head"])");
  extract();
  EXPECT_TRUE(written().tensors.contains(prefix_ + "lm_head.weight"));
}

TEST_F(Extract, KeepsBiasesThatTheConfigSpeaksOf) {
  run_.groups[0].push_back({prefix_ + "q.base_layer.bias", {5}});
  write();
  write_config();
  EXPECT_THAT(refused().what(), HasSubstr("bias: none"));
  write_config(R"(, "bias": "lora_only")");
  extract();
  EXPECT_TRUE(written().tensors.contains(prefix_ + "q.base_layer.bias"));
  fs::remove_all(folder_ / "out");
  fs::remove(folder_ / "run/adapter_config.json");
  options_.lora_alpha = 1;
  EXPECT_THAT(refused().what(), HasSubstr("biases were trained too"));
}

TEST_F(Extract, HoldsConfigAndTensorsAgainstEachOther) {
  run_.groups[0].push_back(
      {prefix_ + "q.lora_magnitude_vector.default.weight", {5}});
  write();
  write_config();
  EXPECT_THAT(refused().what(), HasSubstr("no use_dora"));
  write_config(R"(, "use_dora": true, "lora_bias": true)");
  EXPECT_THAT(refused().what(), HasSubstr("says lora_bias"));
  write_config(R"(, "use_dora": true)");
  extract();
  EXPECT_TRUE(written().tensors.contains(prefix_ + "q.lora_magnitude_vector"));
}

TEST_F(Extract, TakesTheConfigOfTheAdapterItself) {
  // PEFT keeps that of "default" at the root, others in folders of their name.
  run_.groups = {{{prefix_ + "q.lora_A.math.weight", {2, 3}},
                  {prefix_ + "q.lora_B.math.weight", {5, 2}}}};
  run_.frozen.push_back({prefix_ + "q.lora_A.default.weight", {2, 3}});
  run_.frozen.push_back({prefix_ + "q.lora_B.default.weight", {5, 2}});
  write();
  write_config(R"(, "lora_alpha": 8)");
  EXPECT_THAT(refused().what(), HasSubstr("adapter math"));
  const std::string own = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 64})";
  write_bytes(folder_ / "run/math/adapter_config.json", own);
  EXPECT_EQ(extract().adapter_name, "math");
  EXPECT_EQ(read_bytes(folder_ / "out/adapter_config.json"), own);
}

TEST_F(Extract, TakesTheRootsConfigForTheOnlyAdapter) {
  run_.groups = {{{prefix_ + "q.lora_A.math.weight", {2, 3}},
                  {prefix_ + "q.lora_B.math.weight", {5, 2}}}};
  write();
  write_config();
  EXPECT_EQ(extract().adapter_name, "math");
}

TEST_F(Extract, RefusesAConfigThatWouldDropFactors) {
  write();
  for (const char* more :
       {R"(, "target_modules": ["v"])", R"(, "target_modules": "v|k")",
        R"(, "target_modules": ["q"], "exclude_modules": ["q"])",
        R"(, "trainable_token_indices": [1])"}) {
    write_config(more);
    EXPECT_EQ(refused().code(), ErrorCode::Corrupt) << more;
  }
  for (const char* more :
       {R"(, "target_modules": ["q"])", R"(, "target_modules": "q|k")",
        // A whole name is meant whatever the layers are.
        R"(, "target_modules": ["q"], "layers_to_transform": [0])",
        R"(, "target_modules": "all-linear", "exclude_modules": ["k"])"}) {
    write_config(more);
    fs::remove_all(folder_ / "out");
    EXPECT_THAT(extract().notes, IsEmpty()) << more;
  }
}

TEST_F(Extract, NamesSortedPatterns) {
  write();
  write_config(R"(, "rank_pattern": {"a.*|q": 4, "q": 2})");
  EXPECT_THAT(refused().what(), HasSubstr("PEFT sorted rank_pattern"));
  write_config(R"(, "alpha_pattern": {".*q": 4, "q": 2})");
  EXPECT_THAT(extract().notes, Contains(HasSubstr("alpha_pattern")));
}

TEST_F(Extract, NamesRunsThatChangedTheirBase) {
  write();
  write_config(R"(, "init_lora_weights": "pissa_niter_16")");
  EXPECT_THAT(extract().notes, Contains(HasSubstr("randomised")));
  write_config(R"(, "init_lora_weights": "gaussian")");
  options_.write.force = true;
  EXPECT_THAT(extract().notes, IsEmpty());
}

TEST_F(Extract, KeepsTheEmbeddingBesideItsFactors) {
  run_.groups = {
      {{prefix_ + "m.embed_tokens.lora_embedding_A.default", {2, 7}},
       {prefix_ + "m.embed_tokens.lora_embedding_B.default", {3, 2}}}};
  run_.frozen = {{prefix_ + "m.embed_tokens.base_layer.weight", {7, 3}}};
  write();
  write_config();
  extract();
  EXPECT_TRUE(
      written().tensors.contains(prefix_ + "m.embed_tokens.base_layer.weight"));
  run_.exclude_frozen = true;
  write();
  write_config();
  options_.write.force = true;
  EXPECT_THAT(extract().notes,
              Contains(HasSubstr("PEFT would save the weight")));
}

TEST_F(Extract, KnowsPrefixesOfWrappers) {
  for (auto& weight : run_.groups[0]) weight.name = "module." + weight.name;
  write();
  write_config();
  extract();
  EXPECT_TRUE(written().tensors.contains(prefix_ + "q.lora_A.weight"));
}

TEST_F(Extract, NamesFactorsUnderOtherNames) {
  run_.groups = {{{"v_head.model.q.lora_A.default.weight", {2, 3}}}};
  write();
  EXPECT_THAT(refused().what(), HasSubstr("v_head.model.q.lora_A"));
}

TEST_F(Extract, RefusesFactorsWithinFactors) {
  run_.groups[0].push_back(
      {prefix_ + "e.base_layer.lora_A.default.weight", {2, 3}});
  run_.groups[0].push_back(
      {prefix_ + "e.base_layer.lora_B.default.weight", {5, 2}});
  write();
  options_.lora_alpha = 1e30;
  EXPECT_EQ(refused().code(), ErrorCode::Unsupported);
}

TEST_F(Extract, TakesTiesThatPeftMakesAgain) {
  run_.groups[0].push_back(
      {prefix_ + "e.token_adapter.trainable_tokens_delta.default", {2, 3}});
  run_.groups[0].push_back(
      {prefix_ + "e.modules_to_save.default.weight", {4, 3}});
  run_.aliases = {{prefix_ + "h.token_adapter.trainable_tokens_delta.default",
                   prefix_ + "e.token_adapter.trainable_tokens_delta.default"},
                  {prefix_ + "h.modules_to_save.default.weight",
                   prefix_ + "e.modules_to_save.default.weight"}};
  write();
  write_config(
      R"(, "trainable_token_indices": [1, 5], "modules_to_save": ["e"])");
  extract();
  const auto tensors = written().tensors;
  EXPECT_EQ(tensors.size(), 5);
  EXPECT_EQ(tensors.at(prefix_ + "h.weight"), tensors.at(prefix_ + "e.weight"));
}

TEST_F(Extract, StopsWhenAsked) {
  write();
  write_config();
  StopToken stop;
  stop.request_stop();
  options_.write.open.stop = &stop;
  EXPECT_EQ(refused().code(), ErrorCode::Interrupted);
}

TEST_F(Extract, RefusesWhatIsNoLoraRun) {
  run_.groups = {{{"model.q.weight", {3, 3}}}};
  run_.frozen.clear();
  write();
  EXPECT_THAT(refused().what(), HasSubstr("no checkpoint of a LoRA run"));
}

TEST_F(Extract, RefusesWeightsWithoutAPlace) {
  run_.groups[0].push_back({"base_model.model.norm.weight", {3}});
  write();
  write_config();
  const Error error = refused();
  EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  EXPECT_EQ(error.tensor(), "base_model.model.norm.weight");
}

TEST_F(Extract, RefusesHalfAPair) {
  run_.groups = {{{prefix_ + "q.lora_A.default.weight", {2, 3}}}};
  write();
  write_config();
  EXPECT_THAT(refused().what(), HasSubstr("lora_B is not here"));
  run_.groups = {{{prefix_ + "q.lora_A.default.weight", {2, 3}},
                  {prefix_ + "q.lora_B.default.weight", {5, 3}}}};
  write();
  write_config();
  EXPECT_THAT(refused().what(), HasSubstr("do not fit"));
}

TEST_F(Extract, RefusesTwoTensorsOfOneName) {
  run_.groups[0].push_back(
      {prefix_ + "q.lora_magnitude_vector.default.weight", {5}});
  run_.groups[0].push_back({prefix_ + "q.lora_magnitude_vector.default", {5}});
  write();
  write_config(R"(, "use_dora": true)");
  EXPECT_THAT(refused().what(), HasSubstr("would be called"));
}

TEST_F(Extract, RefusesTokensWithoutAConfig) {
  run_.groups[0].push_back(
      {prefix_ + "e.token_adapter.trainable_tokens_delta.default", {2, 3}});
  write();
  options_.lora_alpha = 4;
  EXPECT_THAT(refused().what(), HasSubstr("only a config says which"));
  options_.lora_alpha.reset();
  write_config(R"(, "trainable_token_indices": [1, 2])");
  extract();
  EXPECT_TRUE(written().tensors.contains(
      prefix_ + "e.token_adapter.trainable_tokens_delta"));
}

TEST_F(Extract, RefusesWhatNoFactorsAreIn) {
  run_.groups = {{{prefix_ + "h.modules_to_save.default.weight", {3}}}};
  write();
  options_.lora_alpha = 4;
  EXPECT_THAT(refused().what(), HasSubstr("no module has factors"));
}

TEST_F(Extract, RefusesTiedParts) {
  run_.aliases = {{prefix_ + "v.lora_A.default.weight",
                   prefix_ + "q.lora_A.default.weight"}};
  write();
  write_config();
  EXPECT_EQ(refused().code(), ErrorCode::Unsupported);
}

TEST_F(Extract, SaysThatNothingWasTrainedYet) {
  write();
  write_config();
  for (const uint32_t rank : {0U, 1U}) {
    for (auto& record : made_->optim(rank).archive.records()) {
      if (record.name.starts_with("data/")) {
        std::fill(record.bytes.begin(), record.bytes.end(), '\0');
      }
    }
  }
  made_->write(folder_ / "run");
  EXPECT_THAT(extract().notes, Contains(HasSubstr("no effect")));
}

TEST_F(Extract, WarnsOfNan) {
  write();
  write_config();
  const std::string nan =
      encode(DType::F32, {std::numeric_limits<float>::quiet_NaN()});
  made_->optim(0).archive.record("data/0").bytes.replace(0, 4, nan);
  made_->write(folder_ / "run");
  const ExtractResult result = extract();
  ASSERT_EQ(result.written.findings.size(), 1);
  EXPECT_EQ(result.written.findings[0].code, "nan");
  EXPECT_EQ(result.written.findings[0].tensor,
            prefix_ + "q.lora_A.default.weight");
}

TEST_F(Extract, RefusesDamagedShards) {
  write();
  write_config();
  fs::remove(folder_ / ("run/global_step3/" + made_->optim_name(1)));
  EXPECT_THAT(refused().what(), HasSubstr("optimizer shard of rank 1"));
}

TEST_F(Extract, ShowsAPlanAndWritesNothing) {
  write();
  write_config();
  options_.write.dry_run = true;
  const std::string nan =
      encode(DType::F32, {std::numeric_limits<float>::quiet_NaN()});
  made_->optim(0).archive.record("data/0").bytes.replace(0, 4, nan);
  made_->write(folder_ / "run");
  const ExtractResult result = extract();
  EXPECT_THAT(result.written.findings, IsEmpty());  // no payload is read
  ASSERT_EQ(result.written.plan.files.size(), 2);
  EXPECT_EQ(result.written.plan.files[0].name, "adapter_model.safetensors");
  EXPECT_EQ(result.written.plan.files[1].name, "adapter_config.json");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

}  // namespace
}  // namespace zckpt::test
