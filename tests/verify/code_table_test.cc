// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "support/checkpoint_tools.h"
#include "verify/severity.h"

// The table of codes, and the page that explains them.

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

TEST(CodeTable, ListsEveryCodeOnce) {
  std::set<std::string_view> codes;
  for (const CodeRow& row : code_table()) {
    EXPECT_TRUE(codes.insert(row.code).second) << row.code;
    EXPECT_EQ(find_code(row.code), &row);
    EXPECT_FALSE(row.area.empty());
  }
  EXPECT_EQ(find_code("no-such-code"), nullptr);
}

TEST(CodeTable, IsWhatTheDocumentationLists) {
  const std::string page =
      read_bytes(fs::path(ZCKPT_FIXTURES) / "../../docs/verify.md");
  std::set<std::string> documented;
  const std::regex row(R"(\n\| `([a-z0-9-]+)` \|)");
  for (std::sregex_iterator it(page.begin(), page.end(), row), end; it != end;
       ++it) {
    EXPECT_TRUE(documented.insert((*it)[1].str()).second)
        << (*it)[1] << " is explained twice";
  }
  std::set<std::string> listed;
  for (const CodeRow& entry : code_table()) {
    listed.insert(std::string(entry.code));
  }
  EXPECT_EQ(documented, listed);
}

TEST(Answer, ReplacesSeveritiesThatDependOnTheQuestion) {
  const std::vector<Finding> found = {
      {.code = "moment-missing"},
      {.code = "key-missing", .severity = Severity::Warning},
      {.code = "unheard-of"}};
  const auto merge = answer(found, Question::Merge);
  EXPECT_EQ(merge[0].severity, Severity::Note);
  EXPECT_EQ(merge[1].severity, Severity::Warning);
  EXPECT_EQ(merge[2].severity, Severity::Error);
  const auto resume = answer(found, Question::Resume);
  EXPECT_EQ(resume[0].severity, Severity::Error);
  EXPECT_EQ(resume[1].severity, Severity::Warning);
}

}  // namespace
}  // namespace zckpt::test
