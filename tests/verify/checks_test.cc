// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "support/caught.h"
#include "verify/check_test.h"

// Files that are damaged or no checkpoint, and what the names in them lack.

namespace zckpt::test {
namespace {

using Checks = CheckTest;

// A vector of `numel` elements, every byte of them `byte`.
Py filled(TorchArchive& archive, DType dtype, int64_t numel, char byte) {
  const auto size = static_cast<size_t>(numel) * size_of(dtype);
  return archive.tensor(dtype, {numel}, std::string(size, byte));
}

// The archive of a shard as it lies on the disk.
TorchArchive::Built built(ZeroCheckpoint::Shard shard) {
  shard.archive.set_root(shard.root);
  return shard.archive.build();
}

// -- one file

TEST_F(Checks, ReportsAnEmptyFile) {
  write(Writer::Stage2, 2);
  truncate_file(optim(1), 0);
  expect({"error file-empty " + optim_file(1) + " rank 1"});
}

TEST_F(Checks, ReportsATruncatedFile) {
  for (const bool legacy : {false, true}) {
    write(Writer::Stage2, 2, {},
          [&](ZeroRun& run) { run.legacy_container = legacy; });
    truncate_file(optim(1), fs::file_size(optim(1)) - 10);
    checked_ = check_folder(folder_ / "run");
    ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
    EXPECT_EQ(first().code, "file-truncated");
    EXPECT_EQ(first().file, optim_file(1));
    EXPECT_EQ(first().rank, 1);
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(Checks, ReportsAFileThatCannotBeRead) {
  write(Writer::Stage2, 2);
  fs::remove(optim(1));
  fs::create_symlink(folder_ / "gone", optim(1));
  expect({"error file-unreadable " + optim_file(1) + " rank 1"});
  fs::remove(optim(1));
  fs::create_directory(optim(1));
  expect({"error file-unreadable " + optim_file(1) + " rank 1"});
}

TEST_F(Checks, ReportsADamagedContainer) {
  write(Writer::Stage2, 2, [](ZeroCheckpoint& made) {
    made.optim(1).archive.list_twice("data/0");
  });
  checked_ = check_folder(folder_ / "run");
  ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
  EXPECT_EQ(first().code, "container-damaged");
  EXPECT_EQ(first().file, optim_file(1));
}

TEST_F(Checks, ReportsAMissingRecord) {
  write(Writer::Stage2, 2,
        [](ZeroCheckpoint& made) { made.optim(1).archive.drop("data/0"); });
  expect({"error record-missing " + optim_file(1) + " rank 1"});
  EXPECT_NE(first().message.find("storage 0"), std::string::npos);
}

TEST_F(Checks, ReportsARecordThatIsTooShort) {
  write(Writer::Stage2, 2, [](ZeroCheckpoint& made) {
    made.optim(1).archive.record("data/0").bytes.resize(8);
  });
  checked_ = check_folder(folder_ / "run");
  ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
  EXPECT_EQ(first().code, "container-damaged");
  EXPECT_EQ(first().rank, 1);
  EXPECT_EQ(first().offset,
            built(made_->optim(1)).places.at("data/0").payload_offset);
}

TEST_F(Checks, ReportsAMissingRecordOfAFrozenPart) {
  write(Writer::Stage3, 2, [](ZeroCheckpoint& made) {
    Py gone = Py::tensor(DType::BF16, {13}, "99");
    made.model(1).root.at("frozen_param_fragments").set("adapter.weight", gone);
  });
  expect({"error record-missing " + model_file(1) +
          " rank 1 tensor adapter.weight"});
}

TEST_F(Checks, ReportsAPickleThatMakesNoSense) {
  write(Writer::Stage2, 2);
  auto shard = made_->optim(1);
  shard.archive.set_pickle("\x80\x02}q\x01(h\x77u.");
  write_bytes(optim(1), shard.archive.bytes());
  checked_ = check_folder(folder_ / "run");
  ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
  EXPECT_EQ(first().code, "pickle-invalid");
  EXPECT_EQ(first().rank, 1);
  EXPECT_TRUE(first().offset);
}

TEST_F(Checks, ReportsAFileOfAnotherWriter) {
  for (const std::string& bytes :
       {std::string("{\"a\": 1}"), std::string(600, '\x07'),
        std::string("\x80\x04K\x01.", 5)}) {
    write(Writer::Stage2, 2);
    write_bytes(optim(1), bytes);
    expect({"error foreign-writer " + optim_file(1) + " rank 1 @0"});
  }
}

TEST_F(Checks, ReportsAPlaceholderOfNebula) {
  write(Writer::Stage2, 2);
  auto shard = made_->model();
  shard.root = Py("");
  shard.archive.set_root(shard.root);
  write_bytes(model(), shard.archive.bytes());
  checked_ = check_folder(folder_ / "run");
  ASSERT_FALSE(checked_.findings.empty());
  EXPECT_EQ(first().code, "foreign-writer");
  EXPECT_EQ(first().file, model_file());
  EXPECT_FALSE(checked_.checkpoint);
}

TEST_F(Checks, ReportsMissingKeys) {
  const auto lacks = [&](Writer writer, const std::string& key) {
    SCOPED_TRACE(key);
    write(writer, 2, [&](ZeroCheckpoint& made) { made.inner(1).erase(key); });
    checked_ = check_folder(folder_ / "run");
    ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
    EXPECT_EQ(first().code, "key-missing");
    EXPECT_EQ(first().file, optim_file(1));
    fs::remove_all(folder_ / "run");
  };
  lacks(Writer::Stage2, "single_partition_of_fp32_groups");
  lacks(Writer::Stage3, "fp32_flat_groups");
  write(Writer::Stage2, 2, [](ZeroCheckpoint& made) {
    made.optim(1).root.erase("optimizer_state_dict");
  });
  expect({"error key-missing " + optim_file(1) + " rank 1"});
  EXPECT_NE(first().message.find("optimizer_state_dict"), std::string::npos);
  write(Writer::Stage2, 2,
        [](ZeroCheckpoint& made) { made.model().root.erase("module"); });
  expect({"error key-missing " + model_file()});
}

TEST_F(Checks, ReportsEveryDamageInOneRun) {
  write(Writer::Stage3, 5);
  truncate_file(optim(0), 0);
  truncate_file(optim(1), fs::file_size(optim(1)) / 2);
  fs::remove(optim(2));
  write_bytes(optim(3), "[]");
  truncate_file(model(4), 100);
  expect({"error file-empty " + optim_file(0) + " rank 0",
          "error file-truncated " + optim_file(1) + " rank 1 @" +
              std::to_string(fs::file_size(optim(1))),
          "error optim-shard-missing " + optim_file(2) + " rank 2",
          "error foreign-writer " + optim_file(3) + " rank 3 @0",
          "error file-truncated " + model_file(4) + " rank 4 @100"});
}

TEST_F(Checks, WarnsOfADamagedFileThatIsNotNeeded) {
  write(Writer::Stage3, 3, {}, [](ZeroRun& run) { run.frozen.clear(); });
  truncate_file(model(2), 0);
  expect({"warning file-empty " + model_file(2) + " rank 2"});
  ASSERT_TRUE(checked_.checkpoint);
  expect_truth(*checked_.checkpoint, made_->truth());
}

// -- masters and moments of hostile or damaged shards

// An elastic state with more groups than there are masters once wrote past
// the end of a vector.
TEST_F(Checks, IgnoresStatesWithoutMasters) {
  write(
      Writer::Stage2, 2,
      [](ZeroCheckpoint& made) {
        Py states = made.inner(0).at("base_optimizer_state");
        for (int i = 0; i < 100; ++i) {
          states.append(Py::dict(
              {{"exp_avg", made.optim(0).archive.tensor(
                               DType::F32, {1}, std::vector<float>{1})}}));
        }
      },
      [](ZeroRun& run) { run.elastic = true; });
  checked_ = check_folder(folder_ / "run");
  ASSERT_TRUE(checked_.checkpoint) << describe(checked_.findings);
  expect_truth(*checked_.checkpoint, made_->truth());
}

TEST_F(Checks, RefusesMastersOfMixedDTypes) {
  const auto halve = [](ZeroCheckpoint& made, const char* key, int64_t numel,
                        int64_t rest) {
    auto& archive = made.optim(1).archive;
    made.inner(1).set(key,
                      Py::list({filled(archive, DType::BF16, numel, '\1'),
                                filled(archive, DType::BF16, rest, '\1')}));
  };
  write(Writer::Stage3, 2,
        [&](ZeroCheckpoint& made) { halve(made, "fp32_flat_groups", 48, 8); });
  checked_ = check_folder(folder_ / "run");
  EXPECT_FALSE(checked_.checkpoint);
  EXPECT_TRUE(caught([&] { Checkpoint::open(folder_ / "run"); }));
  write(Writer::Stage2, 2, [&](ZeroCheckpoint& made) {
    halve(made, "single_partition_of_fp32_groups", 48, 5);
  });
  checked_ = check_folder(folder_ / "run");
  EXPECT_FALSE(checked_.checkpoint) << describe(checked_.findings);
}

// Weights do not need moments.
TEST_F(Checks, LeavesOutAMomentThatARankLacks) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    write(writer, 2, [&](ZeroCheckpoint& made) {
      Py states = made.inner(1)
                      .at(writer == Writer::Stage3 ? "optimizer_state_dict"
                                                   : "base_optimizer_state")
                      .at("state");
      const Py without = Py::dict({{"step", 3.0}});
      states.set(0, without).set(1, without);
    });
    checked_ = check_folder(folder_ / "run");
    ASSERT_TRUE(checked_.checkpoint) << describe(checked_.findings);
    EXPECT_NE(checked_.checkpoint->find("gain", Role::Master), nullptr);
    EXPECT_EQ(checked_.checkpoint->find("gain", Role::State, "exp_avg"),
              nullptr);
    fs::remove_all(folder_ / "run");
  }
}

// A rank that lists its moments in another order holds them under their names.
TEST_F(Checks, NeverTakesOneMomentForAnother) {
  write(Writer::Stage3, 2, [](ZeroCheckpoint& made) {
    Py states = made.inner(1).at("optimizer_state_dict").at("state");
    Py swapped = Py::dict();
    for (int g = 0; g < 2; ++g) {
      auto& archive = made.optim(1).archive;
      const int64_t numel = g == 0 ? 48 : 8;
      swapped.set(
          g, Py::dict({{"exp_avg_sq", filled(archive, DType::F32, numel, '\1')},
                       {"exp_avg", filled(archive, DType::F32, numel, '\2')}}));
    }
    made.inner(1).set("optimizer_state_dict", Py::dict({{"state", swapped}}));
  });
  checked_ = check_folder(folder_ / "run");
  ASSERT_TRUE(checked_.checkpoint) << describe(checked_.findings);
  const Tensor* moment =
      checked_.checkpoint->find("embed.weight", Role::State, "exp_avg");
  if (moment != nullptr) {
    EXPECT_EQ(read_tensor(*checked_.checkpoint, *moment).back(), '\2');
  }
}

TEST_F(Checks, RefusesWhatIsNoList) {
  const auto refuse = [&](Writer writer, const std::string& key,
                          const Py& value) {
    SCOPED_TRACE(key);
    write(writer, 2,
          [&](ZeroCheckpoint& made) { made.inner(1).set(key, value); });
    expect({"error pickle-invalid " + optim_file(1) + " rank 1"});
    fs::remove_all(folder_ / "run");
  };
  refuse(Writer::Stage2, "single_partition_of_fp32_groups", 7);
  refuse(Writer::Stage2, "single_partition_of_fp32_groups", Py::list({7}));
  refuse(Writer::Stage3, "fp32_flat_groups", Py::dict());
  refuse(Writer::OldStage1, "local_sub_partitions_of_fp32_groups", "x");
  refuse(Writer::Stage2, "param_alignment_paddings",
         Py::list({Py::list({-1}), Py::list()}));
}

TEST_F(Checks, RefusesANumberOfRanksThatSaysTooLittle) {
  write(Writer::Stage3, 4, [](ZeroCheckpoint& made) {
    for (uint32_t r = 0; r < 4; ++r) made.inner(r).set("partition_count", 2);
  });
  expect({"error unsupported-layout"});
  EXPECT_NE(first().message.find("MiCS"), std::string::npos);
}

TEST_F(Checks, NamesLayoutsThatAreNotRead) {
  const auto named = [&](const std::string& part) {
    checked_ = check_folder(folder_ / "run");
    ASSERT_FALSE(checked_.findings.empty());
    EXPECT_EQ(first().code, "unsupported-layout");
    EXPECT_NE(first().message.find(part), std::string::npos) << first().message;
    expect_error(ErrorCode::Unsupported, {}, part,
                 [&] { Checkpoint::open(folder_ / "run"); });
    fs::remove_all(folder_ / "run");
  };
  for (const auto& [file, part] :
       std::vector<std::pair<std::string, std::string>>{
           {"layer_0_expert_1_mp_rank_00_model_states.pt", "MoE"},
           {"expp_rank_0_mp_rank_00_optim_states.pt", "MoE"},
           {"layer_00-model_states.pt", "pipeline"},
           {"mp_rank_00_model_states.pt-0.2", "FastPersist"}}) {
    write(Writer::Stage2, 2);
    write_bytes(tag() / file, "");
    named(part);
  }
  const auto changed = [&](const std::string& key, const Py& value,
                           const std::string& part) {
    write(Writer::Stage2, 2,
          [&](ZeroCheckpoint& made) { made.model().root.set(key, value); });
    named(part);
  };
  changed("num_experts", Py::list({4}), "num_experts");
  changed("mp_world_size", 2, "tensor or model parallelism");
  changed("module", Py(), "module is None");
  write(Writer::Stage3, 2, [](ZeroCheckpoint& made) {
    made.inner(0).set("ds_zero_partition_groups", Py::list());
  });
  named("AutoEP");
}

}  // namespace
}  // namespace zckpt::test
