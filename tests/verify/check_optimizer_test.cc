// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verify/resumable.h"

// What DeepSpeed's load_checkpoint needs of the optimizer, the scheduler and
// the module: one kind of lack per test, and exactly what it deserves.

namespace zckpt::test {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

class CheckOptimizer : public Resumable {
 protected:
  std::string optim_file(uint32_t rank) const {
    return "global_step3/" + made_->optim_name(rank);
  }
  std::string model_file(uint32_t rank = 0) const {
    return "global_step3/" + made_->model_name(rank);
  }
  void expect(const std::vector<std::string>& expected) {
    const Verification found = judge();
    EXPECT_THAT(places(found), UnorderedElementsAreArray(expected))
        << describe(found.findings);
    const bool error =
        std::any_of(expected.begin(), expected.end(),
                    [](const auto& line) { return line.starts_with("error"); });
    EXPECT_EQ(found.can_resume, !error);
    EXPECT_TRUE(found.can_merge);
    EXPECT_EQ(found.verdict, error ? Verdict::WeightsOnly : Verdict::Resumable);
  }
  // torch's own state of a rank.
  static Py base_of(ZeroCheckpoint& made, uint32_t rank) {
    Py inner = made.inner(rank);
    return made.model_name().starts_with("zero")
               ? inner.at("optimizer_state_dict")
               : inner.at("base_optimizer_state");
  }
};

// Deepspeed's classes are named in a note.
const std::string kClasses = "note class-needed";

TEST_F(CheckOptimizer, AcceptsWhatIsWhole) {
  for (const Writer writer : {Writer::Stage1, Writer::Stage2, Writer::Stage3}) {
    use(std::to_string(static_cast<int>(writer)));
    write(writer, {}, 3);
    expect({kClasses});
  }
  use("bf16");
  write(Writer::Bf16Optimizer);
  expect({});
  use("elastic");
  write(Writer::Stage2, {}, 3, [](ZeroRun& run) { run.elastic = true; });
  expect({kClasses});
}

TEST_F(CheckOptimizer, AcceptsOtherOptimizers) {
  write(Writer::Stage3, {}, 2,
        [](ZeroRun& run) { run.states = {"exp_avg"}; });  // Lion
  expect({kClasses});
  use("sgd");
  write(Writer::Stage2, {}, 2, [](ZeroRun& run) { run.states.clear(); });
  expect({kClasses, "note optimizer-state-absent"});
}

TEST_F(CheckOptimizer, ReportsAMomentThatOneRankLacks) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    use(std::to_string(static_cast<int>(writer)));
    write(writer, [](ZeroCheckpoint& made) {
      for (int64_t group : {0, 1}) {
        Py state = base_of(made, 1).at("state");
        Py entry = Py::dict({{"step", 3}});
        if (group == 0) state.set(group, entry);
      }
    });
    expect({kClasses, "error moment-missing " + optim_file(1) + " rank 1",
            "error moment-missing " + optim_file(1) + " rank 1"});
  }
}

TEST_F(CheckOptimizer, ReportsARankWithoutStates) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    base_of(made, 1).set("state", Py::dict());
  });
  const Verification found = judge();
  EXPECT_EQ(found.verdict, Verdict::WeightsOnly);
  EXPECT_THAT(found.findings.front().message, HasSubstr("expected exp_avg"));
  EXPECT_EQ(found.findings.front().rank, 1U);
}

TEST_F(CheckOptimizer, ReportsHalfOfAdam) {
  write(Writer::Stage3, {}, 2,
        [](ZeroRun& run) { run.states = {"exp_avg_sq"}; });
  expect({kClasses, "error moment-missing"});
}

TEST_F(CheckOptimizer, NotesStatesThatAreEmptyEverywhere) {
  write(Writer::Stage3, [](ZeroCheckpoint& made) {
    for (uint32_t rank : {0U, 1U}) {
      base_of(made, rank).set("state", Py::dict());
      made.model(rank).root.set("skipped_steps", 3);
    }
  });
  expect({kClasses, "note optimizer-state-absent"});
}

TEST_F(CheckOptimizer, ReportsStatesThatAreEmptyThoughStepsWereTaken) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    for (uint32_t rank : {0U, 1U}) {
      base_of(made, rank).set("state", Py::dict());
    }
  });
  expect({kClasses, "error optimizer-state-absent"});
}

TEST_F(CheckOptimizer, ReportsARankSavedOverAnother) {
  write(
      Writer::Stage3,
      [](ZeroCheckpoint& made) {
        const auto saved = made.optim(0);
        made.optim(1).root = saved.root;
        made.optim(1).archive.records() = TorchArchive(saved.archive).records();
      },
      2,
      [](ZeroRun& run) {
        run.groups[0][0].shape = {110, 60};
      });
  EXPECT_THAT(places(judge()), testing::Contains("error file-duplicate " +
                                                 optim_file(1) + " rank 1"));
}

TEST_F(CheckOptimizer, ReportsAnotherCutIntoSubGroups) {
  write(Writer::Stage3, [](ZeroCheckpoint& made) {
    for (uint32_t rank : {0U, 1U}) {
      Py shapes = made.model(rank).root.at("param_shapes");
      Py more = Py::ordered_dict();
      Py last = Py::ordered_dict();
      more.set("gain", Py::size({1})).set("up.bias", Py::size({5}));
      last.set("norm.weight", Py::size({7}));
      Py first = Py::ordered_dict();
      first.set("embed.weight", Py::size({11, 6}));
      first.set("up.weight", Py::size({5, 6}));
      made.model(rank).root.set("param_shapes", Py::list({first, more, last}));
    }
  });
  expect({kClasses, "error group-length-mismatch " + optim_file(0) + " rank 0",
          "error group-length-mismatch " + optim_file(1) + " rank 1"});
}

TEST_F(CheckOptimizer, ReportsAMomentOfAnotherLength) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    use(std::to_string(static_cast<int>(writer)));
    write(writer, [](ZeroCheckpoint& made) {
      auto& archive = made.optim(1).archive;
      Py entry = Py::dict(
          {{"step", 3},
           {"exp_avg", archive.tensor(DType::F32, {3}, std::string(12, 0))},
           {"exp_avg_sq",
            archive.tensor(DType::F32, {3}, std::string(12, 0))}});
      base_of(made, 1).at("state").set(0, entry);
    });
    expect({kClasses, "error moment-length " + optim_file(1) + " rank 1",
            "error moment-length " + optim_file(1) + " rank 1"});
  }
}

TEST_F(CheckOptimizer, ReportsKeysThatLoadingReads) {
  for (const char* key : {"loss_scaler", "dynamic_loss_scale", "overflow"}) {
    SCOPED_TRACE(key);
    use(std::string("stage 3 ") + key);
    write(Writer::Stage3,
          [&](ZeroCheckpoint& made) { made.inner(1).erase(key); });
    expect({kClasses, "error key-missing " + optim_file(1) + " rank 1"});
    use(std::string("stage 2 ") + key);
    write(Writer::Stage2,
          [&](ZeroCheckpoint& made) { made.inner(1).set(key, 1).erase(key); });
    expect({kClasses});  // read only if they are there
  }
  for (const char* key :
       {"dp_world_size", "mp_world_size", "global_steps", "skipped_steps"}) {
    SCOPED_TRACE(key);
    write(Writer::Stage2,
          [&](ZeroCheckpoint& made) { made.model().root.erase(key); });
    expect({kClasses, "error key-missing " + model_file()});
  }
}

TEST_F(CheckOptimizer, ReportsAnElasticStateWithoutItsStep) {
  write(
      Writer::Stage2,
      [](ZeroCheckpoint& made) {
        made.inner(0).erase("base_optimizer_state_step");
      },
      2, [](ZeroRun& run) { run.elastic = true; });
  expect({kClasses, "error key-missing " + optim_file(0) + " rank 0"});
}

TEST_F(CheckOptimizer, ReportsTorchStateWithoutItsParts) {
  write(Writer::Stage3, [](ZeroCheckpoint& made) {
    base_of(made, 0).erase("param_groups");
    base_of(made, 1).erase("param_groups");
  });
  expect({kClasses, "error key-missing " + optim_file(0) + " rank 0",
          "error key-missing " + optim_file(1) + " rank 1"});
}

TEST_F(CheckOptimizer, ReportsAnotherNumberOfParameterGroups) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    base_of(made, 1).set("param_groups",
                         Py::list({Py::dict({{"params", Py::list({0})}})}));
  });
  expect(
      {kClasses, "error group-length-mismatch " + optim_file(1) + " rank 1"});
}

TEST_F(CheckOptimizer, ReportsASchedulerWithoutState) {
  const auto with_scheduler = [](bool absent) {
    return [absent](ZeroCheckpoint& made) {
      made.model().root.at("ds_config").set("scheduler", Py::dict());
      if (absent) made.model().root.erase("lr_scheduler");
    };
  };
  write(Writer::Stage2, with_scheduler(true));
  expect({kClasses, "warning config-mismatch " + model_file(),
          "error key-missing " + model_file()});
}

TEST_F(CheckOptimizer, ReportsNamesThatTheModuleLacks) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    for (const std::string name : {"up.bias", "adapter.bias"}) {
      SCOPED_TRACE(name);
      write(writer, [&](ZeroCheckpoint& made) {
        for (auto& [file, shard] : made.shards()) {
          if (file.find("model_states") != std::string::npos) {
            shard.root.at("module").erase(name);
          }
        }
      });
      std::vector<std::string> expected{
          kClasses, "error key-missing " + model_file() +
                        (writer == Writer::Stage3 ? " rank 0" : "") +
                        " tensor " + name};
      // Stage 2 holds a copy of every weight there.
      if (writer == Writer::Stage2 && name == "up.bias") {
        expected.push_back("warning shapes-mismatch tensor up.bias");
      }
      expect(expected);
    }
    std::filesystem::remove_all(tag());
  }
}

TEST_F(CheckOptimizer, ReportsStage0WithoutItsOptimizer) {
  write(Writer::Stage0, [](ZeroCheckpoint& made) {
    made.model().root.set("optimizer", nullptr);
  });
  expect({"error optimizer-state-absent"});
}

TEST_F(CheckOptimizer, ReportsWhatSwappingBreaks) {
  const auto swapped = [](ZeroRun& run) { run.swapped = {0}; };
  write(Writer::Stage3, {}, 2, swapped);
  expect({kClasses, "error swap-resume-broken"});
  std::filesystem::remove(tag() / "offloaded_tensors/rank01/0_0.tensor.swp");
  const Verification found = judge();
  EXPECT_THAT(places(found), testing::Contains("error swap-file-missing " +
                                               optim_file(1) + " rank 1"));
  EXPECT_EQ(found.verdict, Verdict::Damaged);
}

}  // namespace
}  // namespace zckpt::test
