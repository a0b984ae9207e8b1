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

}  // namespace
}  // namespace zckpt::test
