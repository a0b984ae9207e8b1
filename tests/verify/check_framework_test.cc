// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verify/resumable.h"

// What stands beside the shards, what unpickling would import, and who wants
// to resume.

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAreArray;

const std::string kClasses = "note class-needed";

class CheckFramework : public Resumable {
 protected:
  void write_trainer(Writer writer = Writer::Stage3, uint32_t ranks = 2) {
    use("checkpoint-3");
    write(writer, {}, ranks);
    add_trainer_files(3, ranks);
  }
  void expect(const std::vector<std::string>& expected,
              const VerifyOptions& options = {}) {
    const Verification found = judge(options);
    std::vector<std::string> all = expected;
    all.push_back(kClasses);
    EXPECT_THAT(places(found), UnorderedElementsAreArray(all))
        << describe(found.findings);
    const bool error =
        std::any_of(expected.begin(), expected.end(),
                    [](const auto& line) { return line.starts_with("error"); });
    EXPECT_EQ(found.can_resume, !error);
    EXPECT_TRUE(found.can_merge);
  }
};

// -- the Trainer

TEST_F(CheckFramework, AcceptsACheckpointOfTheTrainer) {
  write_trainer();
  expect({});
  EXPECT_EQ(judge().facts.framework, "hf");
}

TEST_F(CheckFramework, ReportsAMissingTrainerState) {
  write_trainer();
  fs::remove(folder() / "trainer_state.json");
  expect({"error trainer-state-missing trainer_state.json"});
}

TEST_F(CheckFramework, ReportsAnInvalidTrainerState) {
  write_trainer();
  for (const char* text :
       {"", "{", "[1]", "{}", R"({"global_step": "3"})", "\xff\xfe"}) {
    SCOPED_TRACE(text);
    write_bytes(folder() / "trainer_state.json", text);
    expect({"error trainer-state-invalid trainer_state.json"});
  }
}

TEST_F(CheckFramework, NotesThatTheStepsDiffer) {
  write_trainer();
  add_trainer_files(4);
  expect({"note trainer-step-differs trainer_state.json"});
}

TEST_F(CheckFramework, ReportsAMissingScheduler) {
  write_trainer();
  fs::remove(folder() / "scheduler.pt");
  expect({"error scheduler-missing scheduler.pt"});
}

TEST_F(CheckFramework, DoesNotNeedASchedulerFileForDeepSpeedsOwn) {
  use("checkpoint-3");
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    for (auto& [name, shard] : made.shards()) {
      shard.root.at("ds_config").set("scheduler", Py::dict());
    }
    made.model().root.set("lr_scheduler",
                          Py::dict({{"last_batch_iteration", 3}}));
  });
  add_trainer_files();
  fs::remove(folder() / "scheduler.pt");
  expect({});
}

TEST_F(CheckFramework, ReportsADamagedScheduler) {
  write_trainer();
  truncate_file(folder() / "scheduler.pt", 40);
  expect({"error container-damaged scheduler.pt"});
}

TEST_F(CheckFramework, WarnsOfMissingRandomStates) {
  write_trainer();
  fs::remove(folder() / "rng_state_1.pth");
  expect({"warning rng-missing"});
  EXPECT_THAT(judge().findings[0].message, HasSubstr("rng_state_1.pth"));
}

TEST_F(CheckFramework, ReportsDamagedRandomStates) {
  write_trainer();
  truncate_file(folder() / "rng_state_0.pth", 100);
  write_bytes(folder() / "rng_state_1.pth", "");
  expect({"error rng-damaged rng_state_0.pth",
          "error rng-damaged rng_state_1.pth"});
}

TEST_F(CheckFramework, KnowsTheNameThatOneProcessWrites) {
  write_trainer(Writer::Stage3, 1);
  fs::rename(folder() / "rng_state_0.pth", folder() / "rng_state.pth");
  expect({});
}

TEST_F(CheckFramework, TheTrainerNeedsATagOfItsOwnNaming) {
  use("checkpoint-3");
  write(Writer::Stage3, {}, 2, [](ZeroRun& run) { run.tag = "mine"; });
  add_trainer_files();
  expect({"error latest-dangling latest"});
}

TEST_F(CheckFramework, TheTrainerNeedsLatestEvenWithATag) {
  write_trainer();
  fs::remove(folder() / "latest");
  expect({"error latest-missing latest"});
  VerifyOptions options;
  options.open.tag = "global_step3";
  EXPECT_TRUE(judge(options).can_merge);
}

TEST_F(CheckFramework, WarnsOfAResultThatHoldsNothing) {
  write_trainer();
  std::string empty("\x10\0\0\0\0\0\0\0", 8);
  empty += "{}              ";
  write_bytes(folder() / "adapter_model.safetensors", empty);
  expect({"warning placeholder-weight adapter_model.safetensors"});
  // One that is whole, or unreadable, is nobody's business here.
  write_bytes(folder() / "adapter_model.safetensors", "x");
  expect({});
}

// -- others

TEST_F(CheckFramework, AnotherFrameworkAsksForOtherFiles) {
  write_trainer();
  fs::remove(folder() / "trainer_state.json");
  fs::remove(folder() / "scheduler.pt");
  VerifyOptions options;
  options.framework = "deepspeed";
  expect({}, options);
  EXPECT_EQ(judge(options).facts.framework, "deepspeed");
  options.framework = "lightning";
  expect({}, options);
  options.framework = "accelerate";
  expect({"warning rng-missing", "warning scheduler-missing scheduler.bin"},
         options);
  use("plain");
  write(Writer::Stage2);
  expect({});
  options.framework = "hf";
  expect({"error scheduler-missing scheduler.pt", "warning rng-missing",
          "error trainer-state-missing trainer_state.json"},
         options);
}

TEST_F(CheckFramework, AccelerateSwallowsDamagedRandomStates) {
  use("state");
  write(Writer::Stage2, {}, 2, [](ZeroRun& run) { run.tag = "pytorch_model"; });
  write_bytes(folder() / "scheduler.bin", small_archive());
  write_bytes(folder() / "random_states_0.pkl", small_archive());
  write_bytes(folder() / "random_states_1.pkl", "x");
  expect({"warning rng-damaged random_states_1.pkl"});
  fs::remove(folder() / "latest");
  expect({"warning rng-damaged random_states_1.pkl",
          "note latest-missing latest"});
}

TEST_F(CheckFramework, LightningNeedsLatest) {
  use("last.ckpt");
  write(Writer::Stage2, {}, 2, [](ZeroRun& run) { run.tag = "checkpoint"; });
  expect({});
  EXPECT_EQ(judge().facts.framework, "lightning");
  fs::remove(folder() / "latest");
  expect({"error latest-missing latest"});
}

TEST_F(CheckFramework, DeepSpeedNeedsLatestUnlessTheTagIsGiven) {
  write(Writer::Stage2);
  fs::remove(folder() / "latest");
  expect({"error latest-missing latest"});
  VerifyOptions options;
  options.open.tag = "global_step3";
  expect({}, options);
}

// -- classes

TEST_F(CheckFramework, ReportsCallsThatUnpicklingWouldMake) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    made.model().root.set("state", Py::call("posix", "system", {"true"}));
  });
  expect({"error pickle-dangerous global_step3/" + made_->model_name()});
  EXPECT_THAT(judge().findings[0].message, HasSubstr("posix.system"));
  VerifyOptions options;
  options.question = Question::Merge;
  EXPECT_THAT(
      places(judge(options)),
      Contains("warning pickle-dangerous global_step3/" + made_->model_name()));
}

TEST_F(CheckFramework, ReportsCallsThatUnpickleMore) {
  for (const auto& called : std::vector<std::pair<const char*, const char*>>{
           {"torch", "load"},
           {"torch.storage", "_load_from_bytes"},
           {"torch.serialization", "load"},
           {"io", "open"},
           {"operator", "call"}}) {
    write(Writer::Stage2, [&](ZeroCheckpoint& made) {
      made.model().root.set("state",
                            Py::call(called.first, called.second, {"x"}));
    });
    EXPECT_THAT(places(judge()), Contains(HasSubstr("error pickle-dangerous")))
        << called.first << " " << called.second;
  }
}

TEST_F(CheckFramework, LooksIntoWhatLiesBesideTheShards) {
  write(Writer::Stage2);
  add_trainer_files();
  write_bytes(folder() / "rng_state_1.pth",
              TorchArchive("archive")
                  .set_root(Py::call("posix", "system", {"true"}))
                  .bytes());
  EXPECT_THAT(places(judge()),
              Contains("error pickle-dangerous rng_state_1.pth"));
  write_bytes(folder() / "scheduler.pt",
              TorchArchive("archive")
                  .set_root(Py::object("mylib.schedules", "Cosine", {{"a", 1}}))
                  .bytes());
  EXPECT_THAT(places(judge()), Contains("warning class-needed"));
}

TEST_F(CheckFramework, TakesSideFilesFromTheOtherHalf) {
  write(Writer::Stage2);
  add_trainer_files();
  const fs::path other = temp_ / "other";
  fs::create_directories(other / tag_);
  fs::rename(optim(1), other / tag_ / optim(1).filename());
  fs::rename(folder() / "rng_state_1.pth", other / "rng_state_1.pth");
  VerifyOptions options;
  options.open.also = {other.string()};
  const Verification judged = judge(options);
  EXPECT_TRUE(judged.can_resume);
  EXPECT_THAT(places(judged), testing::Not(Contains(HasSubstr("rng-missing"))));
}

TEST_F(CheckFramework, WarnsOfForeignClasses) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    made.model().root.set("state",
                          Py::object("omegaconf.base", "Metadata", {{"a", 1}}));
  });
  expect({"warning class-needed"});
  EXPECT_THAT(judge().findings[0].message,
              HasSubstr("omegaconf.base.Metadata"));
}

TEST_F(CheckFramework, NamesWhatNewerTorchRefuses) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    made.model().root.set("state",
                          Py::call("numpy._core.multiarray", "scalar", {1}));
  });
  expect({"note pickle-opaque"});
  EXPECT_THAT(judge().findings[0].message, HasSubstr("numpy 2"));
}

// -- the run that wants to resume

TEST_F(CheckFramework, RefusesAnotherWorldSize) {
  write(Writer::Stage3);
  VerifyOptions options;
  options.world_size = 2;
  expect({}, options);
  options.world_size = 4;
  expect({"error world-size-conflict"}, options);
}

TEST_F(CheckFramework, RefusesAnotherStageButForOneAndTwo) {
  VerifyOptions options;
  write(Writer::Stage2);
  options.stage = 1;
  expect({}, options);
  options.stage = 3;
  expect({"error stage-conflict"}, options);
  use("other");
  write(Writer::Stage3);
  options.stage = 2;
  expect({"error stage-conflict"}, options);
}

TEST_F(CheckFramework, RefusesAnotherPrecision) {
  write(Writer::Stage2);
  VerifyOptions options;
  options.dtype = DType::BF16;
  expect({}, options);
  options.dtype = DType::F16;
  expect({"error prefix-mixed"}, options);
  use("other");
  write(Writer::Stage3, {}, 2,
        [](ZeroRun& run) { run.model_dtype = DType::F32; });
  expect({}, options);
  options.dtype = DType::BF16;
  expect({"error prefix-mixed"}, options);
}

TEST_F(CheckFramework, NamesMustFitThePrecisionOfTheRunThatSaved) {
  const auto asks_for = [](bool bf16) {
    return [bf16](ZeroCheckpoint& made) {
      for (auto& [name, shard] : made.shards()) {
        shard.root.at("ds_config").set("bf16", Py::dict({{"enabled", bf16}}));
      }
    };
  };
  write(Writer::Stage2, asks_for(false));
  expect({"error prefix-mixed"});
  EXPECT_THAT(judge().findings[0].message, HasSubstr("ds_config"));
  const auto single = [](ZeroRun& run) { run.model_dtype = DType::F32; };
  use("other");
  write(Writer::Stage3, asks_for(true), 2, single);
  expect({"error prefix-mixed"});
  // Before 0.6.2 names had no prefix.
  use("old");
  write(Writer::Stage3, asks_for(true), 2, [&](ZeroRun& run) {
    single(run);
    run.version = "0.6.1";
  });
  EXPECT_THAT(places(judge()), Not(Contains("error prefix-mixed")));
}

}  // namespace
}  // namespace zckpt::test
