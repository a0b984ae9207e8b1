// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "export/export_case.h"
#include "support/caught.h"
#include "support/zero_checkpoint.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kEmbedding = "model.embed_tokens.weight";
const std::string kHead = "lm_head.weight";

class ExportZero : public ExportCase {
 protected:
  ExportZero() {
    path_ = folder_ / "run";
    zero_.writer = Writer::Stage3;
    zero_.ranks = 2;
    zero_.groups = {{{"model.layers.0.q.weight", {5, 3}},
                     {"model.layers.0.k.weight", {3, 3}}}};
    zero_.frozen = {{"model.embed_tokens.weight", {6, 3}}};
    base_.erase("model.layers.0.q.bias");
    options_.base = folder_ / "base";
  }

  void be_lora() {
    const std::string q = "base_model.model.model.layers.0.q.";
    zero_.groups = {{{q + "lora_A.default.weight", {2, 3}},
                     {q + "lora_B.default.weight", {5, 2}}}};
    zero_.frozen = {{q + "base_layer.weight", {5, 3}},
                    {"base_model.model.model.layers.0.k.weight", {3, 3}},
                    {"base_model.model.model.embed_tokens.weight", {6, 3}}};
  }

  void make() {
    fs::remove_all(path_);
    made_ = std::make_unique<ZeroCheckpoint>(zero_);
    if (change_) change_(*made_);
    made_->write(path_);
    if (!adapter_config_.empty()) {
      write_bytes(path_ + "/adapter_config.json", adapter_config_);
    }
    write();
  }
  ExportResult run_zero() {
    make();
    return export_hf(path_, options_);
  }
  Error refused_zero() {
    make();
    const auto error = caught([&] { export_hf(path_, options_); });
    EXPECT_TRUE(error);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    return error.value_or(Error(ErrorCode::Internal, "nothing was thrown"));
  }
  std::string truth(const std::string& name) const {
    for (const Truth& tensor : made_->truth()) {
      if (tensor.name == name && tensor.role != Role::State &&
          tensor.role != Role::Model) {
        return tensor.bytes;
      }
    }
    return "there is no " + name;
  }

  ZeroRun zero_;
  std::unique_ptr<ZeroCheckpoint> made_;
  std::string adapter_config_;
  std::function<void(ZeroCheckpoint&)> change_;  // before it is written
};

TEST_F(ExportZero, FrozenWeightsComeFromTheCheckpointOrTheBase) {
  for (const bool excluded : {false, true}) {
    zero_.exclude_frozen = excluded;
    options_.write.force = true;
    run_zero();
    EXPECT_EQ(written()["model.layers.0.q.weight"].bytes,
              truth("model.layers.0.q.weight"));
    if (excluded) {
      EXPECT_EQ(written()[kEmbedding], base_[kEmbedding]);
    } else {
      EXPECT_NE(written()[kEmbedding], base_[kEmbedding]);
    }
    EXPECT_EQ(written().size(), 3U);
  }
}

TEST_F(ExportZero, WithoutABaseTheRefusalHasTheCommand) {
  zero_.exclude_frozen = true;
  options_.base.clear();
  make();
  write_bytes(path_ + "/config.json", config_.dump());
  const auto error = caught([&] { export_hf(path_, options_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Invalid);
  EXPECT_THAT(error->what(),
              HasSubstr("zckpt export-hf " + path_ + " --base DIR -o OUT"));
}

TEST_F(ExportZero, TheBaseThatTheAdapterNamesIsTaken) {
  be_lora();
  zero_.exclude_frozen = true;
  options_.base.clear();
  adapter_config_ = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4,
                        "base_model_name_or_path": ")" +
                    (folder_ / "base") + "\"}";
  const ExportResult result = run_zero();
  EXPECT_THAT(result.notes, Contains(HasSubstr("as adapter_config.json says")));
  EXPECT_EQ(written()[kEmbedding], base_[kEmbedding]);
  EXPECT_EQ(result.lora.size(), 1U);
}

// As a base that bitsandbytes quantised leaves them.
TEST_F(ExportZero, QuantisedFrozenWeightsComeFromTheBaseOrNowhere) {
  zero_.writer = Writer::Stage2;
  zero_.frozen.push_back({"model.layers.1.q.weight", {2, 3}});
  base_["model.layers.1.q.weight"] = floats({2, 3}, 9);
  change_ = [](ZeroCheckpoint& made) {
    ZeroCheckpoint::Shard& shard = made.model();
    shard.root.at("frozen_param_fragments")
        .set("model.layers.1.q.weight",
             shard.archive.tensor(DType::U8, {2, 3}, "\1\2\3\4\5\6"));
  };
  run_zero();
  EXPECT_EQ(written()["model.layers.1.q.weight"],
            base_["model.layers.1.q.weight"]);
  fs::remove_all(folder_ / "out");

  base_.erase("model.layers.1.q.weight");
  base_["model.layers.1.k.weight"] = floats({2, 3}, 9);
  const Error lacking = refused_zero();
  EXPECT_EQ(lacking.code(), ErrorCode::Corrupt);
  EXPECT_EQ(lacking.tensor(), "model.layers.1.q.weight");
  EXPECT_THAT(lacking.what(),
              HasSubstr("the save left this weight out, and the nearest names "
                        "in the base model are model.layers.0.q.weight"));

  options_.base.clear();
  make();
  write_bytes(path_ + "/config.json", config_.dump());
  const auto error = caught([&] { export_hf(path_, options_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Invalid);
  EXPECT_THAT(error->what(), HasSubstr("the save holds 1 weight quantised"));
}

TEST_F(ExportZero, AFolderWithoutWeightsIsNoBase) {
  options_.base = folder_ / "nothing";
  fs::create_directories(options_.base);
  EXPECT_THAT(refused_zero().what(), HasSubstr("no weights of a model"));
}

TEST_F(ExportZero, AlphaByHandIsUsed) {
  be_lora();
  options_.lora_alpha = 6;
  const ExportResult by_hand = run_zero();
  const auto first = written();
  options_.lora_alpha.reset();
  adapter_config_ = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6})";
  options_.write.force = true;
  run_zero();
  EXPECT_EQ(written(), first);
  EXPECT_EQ(by_hand.adapters[0].tensors, 2U);
}

TEST_F(ExportZero, ADamagedFactorIsFoundByItsCrc) {
  be_lora();
  adapter_config_ = R"({"peft_type": "LORA", "r": 2})";
  make();
  EXPECT_GT(export_hf(path_, options_).written.checked_records, 0U);
  fs::remove_all(folder_ / "out");
  const std::string shard = path_ + "/global_step3/" + made_->optim_name(1);
  const std::string bytes = read_bytes(shard);
  const std::string factors = truth(
      "base_model.model.model.layers.0.q."
      "lora_B.default.weight");
  // The second half of the flat buffer lies with rank 1.
  const size_t at = bytes.find(factors.substr(factors.size() - 8));
  ASSERT_NE(at, std::string::npos);
  flip_byte(shard, at);
  const auto error = caught([&] { export_hf(path_, options_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Corrupt);
  EXPECT_THAT(error->what(), HasSubstr("CRC"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(ExportZero, ASecondAdapterOnTopIsRefused) {
  be_lora();
  adapter_config_ = R"({"peft_type": "LORA", "r": 2})";
  add_factors("model.layers.0.q", 5, 3, 5);
  EXPECT_THAT(refused_zero().what(), HasSubstr("holds its adapter itself"));
}

TEST_F(ExportZero, AnotherModelIsNoBase) {
  zero_.exclude_frozen = true;
  base_["model.layers.0.q.weight"] = floats({6, 3}, 5);
  EXPECT_THAT(refused_zero().what(), HasSubstr("another shape"));
}

TEST_F(ExportZero, ABaseWithMoreWeightsIsAnotherModel) {
  base_["model.layers.1.k.weight"] = floats({3, 3}, 5);
  EXPECT_THAT(refused_zero().what(),
              HasSubstr("the checkpoint has no such weight"));
}

TEST_F(ExportZero, WeightsThatTheBaseLacksNeedAConfigOfTheRun) {
  base_.erase("model.layers.0.k.weight");
  EXPECT_THAT(refused_zero().what(), HasSubstr("is not that of the run"));
  write_bytes(path_ + "/config.json", config_.dump());
  EXPECT_THAT(export_hf(path_, options_).notes,
              Contains(HasSubstr("not known to the base model")));
  EXPECT_TRUE(written().contains("model.layers.0.k.weight"));
}

TEST_F(ExportZero, NamesThatOnlyLookLikeQuantisedOnesStay) {
  zero_.groups[0].push_back({"model.nested_tower.weight", {2}});
  zero_.groups[0].push_back({"model.gate.SCBx.weight", {2}});
  base_["model.nested_tower.weight"] = floats({2}, 1);
  base_["model.gate.SCBx.weight"] = floats({2}, 1);
  run_zero();
  EXPECT_EQ(written()["model.nested_tower.weight"].bytes,
            truth("model.nested_tower.weight"));
  EXPECT_TRUE(written().contains("model.gate.SCBx.weight"));
}

TEST_F(ExportZero, AnAdapterThatChangedItsBaseNeedsTheChangedOne) {
  be_lora();
  adapter_config_ = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4,
                        "init_lora_weights": "pissa"})";
  run_zero();  // its base is in the save
  fs::remove_all(folder_ / "out");
  zero_.exclude_frozen = true;
  const Error error = refused_zero();
  EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  EXPECT_THAT(error.what(), HasSubstr("left the changed weights out"));
}

TEST_F(ExportZero, ManyNamesOfOneWeightAreWrittenOnceOrRefused) {
  const std::string shared = "shared.weight";
  zero_.groups = {{{shared, {6, 3}}, {"decoder.q.weight", {5, 3}}}};
  zero_.frozen.clear();
  zero_.aliases = {{"encoder.embed_tokens.weight", shared},
                   {"decoder.embed_tokens.weight", shared},
                   {kHead, shared}};
  base_.clear();
  base_[shared] = floats({6, 3}, 1);
  base_["decoder.q.weight"] = floats({5, 3}, 2);
  config_["is_encoder_decoder"] = true;
  config_["architectures"] = {"TestForConditionalGeneration"};
  run_zero();
  EXPECT_EQ(written().size(), 2U);
  EXPECT_EQ(written()[shared].bytes, truth(shared));
  // An adapter on one side.
  path_ = folder_ / "base";
  options_.base.clear();
  adapters_.resize(1);
  adapters_[0].tensors["base_model.model.shared.weight"] = floats({6, 3}, 9);
  adapters_[0].config["modules_to_save"] = {"shared"};
  fs::remove_all(folder_ / "out");
  EXPECT_THAT(refused().what(), HasSubstr("are one in this kind of model"));
}

TEST_F(ExportZero, WrappersPrefixesAreTakenOff) {
  zero_.groups = {{{"module._orig_mod.model.layers.0.q.weight", {5, 3}},
                   {"module._orig_mod.model.layers.0.k.weight", {3, 3}}}};
  zero_.frozen = {{"module._orig_mod.model.embed_tokens.weight", {6, 3}}};
  EXPECT_THAT(run_zero().notes, Contains(HasSubstr("prefixes")));
  EXPECT_EQ(written()["model.layers.0.q.weight"].bytes,
            truth("module._orig_mod.model.layers.0.q.weight"));
}

TEST_F(ExportZero, TwoNamesThatBecomeOneAreRefused) {
  zero_.groups[0].push_back({"module.model.layers.0.k.weight", {3, 3}});
  EXPECT_THAT(refused_zero().what(), HasSubstr("would get the name"));
}

TEST_F(ExportZero, ATiedHeadIsWrittenOnce) {
  zero_.frozen.clear();
  zero_.groups[0].push_back({kEmbedding, {6, 3}});
  zero_.aliases = {{kHead, kEmbedding}};
  run_zero();
  EXPECT_FALSE(written().contains(kHead));
  EXPECT_EQ(written()[kEmbedding].bytes, truth(kEmbedding));
}

TEST_F(ExportZero, ATieThatTheConfigDoesNotKnowIsWrittenTwice) {
  zero_.frozen.clear();
  zero_.groups[0].push_back({kEmbedding, {6, 3}});
  zero_.aliases = {{kHead, kEmbedding}};
  config_["tie_word_embeddings"] = false;
  run_zero();
  EXPECT_EQ(written()[kHead], written()[kEmbedding]);
}

TEST_F(ExportZero, FusedExpertsBecomeThoseOfFiles) {
  config_["model_type"] = "mixtral";
  const std::string memory = "model.layers.0.mlp.experts.";
  const std::string hub = "model.layers.0.block_sparse_moe.experts.";
  zero_.groups = {{{memory + "gate_up_proj", {2, 6, 4}},
                   {memory + "down_proj", {2, 4, 3}}}};
  zero_.frozen.clear();
  for (const bool with_base : {true, false}) {
    base_.clear();
    for (const char* expert : {"0.", "1."}) {
      base_[hub + expert + "w1.weight"] = floats({3, 4}, 1);
      base_[hub + expert + "w3.weight"] = floats({3, 4}, 1);
      base_[hub + expert + "w2.weight"] = floats({4, 3}, 1);
    }
    make();
    if (!with_base) {
      options_.base.clear();
      write_bytes(path_ + "/config.json", config_.dump());
    }
    options_.write.force = true;
    const ExportResult result = export_hf(path_, options_);
    EXPECT_THAT(result.notes, Contains(HasSubstr("names in memory")));
    const std::string both = truth(memory + "gate_up_proj");
    const std::string down = truth(memory + "down_proj");
    // Expert 1: rows 0-2 are w1, rows 3-5 are w3, of 4 floats each.
    EXPECT_EQ(written()[hub + "1.w1.weight"].bytes, both.substr(96, 48));
    EXPECT_EQ(written()[hub + "1.w3.weight"].bytes, both.substr(144, 48));
    EXPECT_EQ(written()[hub + "0.w2.weight"].bytes, down.substr(0, 48));
    EXPECT_EQ(written().size(), 6U);
  }
}

TEST_F(ExportZero, ArchitecturesComeFromTheBase) {
  make();
  write_bytes(path_ + "/config.json",
              R"({"model_type": "test", "torch_dtype": "float32"})");
  export_hf(path_, options_);
  EXPECT_THAT(written_config()["architectures"],
              ElementsAre("TestForCausalLM"));
}

}  // namespace
}  // namespace zckpt::test
