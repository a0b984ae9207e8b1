// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/adapter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/caught.h"
#include "zckpt/error.h"

namespace zckpt::test {
namespace {

using testing::HasSubstr;

AdapterConfig parse(const std::string& text) {
  return parse_adapter_config(text, "adapter_config.json");
}

TEST(ParseAdapterConfig, ReadsWhatDecides) {
  const AdapterConfig config = parse(R"({
    "peft_type": "LORA", "r": 6, "lora_alpha": 12.5, "use_dora": true,
    "lora_bias": true, "bias": "lora_only", "modules_to_save": ["a", "b"],
    "target_parameters": null, "unheard_of": {"x": 1}})");
  EXPECT_EQ(config.rank, 6);
  EXPECT_EQ(config.alpha, 12.5);
  EXPECT_TRUE(config.use_dora);
  EXPECT_TRUE(config.lora_bias);
  EXPECT_EQ(config.bias, "lora_only");
  EXPECT_THAT(config.modules_to_save, testing::ElementsAre("a", "b"));
}

TEST(ParseAdapterConfig, HasPeftsDefaults) {
  const AdapterConfig config =
      parse(R"({"peft_type": "LORA", "modules_to_save": null})");
  EXPECT_EQ(config.rank, 8);
  EXPECT_EQ(config.alpha, 8);
  EXPECT_FALSE(config.use_dora);
  EXPECT_EQ(config.bias, "none");
}

TEST(ParseAdapterConfig, TakesTheFirstPatternOfTheFile) {
  const AdapterConfig config = parse(R"({"peft_type": "LORA", "r": 2,
    "rank_pattern": {"z.*": 3, "a": 4, ".*q": 5}})");
  EXPECT_EQ(config.rank_of("m.zq"), 3);
  EXPECT_EQ(config.rank_of("m.q"), 5);
  EXPECT_EQ(config.rank_of("a"), 4);
  EXPECT_EQ(config.rank_of("m.v"), 2);
}

TEST(ParseAdapterConfig, RefusesOtherMethodsByName) {
  const auto error = caught([] { parse(R"({"peft_type": "IA3"})"); });
  EXPECT_EQ(error->code(), ErrorCode::Unsupported);
  EXPECT_THAT(error->what(), HasSubstr("IA3"));
  EXPECT_EQ(caught([] {
              parse(R"({"peft_type": "LORA", "target_parameters": ["w"]})");
            })->code(),
            ErrorCode::Unsupported);
}

TEST(ParseAdapterConfig, RefusesWhatIsNone) {
  for (const char* text :
       {"", "[]", "{}", R"({"peft_type": 1})",
        R"({"peft_type": "LORA", "r": 0})", R"({"peft_type": "LORA", "r": -4})",
        R"({"peft_type": "LORA", "r": "8"})",
        R"({"peft_type": "LORA", "lora_alpha": "8"})",
        R"({"peft_type": "LORA", "use_dora": 1})",
        R"({"peft_type": "LORA", "lora_bias": "yes"})",
        R"({"peft_type": "LORA", "bias": false})",
        R"({"peft_type": "LORA", "rank_pattern": ["q"]})",
        R"({"peft_type": "LORA", "rank_pattern": {"q": 1.5}})",
        R"({"peft_type": "LORA", "modules_to_save": "lm_head"})",
        R"({"peft_type": "LORA", "modules_to_save": [1]})"}) {
    const auto error = caught([&] { parse(text); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::Corrupt) << text;
    EXPECT_EQ(error->file(), "adapter_config.json") << text;
  }
}

TEST(MakeAdapterConfig, SaysWhatItReadsBack) {
  const std::string text = make_adapter_config(
      {{"m.q", 4}, {"m.v", 4}, {"m.xq", 2}}, {"lm_head"}, 16, true, false);
  const AdapterConfig config = parse(text);
  EXPECT_EQ(config.rank, 4);
  EXPECT_EQ(config.alpha, 16);
  EXPECT_TRUE(config.use_dora);
  EXPECT_EQ(config.rank_of("m.q"), 4);
  EXPECT_EQ(config.rank_of("m.xq"), 2);
  EXPECT_EQ(config.rank_of("mxxq"), 4);
  EXPECT_THAT(config.modules_to_save, testing::ElementsAre("lm_head"));
  const auto json = nlohmann::json::parse(text);
  EXPECT_TRUE(json["lora_alpha"].is_number_integer());
  EXPECT_EQ(json["target_modules"].size(), 3);
}

}  // namespace
}  // namespace zckpt::test
