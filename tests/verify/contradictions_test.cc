// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reader/torch_file.h"
#include "verify/check_test.h"

// Files whose parts say different things of one weight: each was once merged
// in silence.

namespace zckpt::test {
namespace {

class Contradictions : public CheckTest {
 protected:
  // The root of the model file that names come from.
  Py root(ZeroCheckpoint& made) { return made.model().root; }
  void expect_among(const std::string& line) {
    checked_ = check_folder(folder_ / "run");
    EXPECT_THAT(places(checked_.findings), testing::Contains(line))
        << describe(checked_.findings);
  }
};

TEST_F(Contradictions, AnUnlistedTensorDoesNotHideThatFrozenOnesAreLeftOut) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    write(
        writer, 2,
        [&](ZeroCheckpoint& made) {
          root(made).at("module").set(
              "layer._extra_state",
              made.model().archive.tensor(DType::F32, {1}, std::string(4, 1)));
        },
        [](ZeroRun& run) { run.exclude_frozen = true; });
    expect_among("error frozen-missing");
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(Contradictions, APairOverDataOfItsOwnIsIgnored) {
  write(Writer::Stage3, 2, [&](ZeroCheckpoint& made) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Py shared = made.model(rank).root.at("shared_params");
      shared.set("adapter.bias", "up.bias");
      shared.set("mask", "up.bias");
    }
  });
  expect({"warning alias-implausible tensor adapter.bias",
          "warning alias-implausible tensor mask"});
}

TEST_F(Contradictions, AnAliasOfAnotherShapeIsIgnored) {
  write(Writer::Stage2, 2, [&](ZeroCheckpoint& made) {
    root(made).at("shared_params").set("head.weight", "up.weight");
  });
  expect({"warning alias-implausible tensor head.weight"});
}

TEST_F(Contradictions, ABufferWithoutData) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    write(writer, 2,
          [&](ZeroCheckpoint& made) { root(made).at("module").erase("mask"); });
    expect_among("error name-unaccounted tensor mask");
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(Contradictions, AMasterWithoutACopy) {
  write(Writer::Stage2, 2, [&](ZeroCheckpoint& made) {
    root(made).at("module").erase("up.bias");
  });
  expect_among("warning shapes-mismatch tensor up.bias");
}

TEST_F(Contradictions, ACopyOfAnotherShape) {
  write(Writer::Stage2, 2, [&](ZeroCheckpoint& made) {
    root(made).at("module").set(
        "up.bias",
        made.model().archive.tensor(DType::BF16, {0}, std::string()));
  });
  expect_among("error shapes-mismatch tensor up.bias");
}

TEST_F(Contradictions, AFrozenWeightOfAnotherShape) {
  write(Writer::Stage2, 2, [&](ZeroCheckpoint& made) {
    root(made).at("frozen_param_shapes").set("adapter.weight", Py::size({25}));
  });
  expect_among("error shapes-mismatch tensor adapter.weight");
}

TEST_F(Contradictions, SettingsOfAnotherRun) {
  write(Writer::Stage3, 3, [&](ZeroCheckpoint& made) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      made.inner(rank).set(
          "loss_scaler",
          Py::object("deepspeed.runtime.fp16.loss_scaler", "LossScaler",
                     {{"cur_scale", rank == 2 ? 2.0 : 1.0}}));
    }
  });
  expect({"error step-mismatch " + optim_file(2) + " rank 2"});
}

TEST_F(Contradictions, MastersThatAreNoNumbers) {
  write(Writer::Stage3, 2, [&](ZeroCheckpoint& made) {
    made.inner(1).at("fp32_flat_groups");
    made.inner(1).set("fp32_flat_groups",
                      Py::list({Py::tensor(DType::I32, {4}, "0")}));
  });
  expect_among("error pickle-invalid " + optim_file(1) + " rank 1");
}

// The legacy container has no CRC to tell two shards apart by.
TEST_F(Contradictions, AShardCopiedOverAnother) {
  write(Writer::Stage3, 2, {}, [](ZeroRun& run) {
    run.legacy_container = true;
    run.groups[0].push_back({"wide.weight", {40, 10}});
  });
  fs::copy_file(optim(0), optim(1), fs::copy_options::overwrite_existing);
  expect({"error file-duplicate " + optim_file(1) + " rank 1"});
}

TEST_F(Contradictions, ASubGroupThatEndsInsideAParameter) {
  write(Writer::Stage3, 2, [&](ZeroCheckpoint& made) {
    // One list, its second group first: the shards hold 48 and 8 elements.
    const Py shapes = Py::ordered_dict({{"gain", Py::size({1})},
                                        {"up.bias", Py::size({5})},
                                        {"norm.weight", Py::size({7})},
                                        {"embed.weight", Py::size({11, 6})},
                                        {"up.weight", Py::size({5, 6})}});
    for (uint32_t rank = 0; rank < 2; ++rank) {
      made.model(rank).root.set("param_shapes", Py::list({shapes}));
    }
  });
  expect_among("error group-length-mismatch tensor up.weight");
}

TEST_F(Contradictions, ModelFilesWhoseMastersAreGone) {
  write(Writer::Stage2, 2, [](ZeroCheckpoint& made) {
    made.model()
        .root.at("ds_config")
        .set("zero_optimization", Py::dict({{"stage", 2}}));
  });
  fs::remove(optim(0));
  fs::remove(optim(1));
  expect_among("warning optim-shard-missing");
  EXPECT_TRUE(checked_.checkpoint.has_value());
}

// Masters that no longer round to the copies have no names; their CRC says
// why.
TEST_F(Contradictions, DamagedMastersOfStage0) {
  write(Writer::Stage0, 1, {}, [](ZeroRun& run) { run.unfused = true; });
  std::vector<StorageRecord> records;
  {
    const FileSource source(model().string());
    records = read_storage_records(source);
  }
  size_t found = 0;
  for (const StorageRecord& record : records) {
    if (record.size_bytes == 0) continue;
    flip_byte(model(), record.offset + record.size_bytes - 1);
    checked_ = check_folder(folder_ / "run");
    for (const Finding& finding : checked_.findings) {
      if (finding.code != "crc-mismatch") continue;
      EXPECT_EQ(finding.offset, record.offset);
      ++found;
    }
    flip_byte(model(), record.offset + record.size_bytes - 1);
  }
  EXPECT_EQ(found, 5U);  // as many as there are masters
}

TEST_F(Contradictions, TwoSwapFilesForOneRank) {
  write(Writer::Stage3, 2, {}, [](ZeroRun& run) { run.swapped = {0}; });
  fs::create_directories(folder_ / "other");
  fs::copy(tag(), folder_ / "other/global_step3", fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(
           folder_ / "other/global_step3/offloaded_tensors")) {
    if (entry.is_regular_file()) {
      write_bytes(entry.path(), std::string(entry.file_size(), '\0'));
      break;
    }
  }
  checked_ = check_folder(folder_ / "run", {.also = {folder_ / "other"}});
  ASSERT_FALSE(checked_.findings.empty());
  EXPECT_EQ(checked_.findings[0].code, "shard-conflict");
}

}  // namespace
}  // namespace zckpt::test
