// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/severity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "verify/resumable.h"
#include "verify/severity_cases.h"

// For every code of verify an input that deserves it, asked both questions.

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

constexpr auto kError = Severity::Error;

class EveryCode : public Resumable, public testing::WithParamInterface<Case> {};

const Finding* find(const std::vector<Finding>& findings,
                    const std::string& code) {
  for (const Finding& finding : findings) {
    if (finding.code == code) return &finding;
  }
  return nullptr;
}

TEST_P(EveryCode, SaysWhatItMeansForEachQuestion) {
  const Case& tested = GetParam();
  uint32_t ranks = 2;
  if (tested.run) {
    ZeroRun probe = sample_run(tested.writer, ranks);
    tested.run(probe);
    ranks = probe.ranks;
  }
  use(tested.trainer ? "checkpoint-3" : "save");
  write(
      tested.writer, tested.in_memory, ranks,
      tested.run ? tested.run : [](ZeroRun&) {});
  if (tested.trainer) add_trainer_files();
  VerifyOptions options;
  if (tested.on_disk) tested.on_disk(folder(), tag(), options);
  for (const Question question : {Question::Resume, Question::Merge}) {
    SCOPED_TRACE(question == Question::Resume ? "resume" : "merge");
    options.question = question;
    const Verification judged = judge(options);
    const Finding* found = find(judged.findings, tested.code);
    ASSERT_NE(found, nullptr) << describe(judged.findings);
    EXPECT_EQ(found->severity,
              question == Question::Resume ? tested.resume : tested.merge);
    EXPECT_TRUE(found->file.ends_with(tested.file)) << found->file;
    EXPECT_EQ(found->rank.value_or(99),
              tested.rank.value_or(found->rank.value_or(99)));
    EXPECT_GT(found->message.size(), 20U);
    if (found->severity == kError) {
      EXPECT_FALSE(question == Question::Resume ? judged.can_resume
                                                : judged.can_merge);
    }
  }
}

std::string name_of(const testing::TestParamInfo<Case>& tested) {
  std::string name = tested.param.code;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Verify, EveryCode, testing::ValuesIn(cases()),
                         name_of);

TEST(EveryCodeOfTheTable, IsReachedHereOrNamed) {
  std::set<std::string> reached;
  for (const Case& tested : cases()) reached.insert(tested.code);
  // They need payloads, run folders or weights (full_test.cc, verify_test.cc).
  const std::set<std::string> elsewhere = {"crc-mismatch",
                                           "crc-unchecked",
                                           "weights-disagree",
                                           "sidecar-disagree",
                                           "nan",
                                           "inf",
                                           "tag-ambiguous",
                                           "tmp-checkpoint",
                                           "weights-only-model"};
  for (const CodeRow& row : code_table()) {
    const std::string code(row.code);
    EXPECT_NE(reached.contains(code), elsewhere.contains(code)) << code;
  }
}

}  // namespace
}  // namespace zckpt::test
