// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/live_names.h"

#include <gtest/gtest.h>

namespace zckpt {
namespace {

struct Case {
  const char* live;
  AdapterPart part;
  const char* module;
  const char* file;
};

// Pairs of names that PEFT 0.21 has in a state_dict and in an adapter file.
const Case kCases[] = {
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
     AdapterPart::A, "model.layers.0.self_attn.q_proj",
     "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"},
    {"base_model.model.h.0.attn.c_attn.lora_B.default.weight", AdapterPart::B,
     "h.0.attn.c_attn", "base_model.model.h.0.attn.c_attn.lora_B.weight"},
    {"base_model.model.q.lora_B.default.bias", AdapterPart::BiasOfB, "q",
     "base_model.model.q.lora_B.bias"},
    {"base_model.model.model.embed_tokens.lora_embedding_A.default",
     AdapterPart::A, "model.embed_tokens",
     "base_model.model.model.embed_tokens.lora_embedding_A"},
    {"base_model.model.model.embed_tokens.lora_embedding_B.default",
     AdapterPart::B, "model.embed_tokens",
     "base_model.model.model.embed_tokens.lora_embedding_B"},
    {"base_model.model.q.lora_magnitude_vector.default.weight",
     AdapterPart::Magnitude, "q", "base_model.model.q.lora_magnitude_vector"},
    {"base_model.model.lm_head.modules_to_save.default.weight",
     AdapterPart::SavedModule, "lm_head", "base_model.model.lm_head.weight"},
    {"base_model.model.score.modules_to_save.default.dense.bias",
     AdapterPart::SavedModule, "score", "base_model.model.score.dense.bias"},
    {"base_model.model.model.embed_tokens.token_adapter."
     "trainable_tokens_delta.default",
     AdapterPart::Tokens, "model.embed_tokens",
     "base_model.model.model.embed_tokens.token_adapter."
     "trainable_tokens_delta"},
};

TEST(ParseLiveName, KnowsEveryKind) {
  for (const Case& tested : kCases) {
    const auto live = parse_live_name(tested.live);
    ASSERT_TRUE(live) << tested.live;
    EXPECT_EQ(live->part, tested.part) << tested.live;
    EXPECT_EQ(live->adapter, "default") << tested.live;
    EXPECT_EQ(live->module, tested.module) << tested.live;
    EXPECT_EQ(live->file_name, tested.file) << tested.live;
  }
}

TEST(ParseLiveName, TellsAdaptersApart) {
  EXPECT_EQ(parse_live_name("base_model.model.q.lora_A.math_2.weight")->adapter,
            "math_2");
}

TEST(ParseLiveName, LeavesEverythingElse) {
  for (const char* name :
       {"", "lora_A", "base_model.model.", "base_model.model.lora_A",
        "model.q.lora_A.default.weight",
        "base_model.model.model.layers.0.q_proj.base_layer.weight",
        "base_model.model.lm_head.original_module.weight",
        "base_model.model.lora_Alpha.default.weight",
        "base_model.model.q.base_layer.bias"}) {
    EXPECT_FALSE(parse_live_name(name)) << name;
  }
}

TEST(ParseFileName, KnowsWhatPeftWrites) {
  struct FileCase {
    const char* name;
    AdapterPart part;
    const char* target;
  };
  const FileCase cases[] = {
      {"base_model.model.m.q.lora_A.weight", AdapterPart::A, "m.q"},
      {"base_model.model.m.q.lora_A.default.weight", AdapterPart::A, "m.q"},
      {"base_model.model.m.q.lora_B.bias", AdapterPart::BiasOfB, "m.q"},
      {"base_model.model.m.e.lora_embedding_B", AdapterPart::B, "m.e"},
      {"base_model.model.m.q.lora_magnitude_vector", AdapterPart::Magnitude,
       "m.q"},
      {"base_model.model.m.q.lora_magnitude_vector.weight",
       AdapterPart::Magnitude, "m.q"},
      {"base_model.model.m.e.token_adapter.trainable_tokens_delta",
       AdapterPart::Tokens, "m.e"},
      {"base_model.model.m.q.base_layer.bias", AdapterPart::Replacement,
       "m.q.bias"},
      {"base_model.model.lm_head.weight", AdapterPart::Replacement,
       "lm_head.weight"},
      {"base_model.model.lm_head.modules_to_save.weight",
       AdapterPart::Replacement, "lm_head.weight"},
      {"base_model.model.score.modules_to_save.default.out.weight",
       AdapterPart::Replacement, "score.out.weight"}};
  for (const FileCase& it : cases) {
    const auto file = parse_file_name(it.name);
    ASSERT_TRUE(file) << it.name;
    EXPECT_EQ(file->part, it.part) << it.name;
    EXPECT_EQ(file->target, it.target) << it.name;
  }
  EXPECT_EQ(parse_file_name("base_model.model.h.original_module.weight")->part,
            AdapterPart::Ignored);
  EXPECT_TRUE(
      parse_file_name("base_model.model.e.lora_embedding_A")->is_embedding);
}

TEST(ParseFileName, LeavesEverythingElse) {
  for (const char* name :
       {"", "m.q.lora_A.weight", "base_model.model.",
        "base_model.model.lora_A.weight", "base_model.model.q.lora_A.bias",
        "base_model.model.q.lora_A.a.b.weight"}) {
    EXPECT_FALSE(parse_file_name(name)) << name;
  }
}

TEST(BaseName, TakesOffWhatIsNotTheModels) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.q.weight", "model.q.weight"},
      {"module._orig_mod.model.q.weight", "model.q.weight"},
      {"base_model.model.model.q.base_layer.weight", "model.q.weight"},
      {"module.base_model.model.lm_head.original_module.weight",
       "lm_head.weight"},
      {"base_model.model.e.token_adapter.base_layer.weight", "e.weight"},
      {"model.base_model.model.model.q.weight", "model.q.weight"}};
  for (const auto& [name, expected] : cases) {
    EXPECT_EQ(base_name(name), expected);
  }
}

}  // namespace
}  // namespace zckpt
