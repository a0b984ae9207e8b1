// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/side_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/caught.h"
#include "support/checkpoint_tools.h"

namespace zckpt::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SideFiles : public testing::Test {
 protected:
  void file(const std::string& folder, const std::string& name,
            const std::string& text = "{}") {
    std::filesystem::create_directories(folder_ / folder);
    write_bytes(folder_ / (folder + "/" + name), text);
  }
  // "name of folder"
  std::vector<std::string> chosen(bool code = false) {
    std::vector<std::string> list;
    for (const SideFile& side :
         choose_side_files({folder_ / "near", folder_ / "far"}, code, notes_)) {
      list.push_back(side.name + " of " +
                     std::filesystem::path(side.from).filename().string());
    }
    return list;
  }

  TempFolder folder_;
  std::vector<std::string> notes_;
};

TEST_F(SideFiles, ATokenizerComesWholeFromTheNearest) {
  file("near", "tokenizer.json");
  file("near", "tokenizer_config.json");
  file("far", "tokenizer.json");
  file("far", "special_tokens_map.json");
  file("far", "generation_config.json");
  file("far", "preprocessor_config.json");
  EXPECT_THAT(chosen(), ElementsAre("tokenizer.json of near",
                                    "tokenizer_config.json of near",
                                    "generation_config.json of far",
                                    "preprocessor_config.json of far"));
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(SideFiles, HalfATokenizerIsNone) {
  file("near", "tokenizer_config.json");
  file("far", "tokenizer.model", "words");
  file("far", "tokenizer_config.json");
  EXPECT_THAT(chosen(), ElementsAre("tokenizer.model of far",
                                    "tokenizer_config.json of far"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("has no vocabulary")));
}

TEST_F(SideFiles, AVocabularyWithoutItsConfigYieldsToAWholeTokenizer) {
  file("near", "tokenizer.json");
  EXPECT_THAT(chosen(), ElementsAre("tokenizer.json of near"));
  file("far", "tokenizer.json");
  file("far", "tokenizer_config.json");
  EXPECT_THAT(chosen(), ElementsAre("tokenizer.json of far",
                                    "tokenizer_config.json of far"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("no tokenizer_config.json")));
}

TEST_F(SideFiles, CodeOfATokenizerIsCopied) {
  file("near", "tokenizer.json");
  file("near", "tokenizer_config.json", R"({"auto_map": {"A": "t.B"}})");
  file("near", "t.py", "import torch");
  EXPECT_THAT(chosen(), Contains("t.py of near"));
}

TEST_F(SideFiles, NoTokenizerIsSaid) {
  EXPECT_THAT(chosen(), IsEmpty());
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("no tokenizer was found")));
}

TEST_F(SideFiles, CodeIsCopiedWhereTheConfigAsksForIt) {
  file("near", "tokenizer.json");
  file("near", "zero_to_fp32.py", "import torch");
  file("far", "modeling_x.py", "import torch");
  file("far", "zero_to_torch.py", "import torch");
  EXPECT_THAT(chosen(true), Contains("modeling_x.py of far"));
  EXPECT_THAT(chosen(true), testing::Not(Contains(HasSubstr("zero_to"))));
  EXPECT_THAT(chosen(false), testing::Not(Contains(HasSubstr("modeling"))));
}

TEST_F(SideFiles, TheConfigIsThatOfTheNearest) {
  file("far", "config.json");
  EXPECT_EQ(config_folder({folder_ / "near", folder_ / "far"}),
            folder_ / "far");
  EXPECT_EQ(config_folder({folder_ / "near"}), "");
}

TEST_F(SideFiles, TheHighestIdIsFoundWhereverItIs) {
  const std::pair<std::string, uint64_t> texts[] = {
      {R"({"model": {"vocab": {"a": 0, "b": 7}}})", 8},
      {R"({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 11,
           "content": "x"}]})",
       12},
      {R"({"model": {"vocab": [["a", 0.5], ["b", -1.5], ["c", 2]]}})", 3},
      {R"({"model": {"merges": [["a", "b"]], "vocab": {"a": 1}},
           "version": "1.0", "truncation": {"max_length": 512}})",
       2}};
  for (const auto& [text, size] : texts) {
    file("near", "tokenizer.json", text);
    EXPECT_EQ(tokenizer_size(folder_ / "near"), size) << text;
  }
}

TEST_F(SideFiles, PlainVocabulariesCount) {
  file("near", "vocab.json", R"({"a": 0, "b": 4})");
  file("near", "added_tokens.json", R"({"<x>": 6})");
  EXPECT_EQ(tokenizer_size(folder_ / "near"), 7U);
}

TEST_F(SideFiles, SentencepieceTellsNothing) {
  file("near", "tokenizer.model", "words");
  EXPECT_FALSE(tokenizer_size(folder_ / "near"));
}

TEST_F(SideFiles, ATokenizerThatIsNoJsonIsRefused) {
  file("near", "tokenizer.json", "{\"model\": ");
  expect_error(ErrorCode::Corrupt, {}, "expected JSON of a tokenizer",
               [&] { tokenizer_size(folder_ / "near"); });
}

}  // namespace
}  // namespace zckpt::test
