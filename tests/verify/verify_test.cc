// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/caught.h"
#include "verify/resumable.h"

// Verdicts, and the folders that a launch script stands before.

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class VerifyTest : public Resumable {
 protected:
  // A checkpoint of the Trainer in the run folder.
  void add_checkpoint(int64_t step, const std::string& name) {
    use("run/" + name);
    write(Writer::Stage3, {}, 2, [&](ZeroRun& run) {
      run.step = step;
      run.tag = "global_step" + std::to_string(step);
    });
    add_trainer_files(step);
  }
  void add_checkpoint(int64_t step) {
    add_checkpoint(step, "checkpoint-" + std::to_string(step));
  }
  std::string run(const std::string& name = "") const {
    return (temp_.path() / "run" / name).string();
  }
  VerifyResult judge_run(const VerifyOptions& options = {}) const {
    VerifyResult result = verify(run(), options);
    EXPECT_TRUE(result.is_run);
    return result;
  }
  static std::vector<std::string> names(const VerifyResult& result) {
    std::vector<std::string> found;
    for (const Verification& v : result.checkpoints) {
      found.push_back(fs::path(v.path).filename().string() + " " +
                      std::string(to_string(v.verdict)));
    }
    return found;
  }
  static std::string newest(const VerifyResult& result) {
    return result.newest_resumable
               ? result.checkpoints[*result.newest_resumable].path
               : "";
  }
};

// -- verdicts

TEST_F(VerifyTest, SaysWhatItKnowsOfASoundOne) {
  write(Writer::Stage3, {}, 3);
  const Verification sound = judge();
  EXPECT_EQ(sound.verdict, Verdict::Resumable);
  EXPECT_TRUE(sound.can_resume);
  EXPECT_TRUE(sound.can_merge);
  EXPECT_EQ(sound.path, folder().string());
  EXPECT_EQ(sound.tag, "global_step3");
  EXPECT_EQ(sound.step, 3U);
  EXPECT_EQ(sound.facts.world_size, 3U);
  EXPECT_EQ(sound.facts.stage, 3);
  EXPECT_EQ(sound.facts.framework, "deepspeed");
}

TEST_F(VerifyTest, WeightsOnlyWhereNothingButTheOptimizerIsLost) {
  write(Writer::Stage3, [](ZeroCheckpoint& made) {
    made.inner(1).at("optimizer_state_dict").set("state", Py::dict());
  });
  const Verification found = judge();
  EXPECT_EQ(found.verdict, Verdict::WeightsOnly);
  EXPECT_FALSE(found.can_resume);
  EXPECT_TRUE(found.can_merge);
}

TEST_F(VerifyTest, DamagedWhereWeightsAreLost) {
  write(Writer::Stage3);
  fs::remove(optim(1));
  const Verification found = judge();
  EXPECT_EQ(found.verdict, Verdict::Damaged);
  EXPECT_FALSE(found.can_resume);
  EXPECT_FALSE(found.can_merge);
}

TEST_F(VerifyTest, AllDamageIsReportedInOneRun) {
  use("checkpoint-3");
  write(Writer::Stage3, {}, 4);
  truncate_file(optim(0), 200);
  truncate_file(optim(1), 0);
  fs::remove(optim(2));
  fs::remove(folder() / "latest");
  EXPECT_THAT(
      places(judge()),
      testing::IsSupersetOf(
          {"error file-truncated global_step3/" + made_->optim_name(0) +
               " rank 0",
           "error file-empty global_step3/" + made_->optim_name(1) + " rank 1",
           "error optim-shard-missing global_step3/" + made_->optim_name(2) +
               " rank 2",
           std::string("error latest-missing latest"),
           std::string("error trainer-state-missing trainer_state.json"),
           std::string("error scheduler-missing scheduler.pt")}));
}

TEST_F(VerifyTest, UnsupportedIsNamedAndNotCalledDamaged) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    made.model().root.set("ds_autoep_layers", Py::list());
  });
  const Verification found = judge();
  EXPECT_EQ(found.verdict, Verdict::Unsupported);
  EXPECT_FALSE(found.can_resume);
  EXPECT_THAT(found.findings[0].message, HasSubstr("experts"));
}

TEST_F(VerifyTest, AFolderOfWeightsDoesNotResume) {
  write_bytes(folder() / "model.safetensors",
              std::string("\x02\0\0\0\0\0\0\0{}", 10));
  const Verification found = judge();
  EXPECT_EQ(found.verdict, Verdict::WeightsOnly);
  EXPECT_THAT(places(found), ElementsAre("error weights-only-model"));
  VerifyOptions options;
  options.question = Question::Merge;
  EXPECT_THAT(places(judge(options)), IsEmpty());
  EXPECT_TRUE(judge(options).can_merge);
}

TEST_F(VerifyTest, AnAdapterAloneIsNoCheckpoint) {
  write_bytes(folder() / "adapter_config.json", "{}");
  write_bytes(folder() / "adapter_model.safetensors", "x");
  const Verification found = judge();
  EXPECT_EQ(found.verdict, Verdict::NotACheckpoint);
  EXPECT_FALSE(found.can_merge);
  EXPECT_THAT(found.findings[0].message, HasSubstr("PEFT adapter alone"));
}

TEST_F(VerifyTest, NothingIsNoCheckpoint) {
  fs::create_directories(folder());
  EXPECT_EQ(judge().verdict, Verdict::NotACheckpoint);
  write_bytes(folder() / "a.txt", "x");
  EXPECT_EQ(verify((folder() / "a.txt").string(), {}).checkpoints[0].verdict,
            Verdict::NotACheckpoint);
}

TEST_F(VerifyTest, APathThatDoesNotExistIsAnError) {
  const auto error = caught([&] { verify(temp_ / "gone", {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Io);
}

TEST_F(VerifyTest, FrozenWeightsLeftOutOnPurposeAreNoDamage) {
  write(Writer::Stage3, {}, 2, [](ZeroRun& run) { run.exclude_frozen = true; });
  const Verification found = judge();
  EXPECT_EQ(found.verdict, Verdict::Resumable);
  EXPECT_TRUE(found.can_merge);
  EXPECT_THAT(places(found), Contains("note frozen-missing"));
}

// -- the question and --strict

TEST_F(VerifyTest, SeveritiesAnswerTheQuestion) {
  write(Writer::Stage3, [](ZeroCheckpoint& made) {
    made.inner(1).at("optimizer_state_dict").set("state", Py::dict());
  });
  VerifyOptions options;
  options.question = Question::Merge;
  const Verification found = judge(options);
  EXPECT_EQ(found.verdict, Verdict::WeightsOnly);  // does not depend on it
  EXPECT_THAT(places(found), Contains("note moment-missing global_step3/" +
                                      made_->optim_name(1) + " rank 1"));
}

TEST_F(VerifyTest, StrictLetsWarningsCount) {
  write(Writer::Stage3);
  fs::copy(optim(1), tag() / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt");
  EXPECT_TRUE(judge().can_resume);
  VerifyOptions options;
  options.strict = true;
  const Verification found = judge(options);
  EXPECT_FALSE(found.can_resume);
  EXPECT_FALSE(found.can_merge);
  EXPECT_THAT(places(found), Contains("warning shard-surplus"));
}

TEST_F(VerifyTest, WhoResumesSaysNothingAboutTheWeights) {
  write(Writer::Stage3);
  VerifyOptions options;
  options.world_size = 8;
  options.stage = 2;
  options.dtype = DType::F16;
  const Verification found = judge(options);
  EXPECT_EQ(found.verdict, Verdict::WeightsOnly);
  EXPECT_THAT(places(found), testing::IsSupersetOf({"error world-size-conflict",
                                                    "error stage-conflict",
                                                    "error prefix-mixed"}));
}

// -- run folders

TEST_F(VerifyTest, NumbersOrderTheCheckpointsOfARun) {
  add_checkpoint(900);
  add_checkpoint(1000);
  add_checkpoint(50);
  const VerifyResult result = judge_run();
  EXPECT_THAT(names(result), ElementsAre("checkpoint-1000 resumable",
                                         "checkpoint-900 resumable",
                                         "checkpoint-50 resumable"));
  EXPECT_EQ(newest(result), run("checkpoint-1000"));
  EXPECT_EQ(result.checkpoints[0].step, 1000U);
}

TEST_F(VerifyTest, ARunOfOneIsARun) {
  add_checkpoint(5);
  EXPECT_EQ(newest(judge_run()), run("checkpoint-5"));
}

TEST_F(VerifyTest, AHalfWrittenHighestIsPassedOver) {
  add_checkpoint(900);
  add_checkpoint(1000);
  fs::remove(optim(1));
  const VerifyResult result = judge_run();
  EXPECT_THAT(names(result), ElementsAre("checkpoint-1000 damaged",
                                         "checkpoint-900 resumable"));
  EXPECT_EQ(newest(result), run("checkpoint-900"));
}

TEST_F(VerifyTest, AHighestWithoutShardsIsSeenToo) {
  add_checkpoint(900);
  fs::create_directories(run("checkpoint-1000"));
  write_bytes(run("checkpoint-1000/config.json"), "{}");
  const VerifyResult result = judge_run();
  EXPECT_THAT(names(result), ElementsAre("checkpoint-1000 not-a-checkpoint",
                                         "checkpoint-900 resumable"));
  EXPECT_EQ(newest(result), run("checkpoint-900"));
}

TEST_F(VerifyTest, SavesThatNeverFinishedAreNamedAndNeverChosen) {
  add_checkpoint(900);
  add_checkpoint(1000, "tmp-checkpoint-1000");
  const VerifyResult result = judge_run();
  EXPECT_THAT(names(result), ElementsAre("tmp-checkpoint-1000 weights-only",
                                         "checkpoint-900 resumable"));
  EXPECT_THAT(places(result.checkpoints[0]), Contains("error tmp-checkpoint"));
  EXPECT_EQ(newest(result), run("checkpoint-900"));
  VerifyOptions merge;
  merge.question = Question::Merge;
  EXPECT_THAT(places(judge_run(merge).checkpoints[0]),
              Contains("warning tmp-checkpoint"));
  EXPECT_TRUE(judge_run(merge).checkpoints[0].can_merge);
}

TEST_F(VerifyTest, FindsTheShardThatALateRankLeftInAnUnfinishedSave) {
  add_checkpoint(1000);
  const fs::path late = run("tmp-checkpoint-1000/" + tag_);
  fs::create_directories(late);
  fs::rename(optim(1), late / optim(1).filename());
  const VerifyResult result = judge_run();
  EXPECT_THAT(names(result), ElementsAre("checkpoint-1000 damaged",
                                         "tmp-checkpoint-1000 damaged"));
  EXPECT_THAT(places(result.checkpoints[0]),
              Contains(HasSubstr("note shard-elsewhere")));
  VerifyOptions also;
  also.open.also = {late.string()};
  EXPECT_TRUE(verify(run("checkpoint-1000"), also).checkpoints[0].can_resume);
}

TEST_F(VerifyTest, TagsThatNothingChoosesBetween) {
  for (const char* tag : {"first", "second"}) {
    write(Writer::Stage2, {}, 2, [&](ZeroRun& run) { run.tag = tag; });
  }
  fs::remove(folder() / "latest");
  const Verification judged = judge();
  EXPECT_EQ(judged.verdict, Verdict::NotACheckpoint);
  EXPECT_THAT(places(judged), ElementsAre("error tag-ambiguous"));
  EXPECT_THAT(judged.findings[0].message, HasSubstr("--tag"));
  VerifyOptions options;
  options.open.tag = "first";
  EXPECT_TRUE(judge(options).can_resume);
}

TEST_F(VerifyTest, NothingResumes) {
  add_checkpoint(900);
  fs::remove(optim(0));
  add_checkpoint(1000);
  fs::remove(folder() / "trainer_state.json");
  const VerifyResult result = judge_run();
  EXPECT_FALSE(result.newest_resumable);
  EXPECT_THAT(names(result), ElementsAre("checkpoint-1000 weights-only",
                                         "checkpoint-900 damaged"));
}

TEST_F(VerifyTest, TheRunThatWantsToResumeChoosesAmongThem) {
  add_checkpoint(900);
  use("run/checkpoint-1000");
  write(Writer::Stage3, {}, 3, [](ZeroRun& run) { run.step = 1000; });
  add_trainer_files(1000, 3);
  EXPECT_EQ(newest(judge_run()), run("checkpoint-1000"));
  VerifyOptions options;
  options.world_size = 2;
  EXPECT_EQ(newest(judge_run(options)), run("checkpoint-900"));
}

TEST_F(VerifyTest, SeveralTagsAreARunToo) {
  use("run");
  for (const int64_t step : {8, 12}) {
    write(Writer::Stage2, {}, 2, [&](ZeroRun& run) {
      run.step = step;
      run.tag = "global_step" + std::to_string(step);
    });
  }
  EXPECT_EQ(newest(judge_run()), run("global_step12"));
  // The newest one is broken, and `latest` still names it.
  fs::remove(optim(1));
  const VerifyResult result = judge_run();
  EXPECT_THAT(names(result),
              ElementsAre("global_step12 damaged", "global_step8 resumable"));
  EXPECT_EQ(newest(result), run("global_step8"));
}

TEST_F(VerifyTest, LatestDisagreesWithTheHighestTag) {
  use("run");
  for (const int64_t step : {12, 8}) {
    write(Writer::Stage2, {}, 2, [&](ZeroRun& run) {
      run.step = step;
      run.tag = "global_step" + std::to_string(step);
    });
  }
  const VerifyResult result = judge_run();
  EXPECT_EQ(newest(result), run("global_step12"));
  EXPECT_THAT(result.checkpoints[0].facts.notes,
              Contains(HasSubstr("latest names global_step8")));
}

// -- genuine ones, as the frameworks that wrote them found them

std::vector<fs::path> genuine(const std::string& kind) {
  std::vector<fs::path> folders;
  for (const auto& entry :
       fs::directory_iterator(fs::path(ZCKPT_FIXTURES) / kind)) {
    const std::string name = entry.path().filename().string();
    const bool other = name.find("-moe") != std::string::npos ||
                       name.find("-pipe") != std::string::npos ||
                       name.find("-tp") != std::string::npos;
    if (!other && fs::exists(entry.path() / "case.json")) {
      folders.push_back(entry.path());
    }
  }
  return folders;
}

TEST(Genuine, ResumesAsDeepSpeedDid) {
  for (const fs::path& folder : genuine("zero")) {
    SCOPED_TRACE(folder.filename());
    const auto known = nlohmann::json::parse(read_bytes(folder / "case.json"));
    const Verification found =
        verify((folder / "ckpt").string(), {}).checkpoints.at(0);
    EXPECT_EQ(found.can_resume, known["resumes"].get<bool>())
        << describe(found.findings);
    EXPECT_TRUE(found.can_merge) << describe(found.findings);
  }
}

TEST(Genuine, ResumesAsTheTrainerDid) {
  size_t judged = 0;
  for (const fs::path& folder : genuine("hf")) {
    SCOPED_TRACE(folder.filename());
    const auto known = nlohmann::json::parse(read_bytes(folder / "case.json"));
    if (!known.contains("resume")) continue;
    ++judged;
    const Verification found =
        verify((folder / "checkpoint-2").string(), {}).checkpoints.at(0);
    EXPECT_EQ(found.can_resume, known["resume"]["verdict"] == "PASS")
        << describe(found.findings);
  }
  EXPECT_GT(judged, 10U);
}

}  // namespace
}  // namespace zckpt::test
