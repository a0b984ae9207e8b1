// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using testing::IsEmpty;

const std::string kEmbedding = "model.embed_tokens.weight";
const std::string kHead = "lm_head.weight";

using Export = ExportCase;

TEST_F(Export, AModelThatNothingChangesIsCopied) {
  base_files_["tokenizer.json"] = R"({"model": {"vocab": {"a": 5}}})";
  base_files_["generation_config.json"] = "{ }";
  base_files_["README.md"] = "not for loaders";
  const ExportResult result = run();
  EXPECT_EQ(written(), base_);
  EXPECT_THAT(result.config_changes, IsEmpty());
  for (const char* name :
       {"config.json", "tokenizer.json", "generation_config.json"}) {
    EXPECT_EQ(read_bytes(folder_ / ("out/" + std::string(name))),
              read_bytes(folder_ / ("base/" + std::string(name))));
  }
  EXPECT_FALSE(fs::exists(folder_ / "out/README.md"));
}

// ---- ties ----

TEST_F(Export, EqualSidesAreWrittenOnce) {
  base_[kHead] = base_[kEmbedding];
  const ExportResult result = run();
  EXPECT_FALSE(written().contains(kHead));
  EXPECT_EQ(written_config()["tie_word_embeddings"], true);
  EXPECT_THAT(result.written.plan.aliases,
              ElementsAre(std::pair(kHead, kEmbedding)));
}

TEST_F(Export, EqualInTheOutputsDtypeIsEqual) {
  StoredTensor head = base_[kEmbedding];
  head.bytes[0] ^= 1;  // far below a bfloat16
  base_[kHead] = head;
  config_["torch_dtype"] = "bfloat16";
  run();
  EXPECT_FALSE(written().contains(kHead));
}

TEST_F(Export, SidesThatDifferAreBothWrittenAndUntied) {
  base_[kHead] = floats({6, 3}, 77);
  const ExportResult result = run();
  EXPECT_EQ(written(), base_);
  EXPECT_EQ(written_config()["tie_word_embeddings"], false);
  EXPECT_THAT(result.notes,
              Contains(HasSubstr("are tied by the config and differ")));
}

TEST_F(Export, EqualSidesThatTheConfigDoesNotTieAreBothWritten) {
  config_["tie_word_embeddings"] = false;
  base_[kHead] = base_[kEmbedding];
  run();
  EXPECT_EQ(written(), base_);
}

TEST_F(Export, FactorsOnTheHeadOfATiedModelLeaveTheEmbeddingAlone) {
  adapters_.resize(1);
  adapters_[0].tensors["base_model.model.lm_head.lora_A.weight"] =
      floats({2, 3}, 5);
  adapters_[0].tensors["base_model.model.lm_head.lora_B.weight"] =
      floats({6, 2}, 6);
  for (const bool said : {true, false}) {
    if (!said) config_.erase("tie_word_embeddings");  // transformers 4: true
    options_.write.force = true;
    run();
    EXPECT_EQ(written()[kEmbedding], base_[kEmbedding]);
    EXPECT_NE(written()[kHead], base_[kEmbedding]);
    EXPECT_EQ(written_config()["tie_word_embeddings"], false);
  }
}

TEST_F(Export, RowsOfATiedVocabularyChangeOnBothSides) {
  adapters_.resize(1);
  adapters_[0].tensors
      ["base_model.model.model.embed_tokens.token_adapter."
       "trainable_tokens_delta"] = floats({1, 3}, 5);
  adapters_[0].config["trainable_token_indices"] = {2};
  run();
  EXPECT_FALSE(written().contains(kHead));
  EXPECT_EQ(written_config()["tie_word_embeddings"], true);
}

TEST_F(Export, RowsReplacedOnTwoEqualSidesKeepThemOne) {
  base_[kHead] = base_[kEmbedding];
  adapters_.resize(1);
  adapters_[0].tensors
      ["base_model.model.model.embed_tokens.token_adapter."
       "trainable_tokens_delta"] = floats({1, 3}, 5);
  adapters_[0].config["trainable_token_indices"] = {2};
  run();
  EXPECT_FALSE(written().contains(kHead));
  EXPECT_EQ(written_config()["tie_word_embeddings"], true);
}

TEST_F(Export, ASideThatGrewWithoutTheOtherIsRefused) {
  config_["tie_word_embeddings"] = false;
  base_[kHead] = floats({6, 3}, 5);
  adapters_.resize(1);
  adapters_[0].tensors["base_model.model.lm_head.weight"] = floats({7, 3}, 6);
  adapters_[0].config["modules_to_save"] = {"lm_head"};
  EXPECT_THAT(refused().what(),
              HasSubstr("has 6 rows, and lm_head.weight has 7"));
}

TEST_F(Export, SidesOfOtherSizesByDesignAreLeftAlone) {
  config_["tie_word_embeddings"] = false;
  base_[kHead] = floats({4, 3}, 5);
  run();
  EXPECT_EQ(written(), base_);
}

TEST_F(Export, AHeadThatIsThereStaysWhereTheConfigSaysNothing) {
  config_.erase("tie_word_embeddings");
  base_[kHead] = base_[kEmbedding];
  run();
  EXPECT_EQ(written(), base_);
}

TEST_F(Export, AnEmbeddingThatMayBeTiedToAnUnknownHeadIsNotChanged) {
  config_["architectures"] = {"TestForMaskedLM"};
  config_.erase("tie_word_embeddings");
  adapters_.resize(1);
  adapters_[0].tensors["base_model.model.model.embed_tokens.weight"] =
      floats({6, 3}, 6);
  adapters_[0].config["modules_to_save"] = {"embed_tokens"};
  const Error error = refused();
  EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  EXPECT_THAT(error.what(), HasSubstr("may be one weight"));
  config_["architectures"] = {"TestForSequenceClassification"};
  run();
  EXPECT_FALSE(written().contains(kHead));
}

TEST_F(Export, AnAdapterBesideTheWeightsIsNotPassedOver) {
  add_factors("model.layers.0.q", 5, 3, 5);
  write();
  for (const char* name :
       {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy_file(options_.adapters[0].path + "/" + name,
                  folder_ / ("base/" + std::string(name)));
  }
  options_.adapters.clear();
  expect_error(ErrorCode::Invalid, {}, "holds an adapter too",
               [&] { export_hf(path_, options_); });
  options_.adapters = {{.path = path_}};
  EXPECT_EQ(export_hf(path_, options_).lora.size(), 1U);
}

TEST_F(Export, NotANumberIsCounted) {
  add_factors("model.layers.0.q", 5, 3, 5);
  std::vector<float> values = values_of(base_["model.layers.0.q.weight"]);
  values[4] = std::numeric_limits<float>::quiet_NaN();
  base_["model.layers.0.q.weight"] = floats_of({5, 3}, values);
  const ExportResult result = run();
  EXPECT_EQ(result.lora[0].nonfinite, 1U);
  EXPECT_GT(result.lora[0].max_delta, 0);
  ASSERT_EQ(result.written.findings.size(), 1U);
  EXPECT_EQ(result.written.findings[0].code, "nan");
}

// ---- vocabulary and config ----

TEST_F(Export, TheConfigFollowsTheVocabulary) {
  config_["vocab_size"] = 4;
  base_files_["tokenizer.json"] = R"({"model": {"vocab": {"a": 3}}})";
  const ExportResult result = run();
  EXPECT_EQ(written_config()["vocab_size"], 6);
  ASSERT_EQ(result.config_changes.size(), 1U);
  EXPECT_EQ(result.config_changes[0].key, "vocab_size");
  EXPECT_EQ(result.config_changes[0].before, "4");
  EXPECT_THAT(result.notes, Contains(HasSubstr("are not in it")));
}

TEST_F(Export, ATokenizerWithMoreIdsThanRowsIsRefused) {
  base_files_["tokenizer.json"] = R"({"added_tokens": [{"id": 6}]})";
  const Error error = refused();
  EXPECT_THAT(error.what(), HasSubstr("has 7 ids"));
  EXPECT_THAT(error.what(), HasSubstr("6 rows"));
}

TEST_F(Export, DtypeIsTheConfigsOrWhatIsAsked) {
  config_["torch_dtype"] = "bfloat16";
  EXPECT_EQ(run().written.plan.dtype, DType::BF16);
  EXPECT_EQ(written()[kEmbedding].dtype, "BF16");
  options_.write.force = true;
  options_.auto_dtype = false;
  options_.write.dtype = DType::F16;
  run();
  EXPECT_EQ(written()[kEmbedding].dtype, "F16");
  EXPECT_EQ(written_config()["torch_dtype"], "float16");
  options_.write.dtype = std::nullopt;  // keep
  run();
  EXPECT_EQ(written()[kEmbedding].dtype, "F32");
  EXPECT_EQ(written_config()["torch_dtype"], "float32");
}

TEST_F(Export, AConfigWithoutADtypeGetsThatOfTheWeights) {
  config_.erase("torch_dtype");
  run();
  EXPECT_EQ(written()[kEmbedding].dtype, "F32");
  EXPECT_EQ(written_config()["torch_dtype"], "float32");
}

TEST_F(Export, AQuantisedModelIsRefused) {
  config_["quantization_config"] = {{"bits", 4}};
  const Error error = refused();
  EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  EXPECT_THAT(error.what(), HasSubstr("in 16 bits"));
}

TEST_F(Export, AConfigThatIsNoJsonIsRefused) {
  write();
  write_bytes(folder_ / "base/config.json", "{");
  expect_error(ErrorCode::Corrupt, {}, "expected a JSON object",
               [&] { export_hf(path_, options_); });
}

TEST_F(Export, AFolderWithoutAConfigIsRefused) {
  write();
  fs::remove(folder_ / "base/config.json");
  expect_error(ErrorCode::Invalid, {}, "there is no config.json",
               [&] { export_hf(path_, options_); });
}

TEST_F(Export, MissingArchitecturesAreSaid) {
  config_.erase("architectures");
  EXPECT_THAT(run().notes, Contains(HasSubstr("no architectures")));
}

// ---- side files ----

TEST_F(Export, TheAdaptersTokenizerWinsWhole) {
  add_factors("model.layers.0.q", 5, 3, 5);
  base_files_["tokenizer.json"] = R"({"model": {"vocab": {"a": 0}}})";
  base_files_["chat_template.jinja"] = "base";
  base_files_["generation_config.json"] = "{ }";
  write();
  const std::string adapter = options_.adapters[0].path;
  write_bytes(adapter + "/tokenizer.json", R"({"model": {"vocab": {"a": 1}}})");
  export_hf(path_, options_);
  EXPECT_EQ(read_bytes(folder_ / "out/tokenizer.json"),
            read_bytes(adapter + "/tokenizer.json"));
  // Never half a tokenizer: the template is of the other one.
  EXPECT_FALSE(fs::exists(folder_ / "out/chat_template.jinja"));
  EXPECT_TRUE(fs::exists(folder_ / "out/generation_config.json"));
}

TEST_F(Export, NothingIsWrittenByADryRun) {
  add_factors("model.layers.0.q", 5, 3, 5);
  options_.write.dry_run = true;
  const ExportResult result = run();
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_EQ(result.written.plan.tensor_count, 4U);
}

TEST_F(Export, AnOutputThatHoldsAnInputIsRefused) {
  write();
  options_.write.output = path_;
  options_.write.force = true;
  const std::string before = read_bytes(folder_ / "base/model.safetensors");
  expect_error(ErrorCode::Conflict, {}, "",
               [&] { export_hf(path_, options_); });
  EXPECT_EQ(read_bytes(folder_ / "base/model.safetensors"), before);
}

TEST_F(Export, NothingOfAnOldOutputStays) {
  write();
  fs::create_directories(folder_ / "out");
  write_bytes(folder_ / "out/model.safetensors.index.json", "stale");
  write_bytes(folder_ / "out/pytorch_model.bin", "stale");
  options_.write.force = true;
  export_hf(path_, options_);
  EXPECT_FALSE(fs::exists(folder_ / "out/model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out/pytorch_model.bin"));
}

TEST_F(Export, OptionsForCheckpointsAreRefused) {
  write();
  options_.lora_alpha = 4;
  expect_error(ErrorCode::Invalid, {}, "holds no adapter",
               [&] { export_hf(path_, options_); });
  options_.lora_alpha.reset();
  options_.base = path_;
  expect_error(ErrorCode::Invalid, {}, "--base is for checkpoints",
               [&] { export_hf(path_, options_); });
}

// ---- out of ZeRO ----

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
