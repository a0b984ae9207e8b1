// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/check_test.h"
#include "zckpt/verify.h"

// Experts, pipeline layers and model-parallel ranks, on checkpoints that real
// DeepSpeed wrote.

namespace zckpt::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CheckGrid : public testing::Test {
 protected:
  void copy(const std::string& fixture) {
    fs::copy(fs::path(ZCKPT_FIXTURES) / "zero" / fixture / "ckpt",
             folder_ / "run", fs::copy_options::recursive);
  }
  fs::path tag() const { return folder_ / "run/global_step3"; }

  Verification judge() const {
    return verify(folder_ / "run", {}).checkpoints.at(0);
  }
  // Errors and warnings beside the layout itself.
  std::vector<std::string> troubles() const {
    std::vector<std::string> lines = places(judge().findings);
    std::erase_if(lines, [](const std::string& line) {
      return line.starts_with("note") || line == "error unsupported-layout";
    });
    return lines;
  }

  TempFolder folder_;
};

TEST_F(CheckGrid, FindsNothingInGenuineOnes) {
  for (const char* name :
       {"v0.14.2-moe4-z2-bf16-n2", "v0.19.8-moe4-z1-bf16-n2",
        "v0.19.8-moe4-z2-bf16-n4", "v0.14.2-pipe2-bf16-n4",
        "v0.19.8-pipe2-bf16-n4", "v0.19.8-pipe2-fp32-n2",
        "v0.19.8-tp2-z1-bf16-n2", "v0.19.8-tp2-z2-bf16-n4"}) {
    copy(name);
    EXPECT_THAT(troubles(), IsEmpty()) << name;
    EXPECT_EQ(judge().verdict, Verdict::Unsupported) << name;
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(CheckGrid, MissesAnExpertBetweenOthers) {
  copy("v0.14.2-moe4-z2-bf16-n2");
  fs::remove(tag() / "layer_0_expert_2_mp_rank_00_model_states.pt");
  EXPECT_THAT(troubles(),
              ElementsAre("error expert-missing global_step3/"
                          "layer_0_expert_2_mp_rank_00_model_states.pt"));
  EXPECT_EQ(judge().verdict, Verdict::Damaged);
}

TEST_F(CheckGrid, MissesTheLastExpertsThatTheModelFileLists) {
  copy("v0.19.8-moe4-z2-bf16-n4");
  fs::remove(tag() / "layer_0_expert_2_mp_rank_00_model_states.pt");
  fs::remove(tag() / "layer_0_expert_3_mp_rank_00_model_states.pt");
  EXPECT_THAT(troubles(),
              ElementsAre(HasSubstr("expert_2_"), HasSubstr("expert_3_")));
  fs::remove(tag() / "layer_0_expert_0_mp_rank_00_model_states.pt");
  fs::remove(tag() / "layer_0_expert_1_mp_rank_00_model_states.pt");
  EXPECT_THAT(troubles(), ElementsAre("error expert-missing"));
}

TEST_F(CheckGrid, MissesALayerOfExperts) {
  copy("v0.19.8-moe4-z2-bf16-n4");
  for (const char* expert : {"0", "1", "2", "3"}) {
    const std::string end =
        "_expert_" + std::string(expert) + "_mp_rank_00_model_states.pt";
    fs::copy_file(tag() / ("layer_0" + end), tag() / ("layer_2" + end));
  }
  EXPECT_THAT(troubles(), Contains("error expert-missing"));
}

TEST_F(CheckGrid, WarnsOfALayerBetweenOthers) {
  copy("v0.19.8-pipe2-bf16-n4");
  fs::remove(tag() / "layer_02-model_states.pt");
  EXPECT_THAT(troubles(), ElementsAre("warning layer-missing global_step3/"
                                      "layer_02-model_states.pt"));
  EXPECT_EQ(judge().verdict, Verdict::Unsupported);
}

TEST_F(CheckGrid, MissesAModelParallelPartOfALayer) {
  copy("v0.19.8-pipe2-bf16-n4");
  for (int layer = 0; layer < 5; ++layer) {
    const std::string stem = "layer_0" + std::to_string(layer);
    const fs::path whole = tag() / (stem + "-model_states.pt");
    fs::copy_file(whole, tag() / (stem + "-model_00-model_states.pt"));
    if (layer != 3) {
      fs::copy_file(whole, tag() / (stem + "-model_01-model_states.pt"));
    }
    fs::remove(whole);
  }
  EXPECT_THAT(troubles(), Contains("error layer-missing global_step3/"
                                   "layer_03-model_01-model_states.pt"));
}

TEST_F(CheckGrid, MissesAShardOfTheGrid) {
  copy("v0.19.8-tp2-z2-bf16-n4");
  fs::remove(tag() / "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt");
  EXPECT_THAT(troubles(),
              ElementsAre("error optim-shard-missing global_step3/"
                          "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt "
                          "rank 1"));
  fs::remove(tag() / "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt");
  EXPECT_THAT(troubles(), ElementsAre(HasSubstr("rank_0_mp_rank_01"),
                                      HasSubstr("rank_1_mp_rank_01")));
}

TEST_F(CheckGrid, MissesAModelFileOfTheGrid) {
  copy("v0.19.8-pipe2-bf16-n4");
  fs::remove(tag() / "mp_rank_01_model_states.pt");
  EXPECT_THAT(troubles(), ElementsAre("error model-shard-missing global_step3/"
                                      "mp_rank_01_model_states.pt"));
}

TEST_F(CheckGrid, MissesTheLastRanksThatTheFilesTell) {
  copy("v0.19.8-pipe2-bf16-n4");
  fs::remove(tag() / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
  fs::remove(tag() / "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt");
  EXPECT_THAT(troubles(), ElementsAre(HasSubstr("rank_1_mp_rank_00"),
                                      HasSubstr("rank_1_mp_rank_01")));
  fs::remove_all(folder_ / "run");
  copy("v0.19.8-tp2-z2-bf16-n4");
  for (const char* name : {"mp_rank_01_model_states.pt",
                           "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt",
                           "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt"}) {
    fs::remove(tag() / name);
  }
  EXPECT_EQ(troubles().size(), 3) << testing::PrintToString(troubles());
}

TEST_F(CheckGrid, TellsFilesThatWereCopiedOverOthers) {
  copy("v0.19.8-moe4-z2-bf16-n4");
  fs::copy_file(tag() / "layer_0_expert_0_mp_rank_00_model_states.pt",
                tag() / "layer_0_expert_1_mp_rank_00_model_states.pt",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(troubles(),
              ElementsAre("error file-misnamed global_step3/"
                          "layer_0_expert_1_mp_rank_00_model_states.pt"));
}

TEST_F(CheckGrid, RefusesTwoFilesForOneExpert) {
  copy("v0.19.8-moe4-z2-bf16-n4");
  const std::string name = "layer_0_expert_0_mp_rank_00_model_states.pt";
  const fs::path other = folder_ / "other/global_step3";
  fs::create_directories(other);
  fs::copy_file(tag() / name, other / name);
  VerifyOptions options;
  options.open.also = {other.string()};
  const auto codes = [&] {
    return places(verify(folder_ / "run", options).checkpoints[0].findings);
  };
  EXPECT_THAT(codes(), testing::Not(Contains(HasSubstr("shard-conflict"))));
  fs::copy_file(tag() / "layer_0_expert_1_mp_rank_00_model_states.pt",
                other / name, fs::copy_options::overwrite_existing);
  EXPECT_THAT(codes(), Contains(HasSubstr("error shard-conflict")));
}

TEST_F(CheckGrid, EndsOnHostileNumbers) {
  copy("v0.19.8-moe4-z2-bf16-n4");
  for (const char* name :
       {"layer_4000000000_expert_4294967295_mp_rank_00_model_states.pt",
        "layer_4000000000-model_states.pt"}) {
    fs::copy_file(tag() / "layer_0_expert_0_mp_rank_00_model_states.pt",
                  tag() / name);
  }
  EXPECT_LT(troubles().size(), 300);
}

TEST_F(CheckGrid, LooksAtFilesThatItCannotRead) {
  copy("v0.19.8-pipe2-bf16-n4");
  const fs::path first = tag() / "layer_00-model_states.pt";
  truncate_file(first, fs::file_size(first) - 30);
  truncate_file(tag() / "layer_01-model_states.pt", 0);
  fs::remove(tag() / "layer_02-model_states.pt");
  fs::create_directory(tag() / "layer_02-model_states.pt");
  EXPECT_THAT(
      troubles(),
      testing::UnorderedElementsAre(
          "error file-truncated global_step3/layer_00-model_states.pt",
          "error file-empty global_step3/layer_01-model_states.pt",
          "error file-unreadable global_step3/layer_02-model_states.pt"));
  EXPECT_EQ(judge().verdict, Verdict::Damaged);
}

TEST_F(CheckGrid, ReportsDamagedShardsOfAnyLayout) {
  copy("v0.19.8-moe4-z2-bf16-n4");
  const fs::path shard =
      tag() / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt";
  truncate_file(shard, fs::file_size(shard) / 2);
  EXPECT_THAT(troubles(), Contains(HasSubstr("error file-truncated")));
  EXPECT_EQ(judge().verdict, Verdict::Damaged);
}

TEST_F(CheckGrid, ReadsEveryByteOfFilesThatItCannotPutTogether) {
  copy("v0.19.8-pipe2-bf16-n4");
  const fs::path layer = tag() / "layer_03-model_states.pt";
  const FileSource source(layer.string());
  const auto records = TorchFile::open(source).storages();
  flip_byte(layer, records.at(0).offset);
  VerifyOptions options;
  options.full = true;
  const Verification judged = verify(folder_ / "run", options).checkpoints[0];
  EXPECT_EQ(judged.verdict, Verdict::Damaged);
  EXPECT_THAT(places(judged.findings),
              Contains(HasSubstr("error crc-mismatch global_step3/"
                                 "layer_03-model_states.pt")));
}

}  // namespace
}  // namespace zckpt::test
