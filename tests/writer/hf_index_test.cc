// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/hf_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <sstream>

#include "writer/data_file.h"

namespace zckpt {
namespace {

using Numbers = std::vector<uint64_t>;

// The numbers before the next "|" or the end of the line.
Numbers next_numbers(std::istringstream& words) {
  Numbers numbers;
  for (std::string word; words >> word && word != "|";) {
    numbers.push_back(std::stoull(word));
  }
  return numbers;
}

TEST(SplitIntoShards, IsWhatHuggingFaceHubDoes) {
  std::istringstream lines(read_data_file("split_cases.txt"));
  int cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    std::istringstream words(line);
    Numbers sizes = next_numbers(words);
    const uint64_t limit = sizes.front();
    sizes.erase(sizes.begin());
    const Numbers expected = next_numbers(words);
    uint32_t count = 0;
    const std::vector<uint32_t> shards =
        split_into_shards(sizes, limit, &count);
    EXPECT_EQ(Numbers(shards.begin(), shards.end()), expected) << line;
    EXPECT_EQ(Numbers{count}, next_numbers(words)) << line;
  }
  EXPECT_EQ(cases, 400);
}

TEST(SplitIntoShards, FillsAShardExactly) {
  uint32_t count = 0;
  EXPECT_EQ(split_into_shards({4, 6, 1}, 10, &count),
            (std::vector<uint32_t>{0, 0, 1}));
  EXPECT_EQ(count, 2U);
}

TEST(SplitIntoShards, NumbersALargeTensorBeforeTheOpenShard) {
  uint32_t count = 0;
  EXPECT_EQ(split_into_shards({4, 11, 6}, 10, &count),
            (std::vector<uint32_t>{1, 0, 1}));
  EXPECT_EQ(count, 2U);
}

TEST(SplitIntoShards, DoesNotOverflow) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  uint32_t count = 0;
  EXPECT_EQ(split_into_shards({kMost, 1, kMost - 1, kMost}, kMost, &count),
            (std::vector<uint32_t>{0, 1, 1, 2}));
  EXPECT_EQ(count, 3U);
}

TEST(SplitIntoShards, OfNothingIsNothing) {
  uint32_t count = 7;
  EXPECT_TRUE(split_into_shards({}, 10, &count).empty());
  EXPECT_EQ(count, 0U);
}

TEST(ShardFileName, IsNumberedFromOneOfSeveral) {
  EXPECT_EQ(shard_file_name("model", ".safetensors", 0, 1),
            "model.safetensors");
  EXPECT_EQ(shard_file_name("model", ".safetensors", 0, 3),
            "model-00001-of-00003.safetensors");
  EXPECT_EQ(shard_file_name("pytorch_model", ".bin", 11, 12),
            "pytorch_model-00012-of-00012.bin");
  EXPECT_EQ(shard_file_name("m", "", 99'999, 100'000), "m-100000-of-100000");
}

// In the order of ODD_NAMES in data/make_writer_data.py.
std::vector<std::string> odd_names() {
  return {"plain.weight", "Plain.weight", "",       " ",           "a\"b",
          "a\\b",         "a/b",          "tab\t",  "line\n",      "return\r",
          "bell\x07",     "back\b",       "feed\f", {"zero\0", 5}, "us\x1f",
          "del\x7f",      "c1\u0080",     "é",      "ß.weight",    "層.0",
          "\u2028",       "\uffff",       "𝔴",      "🤗",        "a",
          "a.",           "a0",           "aa",     "layers.10.w", "layers.2.w",
          "<&>"};
}

TEST(HfIndexText, IsWhatPythonsJsonWrites) {
  HfIndex index{.total_size = std::numeric_limits<uint64_t>::max(),
                .total_parameters = (uint64_t{1} << 53) + 1,
                .aliases = {{"lm_head.weight", "model.embed_tokens.weight"},
                            {"alias é\"", "kept 🤗"}}};
  const std::vector<std::string> names = odd_names();
  for (uint32_t i = 0; i < names.size(); ++i) {
    index.weight_map.emplace_back(
        names[i], shard_file_name("model", ".safetensors", i, 31));
  }
  const std::string expected = read_data_file("index.json");
  EXPECT_EQ(hf_index_text(index), expected);
  std::mt19937 random(3);
  std::shuffle(index.weight_map.begin(), index.weight_map.end(), random);
  EXPECT_EQ(hf_index_text(index), expected);
}

TEST(HfIndexText, OfNothingIsValid) {
  EXPECT_EQ(hf_index_text({}),
            "{\n  \"metadata\": {\n    \"total_parameters\": 0,\n"
            "    \"total_size\": 0\n  },\n  \"weight_map\": {}\n}\n");
}

TEST(HfIndexText, KeepsItsOwnKeysFromAliases) {
  const std::string text =
      hf_index_text({.total_size = 8, .aliases = {{"total_size", "model.w"}}});
  EXPECT_NE(text.find("\"total_size\": 8"), std::string::npos) << text;
  EXPECT_EQ(text.find("model.w"), std::string::npos) << text;
}

}  // namespace
}  // namespace zckpt
