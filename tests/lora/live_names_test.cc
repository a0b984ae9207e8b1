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

}  // namespace
}  // namespace zckpt
