// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "support/caught.h"
#include "verify/check_test.h"

// Do the partitions add up? Whatever does not is blamed on the group, and on
// the rank where one is to blame.

namespace zckpt::test {
namespace {

class CheckSums : public CheckTest {
 protected:
  // A vector of floats in the shard of `rank`.
  static Py vector(ZeroCheckpoint& made, uint32_t rank,
                   const std::vector<float>& values) {
    return made.optim(rank).archive.tensor(
        DType::F32, {static_cast<int64_t>(values.size())}, values);
  }
  static Py masters(ZeroCheckpoint& made, uint32_t rank) {
    return made.inner(rank).at("single_partition_of_fp32_groups");
  }
  // One group of 10 elements: on 2 ranks 6 and 4, on 3 ranks 4, 4 and 2.
  static void one_group(ZeroRun& run) {
    run.groups = {{{"w", {10}}}};
    run.aliases.clear();
    run.states.clear();
  }
  static std::vector<float> part(uint64_t first, uint64_t count,
                                 float beyond = 0) {
    return slice(values_of("w", 10), first, count, beyond);
  }
  // Every rank's masters as given.
  void write_parts(const std::vector<std::vector<float>>& parts,
                   const std::string& version) {
    write(
        Writer::Stage2, static_cast<uint32_t>(parts.size()),
        [&](ZeroCheckpoint& made) {
          for (uint32_t r = 0; r < parts.size(); ++r) {
            made.inner(r).set("single_partition_of_fp32_groups",
                              Py::list({vector(made, r, parts[r])}));
          }
        },
        [&](ZeroRun& run) {
          one_group(run);
          run.version = version;
        });
  }
};

TEST_F(CheckSums, ReportsAShortPartition) {
  write_parts({part(0, 6), part(6, 3)}, "0.19.8");
  expect({"error partition-short"});
  EXPECT_NE(first().message.find("expected 10 elements in group 0 over all "
                                 "ranks, found 9"),
            std::string::npos)
      << first().message;
}

TEST_F(CheckSums, ReportsASurplusThatNothingAllows) {
  write_parts({part(0, 6), part(6, 6)}, "0.19.8");
  expect({"error partition-surplus"});
  EXPECT_NE(first().message.find("at most 0 of padding, found 12"),
            std::string::npos);
}

TEST_F(CheckSums, AllowsPaddingOfZerosBefore0164) {
  write_parts({part(0, 6), part(6, 6)}, "0.16.3+unknown");
  expect({});
  ASSERT_TRUE(checked_.checkpoint);
  EXPECT_EQ(read_tensor(*checked_.checkpoint,
                        *checked_.checkpoint->find("w", Role::Master)),
            encode(DType::F32, values_of("w", 10)));
}

TEST_F(CheckSums, ReportsMorePaddingThanAnAlignmentUnit) {
  write_parts({part(0, 6), part(6, 8)}, "0.16.3");
  expect({"error partition-surplus"});
}

TEST_F(CheckSums, ReportsPaddingThatIsNotZero) {
  write_parts({part(0, 6), part(6, 6, 5.0F)}, "0.15.0");
  checked_ = check_folder(folder_ / "run");
  ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
  EXPECT_EQ(first().code, "padding-nonzero");
  EXPECT_EQ(first().severity, Severity::Error);
  EXPECT_EQ(first().file, optim_file(1));
  EXPECT_EQ(first().rank, 1);
  // The offset is that of the first element of the padding.
  const std::string bytes = read_bytes(optim(1));
  float value = 0;
  ASSERT_TRUE(first().offset);
  std::memcpy(&value, bytes.data() + *first().offset, sizeof(value));
  EXPECT_EQ(value, 5.0F);
}

TEST_F(CheckSums, ReportsACutAtTheWrongPlace) {
  write_parts({part(0, 5), part(5, 5)}, "0.19.8");
  expect({"error group-length-mismatch " + optim_file(0) + " rank 0"});
  EXPECT_NE(first().message.find("has 5 elements, expected 6"),
            std::string::npos);
}

TEST_F(CheckSums, AllowsTheNarrowAlignmentBefore052) {
  write_parts({part(0, 5), part(5, 5)}, "0.5.1");
  expect({});
  write_parts({part(0, 6), part(6, 4)}, "0.5.2");
  expect({});
}

TEST_F(CheckSums, ReportsAnotherNumberOfGroups) {
  write(Writer::Stage2, 2, [](ZeroCheckpoint& made) {
    masters(made, 1).append(vector(made, 1, {1, 2}));
  });
  expect({"error group-length-mismatch " + optim_file(1) + " rank 1"});
  EXPECT_NE(first().message.find("expected 2 groups as in param_shapes, found "
                                 "3"),
            std::string::npos);
}

TEST_F(CheckSums, ReportsOtherAlignmentPaddings) {
  write(
      Writer::Stage2, 2,
      [](ZeroCheckpoint& made) {
        made.inner(1).set("param_alignment_paddings",
                          Py::list({Py::list({6, 0}), Py::list({7, 3, 1})}));
      },
      [](ZeroRun& run) { run.parameter_alignment = true; });
  expect({"error group-length-mismatch " + optim_file(1) + " rank 1"});
}

TEST_F(CheckSums, TrimsBf16OptimizerByItsPaddings) {
  write(Writer::Bf16Optimizer, 3, [](ZeroCheckpoint& made) {
    made.inner(2).set("group_paddings", Py::list({0, 9}));
  });
  checked_ = check_folder(folder_ / "run");
  ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
  EXPECT_EQ(first().code, "partition-short");
}

// -- stage 3

TEST_F(CheckSums, ReportsShortAndLongSubGroups) {
  for (const bool longer : {false, true}) {
    write(Writer::Stage3, 2, [&](ZeroCheckpoint& made) {
      for (uint32_t r = 0; r < 2; ++r) {
        made.inner(r).at("fp32_flat_groups").append(vector(made, r, {1}));
        Py list = Py::list();
        std::vector<float> values(longer ? 49 : 47);
        list.append(vector(made, r, values));
        list.append(vector(made, r, std::vector<float>(8)));
        made.inner(r).set("fp32_flat_groups", list);
      }
    });
    // 33 + 15 elements of the first group on each rank.
    expect({longer ? "error partition-surplus" : "error partition-short"});
    EXPECT_NE(first().message.find("expected 48 elements in sub-group 0"),
              std::string::npos)
        << first().message;
  }
}

TEST_F(CheckSums, ComparesTheWholeWhereSubGroupsDoNotMatch) {
  write(Writer::Stage3, 2, [&](ZeroCheckpoint& made) {
    for (uint32_t r = 0; r < 2; ++r) {
      made.inner(r).set("fp32_flat_groups",
                        Py::list({vector(made, r, std::vector<float>(50))}));
      made.inner(r).set("optimizer_state_dict", Py::dict());
    }
  });
  expect({"error partition-short"});
  EXPECT_NE(first().message.find("expected 56 elements in all sub-groups"),
            std::string::npos)
      << first().message;
}

TEST_F(CheckSums, ReportsMissingSwapFiles) {
  write(Writer::Stage3, 2, {}, [](ZeroRun& run) { run.swapped = {0}; });
  const fs::path swap = tag() / "offloaded_tensors/rank01/0_0.tensor.swp";
  const std::string bytes = read_bytes(swap);
  fs::remove(swap);
  checked_ = check_folder(folder_ / "run");
  ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
  EXPECT_EQ(first().code, "swap-file-missing");
  EXPECT_EQ(first().severity, Severity::Error);
  EXPECT_EQ(first().rank, 1);
  EXPECT_NE(first().message.find("0_0.tensor.swp"), std::string::npos);

  write_bytes(swap, bytes.substr(0, 48 * 4 - 1));
  checked_ = check_folder(folder_ / "run");
  ASSERT_EQ(checked_.findings.size(), 1) << describe(checked_.findings);
  EXPECT_EQ(first().code, "file-truncated");
  EXPECT_EQ(first().rank, 1);
  EXPECT_EQ(first().file,
            "global_step3/offloaded_tensors/rank01/0_0.tensor.swp");
}

TEST_F(CheckSums, CallsAnEmptySubGroupWithoutAnIdShort) {
  write(Writer::Stage3, 2, [&](ZeroCheckpoint& made) {
    for (uint32_t r = 0; r < 2; ++r) {
      made.inner(r).set("fp32_flat_groups",
                        Py::list({vector(made, r, {}),
                                  vector(made, r, {1, 2, 3, 4, 5, 6, 7, 8})}));
    }
  });
  expect({"error partition-short"});
}

// -- what sizes a hostile file may claim

TEST_F(CheckSums, RefusesShapesThatWrap) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    SCOPED_TRACE(writer == Writer::Stage2 ? 2 : 3);
    write(writer, 2, [&](ZeroCheckpoint& made) {
      const int64_t half = int64_t{1} << 62;
      Py shapes = Py::ordered_dict();
      for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
        shapes.set(name, Py::size({half}));
      }
      for (uint32_t r = 0; r < (writer == Writer::Stage3 ? 2 : 1); ++r) {
        made.model(r).root.set("param_shapes",
                               Py::list({shapes, Py::ordered_dict()}));
      }
    });
    checked_ = check_folder(folder_ / "run");
    EXPECT_FALSE(checked_.checkpoint);
    EXPECT_FALSE(checked_.findings.empty());
    EXPECT_TRUE(caught([&] { Checkpoint::open(folder_ / "run"); }));
  }
}

TEST_F(CheckSums, RefusesAWorldOfMillions) {
  write(Writer::Stage3, 2, [&](ZeroCheckpoint& made) {
    for (uint32_t r = 0; r < 2; ++r) {
      made.inner(r).set("partition_count", 4'000'000'000);
      made.model(r).root.set("dp_world_size", 4'000'000'000);
    }
  });
  checked_ = check_folder(folder_ / "run");
  EXPECT_FALSE(checked_.checkpoint);
  EXPECT_LT(checked_.findings.size(), 5000);
  expect_error(ErrorCode::Corrupt, {}, "expected optimizer shards of",
               [&] { Checkpoint::open(folder_ / "run"); });
}

}  // namespace
}  // namespace zckpt::test
