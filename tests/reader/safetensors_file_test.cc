// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/safetensors_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "support/caught.h"
#include "support/memory_source.h"
#include "support/sparse_source.h"
#include "zckpt/error.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

// A file with this header, as it is, and so many bytes of data.
std::string file(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return bytes + header + std::string(data_bytes, 'd');
}

SafetensorsFile read(const std::string& bytes) {
  return read_safetensors_header(MemorySource(bytes, "x.safetensors"));
}

const std::string kTwo =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],)"
    R"("data_offsets":[0,8]},"a":{"dtype":"BF16","shape":[2,1],)"
    R"("data_offsets":[8,12]}}  )";

TEST(SafetensorsFile, ReadsHeader) {
  const SafetensorsFile f = read(file(kTwo, 12));
  EXPECT_EQ(f.header_bytes, 8 + kTwo.size());
  ASSERT_EQ(f.entries.size(), 2);
  EXPECT_EQ(f.entries[0].name, "b");
  EXPECT_EQ(f.entries[0].dtype, DType::F32);
  EXPECT_EQ(f.entries[0].offset, f.header_bytes);
  EXPECT_EQ(f.entries[0].size_bytes, 8);
  EXPECT_EQ(f.entries[1].name, "a");
  EXPECT_EQ(f.entries[1].shape, (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(f.entries[1].offset, f.header_bytes + 8);
  ASSERT_EQ(f.metadata.size(), 1);
  EXPECT_EQ(f.metadata[0].first, "format");
  EXPECT_EQ(f.metadata[0].second, "pt");
}

TEST(SafetensorsFile, ReadsEmptyAndScalarTensors) {
  const SafetensorsFile f =
      read(file(R"({"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                R"("y":{"dtype":"U8","shape":[0,5],"data_offsets":[8,8]},)"
                R"("z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                8));
  ASSERT_EQ(f.entries.size(), 3);
  EXPECT_EQ(f.entries[0].name, "z");
  EXPECT_EQ(f.entries[1].name, "x");
  EXPECT_TRUE(f.entries[1].shape.empty());
  EXPECT_EQ(f.entries[2].name, "y");
  EXPECT_EQ(read(file("{}", 0)).entries.size(), 0);
}

TEST(SafetensorsFile, ReadsFieldsInAnyOrderAndEscapedNames) {
  const SafetensorsFile f = read(file(
      R"({"a\u00e9\n":{"data_offsets":[0,1],"shape":[1],"dtype":"I8"}})", 1));
  EXPECT_EQ(f.entries[0].name, "a\xc3\xa9\n");
}

std::string entry(const std::string& text) { return R"({"t":)" + text + "}"; }

struct Case {
  const char* name;
  ErrorCode code;
  const char* part;
  std::string bytes;
  uint64_t offset;
  const char* tensor = "";
};

// The length of the header and where the data begins, for offsets.
std::vector<Case> cases() {
  const auto data = [](const std::string& header) { return 8 + header.size(); };
  const auto after = [](const std::string& header, const std::string& part) {
    return 8 + header.find(part) + part.size() - 1;
  };
  std::vector<Case> all;
  const auto add = [&](Case c) { all.push_back(std::move(c)); };
  add({"Short", ErrorCode::Corrupt, "found a file of 7 bytes", "1234567", 0});
  add({"LengthPastEnd", ErrorCode::Corrupt, "reaches past the end",
       file("{}", 0).substr(0, 9), 0});
  add({"HugeLength", ErrorCode::Corrupt, "reaches past the end",
       std::string(8, '\xff') + "{}", 0});
  add({"FirstByte", ErrorCode::Corrupt, "expected '{'", file(" {}", 0), 8});
  add({"EmptyHeader", ErrorCode::Corrupt, "expected '{'", file("", 0), 8});
  add({"Syntax", ErrorCode::Corrupt, "no valid JSON", file("{\"a\" 1}", 0),
       8 + 5});
  add({"CutOff", ErrorCode::Corrupt, "no valid JSON", file("{", 0), 8 + 1});
  add({"AfterTheObject", ErrorCode::Corrupt, "no valid JSON", file("{} {}", 0),
       8 + 3});
  add({"BadUtf8", ErrorCode::Corrupt, "no valid JSON", file("{\"\xff\":1}", 0),
       8 + 2});
  std::string h = R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  add({"TwiceTheName", ErrorCode::Corrupt, "this name twice", file(h, 2),
       8 + h.rfind("\"t\"") + 2, "t"});
  h = R"({"__metadata__":{"a":"b","a":"c"}})";
  add({"TwiceTheMetadata", ErrorCode::Corrupt, "this name twice", file(h, 0),
       8 + h.rfind("\"a\"") + 2, "a"});
  h = R"({"__metadata__":{},"__metadata__":{}})";
  add({"TwoMetadata", ErrorCode::Corrupt, "this name twice", file(h, 0),
       after(h, R"({},"__metadata__")"), "__metadata__"});
  h = R"({"__metadata__":{"a":1}})";
  add({"MetadataNumber", ErrorCode::Corrupt, "does not belong", file(h, 0),
       after(h, "1}"), "a"});
  h = entry(R"({"dtype":"U8","dtype":"U8"})");
  add({"TwiceTheField", ErrorCode::Corrupt, "dtype occurs twice", file(h, 0),
       8 + h.rfind("dtype") + 5, "t"});
  h = entry(R"({"dtype":"U8","other":1})");
  add({"UnknownField", ErrorCode::Unsupported, "unknown field other",
       file(h, 0), after(h, "\"other\""), "t"});
  h = entry(R"({"dtype":"U8","shape":[1]})");
  add({"MissingField", ErrorCode::Corrupt, "expected dtype, shape", file(h, 1),
       after(h, "]}"), "t"});
  for (const char* dtype : {"F4", "F6_E2M3", "F6_E3M2", "X9"}) {
    h = entry(R"({"dtype":")" + std::string(dtype) + R"("})");
    add({dtype, ErrorCode::Unsupported, dtype, file(h, 0), 8 + h.rfind('"'),
         "t"});
  }
  h = entry("[1]");
  add({"EntryIsAList", ErrorCode::Corrupt, "does not belong", file(h, 0),
       after(h, "["), "t"});
  h = entry(R"({"dtype":"U8","shape":[[1]]})");
  add({"NestedShape", ErrorCode::Corrupt, "does not belong", file(h, 0),
       after(h, "[["), "t"});
  for (const char* number :
       {"-1", "1.0", "18446744073709551616", "null", "true", "\"1\"", "{}"}) {
    h = entry(R"({"shape":[)" + std::string(number) + "]}");
    const std::string n(number);
    // Numbers end where another character comes.
    const bool numeric = n.find_first_of("tn\"{") == std::string::npos;
    add({"WrongShape", ErrorCode::Corrupt, "does not belong", file(h, 0),
         8 + h.find('[') + (n == "{}" ? 1 : n.size() + (numeric ? 1 : 0)),
         "t"});
  }
  h = entry(R"({"data_offsets":[0,1,2]})");
  add({"ThreeOffsets", ErrorCode::Corrupt, "does not belong", file(h, 0),
       after(h, "1,2]"), "t"});
  h = entry(R"({"data_offsets":[0]})");
  add({"OneOffset", ErrorCode::Corrupt, "two ascending", file(h, 0),
       after(h, "[0]"), "t"});
  h = entry(R"({"data_offsets":[2,1]})");
  add({"DescendingOffsets", ErrorCode::Corrupt, "two ascending", file(h, 0),
       after(h, "[2,1]"), "t"});
  h = entry(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})");
  add({"GapAtTheBeginning", ErrorCode::Corrupt, "a gap", file(h, 2), data(h),
       "t"});
  h = R"({"s":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
      R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  add({"Overlap", ErrorCode::Corrupt, "an overlap", file(h, 2), data(h) + 2,
       "t"});
  h = R"({"s":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
      R"("t":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})";
  add({"Gap", ErrorCode::Corrupt, "a gap", file(h, 4), data(h) + 2, "t"});
  h = entry(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})");
  add({"Truncated", ErrorCode::Corrupt, "past the end of the file", file(h, 3),
       data(h) + 3, "t"});
  add({"Trailing", ErrorCode::Corrupt, "1 bytes after the last tensor",
       file(h, 5), data(h) + 4});
  h = entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0,4]})");
  add({"SizeOfShape", ErrorCode::Corrupt, "expected 16 bytes", file(h, 4),
       data(h), "t"});
  h = entry(R"({"dtype":"U8","shape":[4294967296,4294967296],)"
            R"("data_offsets":[0,0]})");
  add({"WrappingShape", ErrorCode::Corrupt, "exceeds 64 bits", file(h, 0),
       data(h), "t"});
  return all;
}

TEST(SafetensorsFile, RefusesEverythingElse) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto body = [&] { read(c.bytes); };
    expect_error(c.code, c.offset, c.part, body);
    if (const auto error = caught(body)) {
      EXPECT_EQ(error->tensor(), c.tensor);
      EXPECT_EQ(error->file(), "x.safetensors");
    }
  }
}

TEST(SafetensorsFile, RefusesHeaderAboveTheLimit) {
  std::string head(8, '\0');
  const uint64_t length = 100'000'001;
  std::memcpy(head.data(), &length, 8);
  const SparseSource source(head, uint64_t{1} << 40);
  expect_error(ErrorCode::Limit, 0, "exceeds the limit",
               [&] { read_safetensors_header(source); });
}

TEST(SafetensorsFile, DeepNestingIsRefusedEarly) {
  const std::string deep =
      "{\"t\":{\"shape\":" + std::string(1'000'000, '[') + "}";
  expect_error(ErrorCode::Corrupt, 8 + 15, "does not belong",
               [&] { read(file(deep, 0)); });
}

TEST(Sweep, TruncationsAndFlipsEndWell) {
  const std::string bytes = file(kTwo, 12);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(caught([&] { read(bytes.substr(0, size)); })) << size;
  }
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    std::string damaged = bytes;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ 1 << (i % 8));
    caught([&] {
      for (const SafetensorsEntry& e : read(damaged).entries) {
        EXPECT_LE(e.offset + e.size_bytes, damaged.size());
      }
    });
  }
}

TEST(RealFiles, Open) {
  int files = 0;
  for (const auto& item : fs::recursive_directory_iterator(ZCKPT_FIXTURES)) {
    if (item.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(item.path().string());
    const FileSource source(item.path().string());
    EXPECT_NO_THROW(read_safetensors_header(source));
    ++files;
  }
  EXPECT_GT(files, 50);
}

}  // namespace
}  // namespace zckpt::test
