// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/crc32.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace zckpt {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The check value of the CRC-32 that zip uses, from its definition.
TEST(Crc32, HasTheCheckValueOfZip) {
  EXPECT_EQ(crc32_update(0, bytes_of("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32_update(0, {}), 0U);
}

TEST(Crc32, GoesOnWhereItWas) {
  const uint32_t head = crc32_update(0, bytes_of("1234"));
  EXPECT_EQ(crc32_update(head, bytes_of("56789")), 0xcbf43926U);
}

TEST(Crc32, CombinesAtEveryCut) {
  std::mt19937 random(7);
  std::string text(3000, '\0');
  for (char& c : text) c = static_cast<char>(random());
  const uint32_t whole = crc32_update(0, bytes_of(text));
  for (size_t cut = 0; cut <= text.size(); cut += 37) {
    const auto head = bytes_of(std::string_view(text).substr(0, cut));
    const auto tail = bytes_of(std::string_view(text).substr(cut));
    EXPECT_EQ(crc32_combine(crc32_update(0, head), crc32_update(0, tail),
                            tail.size()),
              whole)
        << cut;
  }
}

// A run of zeros of many GB, as combination alone can reach it: appending zeros
// twice is appending the sum.
TEST(Crc32, CombinesLongRuns) {
  const uint32_t start = crc32_update(0, bytes_of("zckpt"));
  uint32_t crc_of_zeros = crc32_update(0, bytes_of(std::string(1, '\0')));
  uint64_t length = 1;
  while (length < (uint64_t{1} << 40)) {
    crc_of_zeros = crc32_combine(crc_of_zeros, crc_of_zeros, length);
    length *= 2;
  }
  uint32_t halves = start;
  uint32_t half = crc32_update(0, bytes_of(std::string(1, '\0')));
  for (uint64_t n = 1; n < length / 2; n *= 2)
    half = crc32_combine(half, half, n);
  halves = crc32_combine(halves, half, length / 2);
  halves = crc32_combine(halves, half, length / 2);
  EXPECT_EQ(crc32_combine(start, crc_of_zeros, length), halves);
}

}  // namespace
}  // namespace zckpt
