// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/file_names.h"

#include <gtest/gtest.h>

#include <string>

namespace zckpt::test {
namespace {

ShardName name_of(ShardKind kind, std::optional<uint32_t> rank,
                  uint32_t mp_rank, std::string_view prefix = "",
                  std::optional<uint32_t> layer = {},
                  std::optional<uint32_t> expert = {}) {
  return {kind, rank, mp_rank, prefix, layer, expert};
}

TEST(Classify, ReadsModelFiles) {
  EXPECT_EQ(classify("mp_rank_00_model_states.pt"),
            name_of(ShardKind::Model, {}, 0));
  EXPECT_EQ(classify("mp_rank_12_model_states.pt"),
            name_of(ShardKind::Model, {}, 12));
  EXPECT_EQ(classify("zero_pp_rank_10_mp_rank_01_model_states.pt"),
            name_of(ShardKind::Model, 10, 1));
}

TEST(Classify, ReadsOptimizerFiles) {
  EXPECT_EQ(classify("zero_pp_rank_0_mp_rank_00_optim_states.pt"),
            name_of(ShardKind::Optim, 0, 0));
  EXPECT_EQ(classify("bf16_zero_pp_rank_123_mp_rank_00_optim_states.pt"),
            name_of(ShardKind::Optim, 123, 0, "bf16_"));
  EXPECT_EQ(classify("fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
            name_of(ShardKind::Optim, 1, 0, "fp16_"));
  // Before 0.3.14.
  EXPECT_EQ(classify("zero_pp_rank_2_mp_rank_00optim_states.pt"),
            name_of(ShardKind::Optim, 2, 0));
}

TEST(Classify, ReadsExpertsAndLayers) {
  EXPECT_EQ(classify("layer_3_expert_17_mp_rank_00_model_states.pt"),
            name_of(ShardKind::Expert, {}, 0, "", 3, 17));
  EXPECT_EQ(classify("expert_4_mp_rank_01_model_states.pt"),
            name_of(ShardKind::Expert, {}, 1, "", {}, 4));
  EXPECT_EQ(classify("expp_rank_2_mp_rank_00_optim_states.pt"),
            name_of(ShardKind::ExpertOptim, {}, 0, "", {}, 2));
  EXPECT_EQ(classify("layer_07-model_states.pt"),
            name_of(ShardKind::PipelineLayer, {}, 0, "", 7));
  EXPECT_EQ(classify("layer_07-model_02-model_states.pt"),
            name_of(ShardKind::PipelineLayer, {}, 2, "", 7));
}

TEST(Classify, ReadsPartsOfTheMultiWriterEngine) {
  EXPECT_EQ(classify("zero_pp_rank_0_mp_rank_00_optim_states.pt-3.4"),
            name_of(ShardKind::FastPart, 0, 0));
  EXPECT_EQ(classify("mp_rank_00_model_states.pt-0.2").kind,
            ShardKind::FastPart);
}

TEST(Classify, LeavesEverythingElse) {
  for (const char* name :
       {"",
        "latest",
        "mp_rank_00_model_states.pt.tmp",
        "mp_rank__model_states.pt",
        "bf16_mp_rank_00_model_states.pt",
        "bf16_zero_pp_rank_0_mp_rank_00_model_states.pt",
        "mp_rank_00_optim_states.pt",
        "zero_pp_rank_-1_mp_rank_00_optim_states.pt",
        "zero_pp_rank_+1_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pth",
        "zero_pp_rank_4294967296_mp_rank_00_optim_states.pt",
        "zero_pp_rank_99999999999999999999_mp_rank_00_optim_states.pt",
        "layer_-model_states.pt",
        "layer_1_model_states.pt",
        "layer_1-model_x-model_states.pt",
        "expert_x_mp_rank_00_model_states.pt",
        "expp_rank_0_mp_rank_00_model_states.pt",
        "mp_rank_00_model_states.pt-1",
        "mp_rank_00_model_states.pt-1.",
        "mp_rank_00_model_states.pt-1.2x",
        "Mp_rank_00_model_states.pt"}) {
    EXPECT_EQ(classify(name).kind, ShardKind::Other) << name;
  }
}

// The folder name inside an archive is classified too, and can be 64 KiB long.
TEST(Classify, DoesNotGoDeeperForLongNames) {
  std::string name = "mp_rank_00_model_states";
  for (int i = 0; i < 200'000; ++i) name += ".pt-";
  EXPECT_EQ(classify(name).kind, ShardKind::Other);
}

TEST(NumberAfter, TakesDigitsOnly) {
  EXPECT_EQ(number_after("checkpoint-500", "checkpoint-"), 500);
  EXPECT_EQ(number_after("checkpoint-0500", "checkpoint-"), 500);
  for (const char* name :
       {"checkpoint-", "checkpoint-5a", "checkpoint--5",
        "checkpoint-99999999999999999999", "checkpoint_5", "xcheckpoint-5"}) {
    EXPECT_FALSE(number_after(name, "checkpoint-")) << name;
  }
}

}  // namespace
}  // namespace zckpt::test
