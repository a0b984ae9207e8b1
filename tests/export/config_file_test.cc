// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/caught.h"

namespace zckpt::test {
namespace {

ConfigFile config(const std::string& text) {
  return ConfigFile(text, "config.json");
}

TEST(ConfigFile, UnchangedIsByteForByte) {
  const std::string text = "{\"b\":1 ,  \"a\": 1e-06}";
  ConfigFile file = config(text);
  EXPECT_EQ(file.text(), text);
  EXPECT_TRUE(file.changes().empty());
}

TEST(ConfigFile, SettingWhatIsThereIsNoChange) {
  ConfigFile file = config(R"({"dtype": "bfloat16", "vocab_size": 7})");
  file.set_dtype(DType::BF16);
  file.set_vocab_size(7);
  EXPECT_TRUE(file.changes().empty());
}

TEST(ConfigFile, OrderOfKeysAndNumbersStay) {
  ConfigFile file = config(
      R"({"z": 1e-06, "dtype": "float32", "a": 10000.0, "n": null, "e": "é"})");
  file.set_dtype(DType::F16);
  EXPECT_EQ(file.text(),
            "{\n  \"z\": 1e-06,\n  \"dtype\": \"float16\",\n  \"a\": 10000.0,\n"
            "  \"n\": null,\n  \"e\": \"\\u00e9\"\n}\n");
  ASSERT_EQ(file.changes().size(), 1U);
  EXPECT_EQ(file.changes()[0].before, "\"float32\"");
}

TEST(ConfigFile, DtypeIsReadAndSetUnderEitherName) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    ConfigFile file =
        config("{\"" + std::string(key) + "\": \"torch.bfloat16\"}");
    EXPECT_EQ(file.dtype(), DType::BF16);
    file.set_dtype(DType::F32);
    EXPECT_EQ(file.text(),
              "{\n  \"" + std::string(key) + "\": \"float32\"\n}\n");
  }
  ConfigFile none = config("{}");
  EXPECT_FALSE(none.dtype());
  none.set_dtype(DType::F16);
  EXPECT_EQ(none.dtype(), DType::F16);
  EXPECT_FALSE(config(R"({"dtype": "auto"})").dtype());
}

TEST(ConfigFile, PartsOfAModelFollow) {
  ConfigFile file = config(
      R"({"text_config": {"dtype": "float32", "vocab_size": 5,
          "tie_word_embeddings": true}, "vision_config": {"dtype": "float32"}})");
  EXPECT_EQ(file.dtype(), DType::F32);
  EXPECT_EQ(file.vocab_size(), 5U);
  EXPECT_EQ(file.tie_word_embeddings(), true);
  file.set_dtype(DType::BF16);
  file.set_vocab_size(6);
  file.set_tie_word_embeddings(false);
  std::vector<std::string> keys;
  for (const ConfigChange& change : file.changes()) keys.push_back(change.key);
  EXPECT_THAT(keys,
              testing::UnorderedElementsAre(
                  "text_config.dtype", "vision_config.dtype", "torch_dtype",
                  "text_config.vocab_size", "tie_word_embeddings",
                  "text_config.tie_word_embeddings"));
}

TEST(ConfigFile, HeadsAreToldByTheClass) {
  const ConfigFile causal = config(R"({"architectures": ["GPT2LMHeadModel"]})");
  EXPECT_TRUE(causal.has_language_head());
  const ConfigFile masked = config(R"({"architectures": ["BertForMaskedLM"]})");
  EXPECT_FALSE(masked.has_language_head());
  EXPECT_TRUE(masked.has_some_head());
  const ConfigFile classifier =
      config(R"({"architectures": ["LlamaForSequenceClassification"]})");
  EXPECT_FALSE(classifier.has_language_head());
  EXPECT_FALSE(classifier.has_some_head());
  const ConfigFile unknown = config(R"({"tie_word_embeddings": true})");
  EXPECT_TRUE(unknown.has_language_head());
  EXPECT_FALSE(config("{}").has_language_head());
  EXPECT_TRUE(config("{}").has_some_head());
}

TEST(ConfigFile, TypesOfPartsCount) {
  const ConfigFile file = config(
      R"({"model_type": "a", "decoder": {"model_type": "gpt2"}, "x": 1})");
  EXPECT_TRUE(file.is_or_contains({"gpt2"}));
  EXPECT_TRUE(file.is_or_contains({"b", "a"}));
  EXPECT_FALSE(file.is_or_contains({"b"}));
}

TEST(ConfigFile, UntyingReachesTheTextModel) {
  ConfigFile file = config(R"({"text_config": {"hidden_size": 4}})");
  file.set_tie_word_embeddings(false);
  EXPECT_EQ(file.changes().size(), 2U);
  EXPECT_EQ(file.tie_word_embeddings(), false);
}

TEST(ConfigFile, PythonsConstantsAreKept) {
  ConfigFile file = config(
      R"({"limit": [0.0, Infinity], "low": -Infinity, "x": NaN,
          "text": "Infinity and \"NaN\""})");
  file.set_dtype(DType::F32);
  EXPECT_NE(file.text().find("0.0,\n    Infinity\n"), std::string::npos);
  EXPECT_NE(file.text().find("\"low\": -Infinity"), std::string::npos);
  EXPECT_NE(file.text().find("\"x\": NaN"), std::string::npos);
  EXPECT_NE(file.text().find(R"("Infinity and \"NaN\"")"), std::string::npos);
}

TEST(ConfigFile, QuantisationAndCodeAreSeen) {
  EXPECT_TRUE(config(R"({"quantization_config": {}})").is_quantized());
  EXPECT_FALSE(config(R"({"quantization_config": null})").is_quantized());
  EXPECT_TRUE(config(R"({"auto_map": {"a": "b.C"}})").has_remote_code());
  EXPECT_FALSE(config("{}").has_remote_code());
}

TEST(ConfigFile, NoObjectIsRefused) {
  for (const char* text : {"", "[]", "{\"a\": }"}) {
    expect_error(ErrorCode::Corrupt, {}, "expected a JSON object",
                 [&] { config(text); });
  }
}

}  // namespace
}  // namespace zckpt::test
