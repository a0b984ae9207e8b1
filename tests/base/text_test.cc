// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <gtest/gtest.h>

namespace zckpt {
namespace {

TEST(Escape, KeepsTextAndMarksControls) {
  EXPECT_EQ(escape("größe 1.weight"), "größe 1.weight");
  EXPECT_EQ(escape("a\x1b[31mb\n"), "a\\x1b[31mb\\x0a");
  EXPECT_EQ(escape("\x7f"), "\\x7f");
  EXPECT_EQ(escape("\xc2\x9b"), "\\xc2\\x9b");           // C1: CSI
  EXPECT_EQ(escape("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left
}

TEST(Escape, MarksWhatIsNoUtf8) {
  EXPECT_EQ(escape("\xff"), "\\xff");
  EXPECT_EQ(escape("a\xc3"), "a\\xc3");                  // cut off
  EXPECT_EQ(escape("\xc0\xaf"), "\\xc0\\xaf");           // overlong '/'
  EXPECT_EQ(escape("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
}

TEST(ParseSize, KnowsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000U);
  EXPECT_EQ(parse_size("5gb"), 5'000'000'000U);
  EXPECT_EQ(parse_size("1.5GiB"), 1'610'612'736U);
  EXPECT_EQ(parse_size("4096"), 4096U);
  EXPECT_EQ(parse_size("7B"), 7U);
  EXPECT_EQ(parse_size("0.5KB"), 500U);
  EXPECT_EQ(parse_size("2TiB"), 2'199'023'255'552U);
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "0", "0GB", "-1", "GB", "5XB", "5 GB", "1e3",
                           "nan", "inf", "99999999999TB", "0.1", "5GBx"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
}

TEST(FormatBytes, KeepsThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(999), "999 bytes");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(9994), "9.99 kB");
  EXPECT_EQ(format_bytes(9996), "10.0 kB");
  EXPECT_EQ(format_bytes(123'456'789), "123 MB");
  EXPECT_EQ(format_bytes(999'600), "1.00 MB");
}

TEST(FormatCount, GroupsDigits) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1'234'567), "1,234,567");
  EXPECT_EQ(count_of(1, "file"), "1 file");
  EXPECT_EQ(count_of(2000, "file"), "2,000 files");
}

TEST(GlobMatch, MatchesWholeNames) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*.weight", "model.norm.weight"));
  EXPECT_FALSE(glob_match("*.weight", "model.norm.weights"));
  EXPECT_TRUE(glob_match("model.layers.?.*", "model.layers.1.mlp"));
  EXPECT_FALSE(glob_match("model.layers.?.*", "model.layers.10.mlp"));
  EXPECT_TRUE(glob_match("*[0-3].w", "l2.w"));
  EXPECT_FALSE(glob_match("*[!0-3].w", "l2.w"));
  EXPECT_TRUE(glob_match("a[]]b", "a]b"));
  EXPECT_TRUE(glob_match("a[b", "a[b"));  // no closing bracket: literal
  EXPECT_FALSE(glob_match("abc", "ab"));
  EXPECT_TRUE(glob_match("a*b*c", "axxbyybzzc"));
}

TEST(ParseUint, TakesDigitsOnly) {
  EXPECT_EQ(parse_uint("0"), 0U);
  EXPECT_EQ(parse_uint("18446744073709551615"), UINT64_MAX);
  for (const char* text :
       {"", "+1", "-1", " 1", "1 ", "18446744073709551616"}) {
    EXPECT_EQ(parse_uint(text), std::nullopt) << text;
  }
}

// Expectations made with Python 3.11: json.dumps(text) and, for the second
// form, serde_json as the safetensors package writes it.
TEST(JsonQuote, AgreesWithPythonAndSerde) {
  const std::string text =
      "gr\xc3\xb6\xc3\x9f\x65 \"\\\x01\n\x7f\xf0\x9f\x98\x80";
  EXPECT_EQ(json_quote(text, true),
            "\"gr\\u00f6\\u00dfe \\\"\\\\\\u0001\\n\\u007f\\ud83d\\ude00\"");
  EXPECT_EQ(
      json_quote(text, false),
      "\"gr\xc3\xb6\xc3\x9f\x65 \\\"\\\\\\u0001\\n\x7f\xf0\x9f\x98\x80\"");
  EXPECT_EQ(json_quote("a\xff", true), "\"a\\ufffd\"");
}

}  // namespace
}  // namespace zckpt
