// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/check_test.h"

// Masters against the copies that the model computes with.

namespace zckpt::test {
namespace {

class CheckCopies : public CheckTest {
 protected:
  CopyCheck compare(bool full) {
    checked_ = check_folder(folder_ / "run");
    EXPECT_TRUE(checked_.checkpoint) << describe(checked_.findings);
    return check_copies(*checked_.checkpoint, full, {});
  }
  // Byte offset in its file of element `i` of a tensor, and the file.
  std::pair<fs::path, uint64_t> place(const std::string& name, Role role,
                                      uint64_t i) {
    const Checkpoint& checkpoint = *checked_.checkpoint;
    std::pair<fs::path, uint64_t> found;
    checkpoint.extents(
        *checkpoint.find(name, role), i, 1, [&](const Extent& extent) {
          found = {
              folder_ / ("run/" + checkpoint.sources()[extent.source].name),
              extent.offset};
        });
    return found;
  }
  void poke(const std::string& name, Role role, uint64_t i, uint32_t bits) {
    const auto [file, offset] = place(name, role, i);
    std::string bytes = read_bytes(file);
    const uint32_t size = role == Role::Master ? 4 : 2;
    std::memcpy(bytes.data() + offset, &bits, size);
    write_bytes(file, bytes);
  }
};

TEST_F(CheckCopies, AgreesWithWhatWasWritten) {
  for (const Writer writer : {Writer::Stage1, Writer::Stage2,
                              Writer::Bf16Optimizer, Writer::Stage0}) {
    write(writer, 3);
    const CopyCheck checked = compare(false);
    EXPECT_EQ(describe(checked.findings), "");
    EXPECT_GE(checked.elements, 66 + 30 + 1 + 5 + 7);
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(CheckCopies, ComparesNothingOfStage3) {
  write(Writer::Stage3, 2);
  EXPECT_EQ(compare(true).elements, 0);
}

TEST_F(CheckCopies, FindsOneElementAndItsPlace) {
  write(Writer::Stage2, 2);
  compare(true);
  const auto [file, offset] = place("up.weight", Role::Master, 7);
  poke("up.weight", Role::Master, 7, 0x3f800000U + 0x00020000U);
  const CopyCheck checked = compare(true);
  ASSERT_EQ(checked.findings.size(), 1);
  const Finding& finding = checked.findings[0];
  EXPECT_EQ(finding.code, "weights-disagree");
  EXPECT_EQ(finding.severity, Severity::Error);
  EXPECT_EQ(finding.tensor, "up.weight");
  EXPECT_EQ(folder_ / ("run/" + finding.file), file);
  EXPECT_EQ(finding.offset, offset);
  EXPECT_NE(finding.message.find("element 7 "), std::string::npos);
}

TEST_F(CheckCopies, FindsOneInEveryTensorThatIsWrong) {
  write(Writer::Stage2, 2);
  compare(true);
  poke("gain", Role::Model, 0, 0x4242U);
  poke("embed.weight", Role::Model, 65, 0x4242U);
  EXPECT_EQ(compare(false).findings.size(), 2);
}

TEST_F(CheckCopies, CountsEveryNanAsOne) {
  write(Writer::Stage2, 2);
  compare(true);
  poke("gain", Role::Master, 0, 0xffc12345U);
  poke("gain", Role::Model, 0, 0x7fc0U);
  EXPECT_EQ(describe(compare(true).findings), "");
}

TEST_F(CheckCopies, FindsSwappedRanksWhereNamesSayNothing) {
  write(Writer::Stage2, 2, {}, [](ZeroRun& run) {
    run.archive_prefix = true;
    run.groups = {{{"w", {8, 8}}, {"v", {64}}}};
    run.aliases.clear();
  });
  swap_files(optim(0), optim(1));
  const CopyCheck checked = compare(false);
  ASSERT_EQ(checked.findings.size(), 2);
  EXPECT_EQ(checked.findings[0].code, "weights-disagree");
}

// A sample of a big tensor: its first and last elements, and both sides of
// every boundary between ranks.
TEST_F(CheckCopies, SamplesEndsAndBoundaries) {
  constexpr uint64_t kNumel = 6000;
  write(Writer::Stage2, 3, {}, [](ZeroRun& run) {
    run.groups = {{{"w", {60, 100}}}};
    run.aliases.clear();
  });
  const CopyCheck sound = compare(false);
  EXPECT_GE(sound.elements, 64);
  EXPECT_LT(sound.elements, 200);
  for (const uint64_t at : {uint64_t{0}, kNumel - 1, uint64_t{1999},
                            uint64_t{2000}, uint64_t{3999}, uint64_t{4000}}) {
    const auto [file, offset] = place("w", Role::Master, at);
    flip_byte(file, offset + 2);
    const CopyCheck checked = compare(false);
    ASSERT_EQ(checked.findings.size(), 1) << at;
    EXPECT_EQ(checked.findings[0].offset, offset);
    flip_byte(file, offset + 2);
  }
  // What a sample may miss, a full comparison finds.
  const auto [file, offset] = place("w", Role::Master, 1234);
  flip_byte(file, offset + 2);
  EXPECT_EQ(compare(false).findings.size(), 0);
  EXPECT_EQ(compare(true).findings.size(), 1);
}

}  // namespace
}  // namespace zckpt::test
