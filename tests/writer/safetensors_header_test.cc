// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/safetensors_header.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "writer/data_file.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(
        std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

struct Case {
  std::string title;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<TensorSlot> slots;
  std::string header;
};

// Names are hex behind a '=', so that an empty one is a word, too.
std::vector<Case> reference_cases() {
  std::vector<Case> cases;
  std::istringstream lines(read_data_file("headers.txt"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    std::string first;
    std::string second;
    words >> kind >> first;
    if (kind == "case") {
      cases.push_back({.title = first});
    } else if (kind == "metadata") {
      words >> second;
      cases.back().metadata.emplace_back(from_hex(first.substr(1)),
                                         from_hex(second.substr(1)));
    } else if (kind == "tensor") {
      words >> second;
      TensorSlot slot{.name = from_hex(first.substr(1)),
                      .dtype = dtype_from_safetensors(second).value()};
      for (uint64_t dimension = 0; words >> dimension;) {
        slot.shape.push_back(dimension);
      }
      cases.back().slots.push_back(std::move(slot));
    } else {
      cases.back().header = from_hex(first);
    }
  }
  return cases;
}

ErrorCode code_of(std::vector<TensorSlot> slots) {
  uint64_t data_bytes = 0;
  try {
    layout_safetensors(slots, {{"format", "pt"}}, &data_bytes);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::Internal;
}

TEST(SafetensorsHeader, IsTheReferenceWritersByteForByte) {
  const std::vector<Case> cases = reference_cases();
  ASSERT_EQ(cases.size(), 47U);
  for (const Case& reference : cases) {
    std::vector<TensorSlot> slots = reference.slots;
    uint64_t data_bytes = 0;
    EXPECT_EQ(layout_safetensors(slots, reference.metadata, &data_bytes),
              reference.header)
        << reference.title;
  }
}

TEST(SafetensorsHeader, DoesNotDependOnTheOrderOfTheSlots) {
  std::mt19937 random(7);
  for (const Case& reference : reference_cases()) {
    std::vector<TensorSlot> slots = reference.slots;
    std::shuffle(slots.begin(), slots.end(), random);
    uint64_t data_bytes = 0;
    EXPECT_EQ(layout_safetensors(slots, reference.metadata, &data_bytes),
              reference.header)
        << reference.title;
  }
}

TEST(SafetensorsHeader, SetsOffsetsThatCoverTheFile) {
  for (const Case& reference : reference_cases()) {
    std::vector<TensorSlot> slots = reference.slots;
    uint64_t data_bytes = 0;
    uint64_t end =
        layout_safetensors(slots, reference.metadata, &data_bytes).size();
    EXPECT_EQ(end % 8, 0U);
    const uint64_t file_end = end + data_bytes;
    for (const TensorSlot& slot : slots) {
      EXPECT_EQ(slot.offset, end) << reference.title << ' ' << slot.name;
      EXPECT_EQ(slot.offset % size_of(slot.dtype), 0U);
      uint64_t elements = 1;
      for (const uint64_t dimension : slot.shape) elements *= dimension;
      EXPECT_EQ(slot.size_bytes, elements * size_of(slot.dtype));
      end += slot.size_bytes;
    }
    EXPECT_EQ(end, file_end) << reference.title;
  }
}

TEST(SafetensorsHeader, WritesSeveralMetadataKeysInTheirOrder) {
  std::vector<TensorSlot> slots;
  uint64_t data_bytes = 1;
  const std::string head = layout_safetensors(
      slots, {{"format", "pt"}, {"lm_head.weight", "embed.weight"}},
      &data_bytes);
  EXPECT_EQ(
      head.substr(8),
      R"({"__metadata__":{"format":"pt","lm_head.weight":"embed.weight"}})");
  EXPECT_EQ(data_bytes, 0U);
}

TEST(SafetensorsHeader, RefusesTwoTensorsOfOneName) {
  EXPECT_EQ(code_of({{.name = "w"}, {.name = "v"}, {.name = "w"}}),
            ErrorCode::Internal);
  // Also where their dtypes would keep them apart.
  EXPECT_EQ(code_of({{.name = "w"}, {.name = "w", .dtype = DType::U8}}),
            ErrorCode::Internal);
}

TEST(SafetensorsHeader, RefusesTheNameOfTheMetadata) {
  EXPECT_EQ(code_of({{.name = "__metadata__"}}), ErrorCode::Unsupported);
}

TEST(SafetensorsHeader, RefusesNamesThatAreNoText) {
  EXPECT_EQ(code_of({{.name = "w\xff"}}), ErrorCode::Unsupported);
  EXPECT_EQ(code_of({{.name = "w\xed\xa0\x80"}}), ErrorCode::Unsupported);
}

TEST(SafetensorsHeader, RefusesSizesBeyond64Bits) {
  const uint64_t half = uint64_t{1} << 61;
  EXPECT_EQ(code_of({{.name = "w", .shape = {half, 2}}}), ErrorCode::Corrupt);
  EXPECT_EQ(code_of({{.name = "v", .dtype = DType::U8, .shape = {half, 4}},
                     {.name = "w", .dtype = DType::U8, .shape = {half, 4}}}),
            ErrorCode::Corrupt);
}

TEST(SafetensorsHeader, RefusesAHeaderThatReadersRefuse) {
  std::vector<TensorSlot> slots;
  for (int i = 0; i < 11; ++i) {
    slots.push_back(
        {.name = std::string(10'000'000, static_cast<char>('a' + i))});
  }
  EXPECT_EQ(code_of(slots), ErrorCode::Limit);
}

}  // namespace
}  // namespace zckpt
