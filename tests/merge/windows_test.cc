// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

namespace zckpt {
namespace {

constexpr uint64_t kGap = uint64_t{1} << 17;  // what a read passes over

// Where one element comes from and goes to.
using Move = std::tuple<uint32_t, uint64_t, uint32_t, uint64_t>;

std::vector<Move> moves_of(const std::vector<Piece>& pieces) {
  std::vector<Move> moves;
  for (const Piece& piece : pieces) {
    for (uint64_t i = 0; i < piece.elements(); ++i) {
      moves.emplace_back(piece.source,
                         piece.offset + i / piece.numel * piece.stride +
                             i % piece.numel * size_of(piece.from),
                         piece.target,
                         piece.destination + i * size_of(piece.to));
    }
  }
  std::sort(moves.begin(), moves.end());
  return moves;
}

// What must hold for any list: every piece in exactly one window, inside of
// it; windows within the capacity and without overlap unless pieces overlap.
void expect_sound(const WindowList& list, uint64_t capacity) {
  size_t next = 0;
  for (const Window& window : list.windows) {
    EXPECT_LE(window.end - window.begin, capacity);
    EXPECT_LT(window.begin, window.end);
    ASSERT_EQ(window.first_piece, next);
    ASSERT_GT(window.piece_count, 0U);
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    for (size_t i = 0; i < window.piece_count; ++i) {
      const Piece& piece = list.pieces.at(next + i);
      EXPECT_EQ(piece.source, window.source);
      EXPECT_GT(piece.elements(), 0U);
      first = std::min(first, piece.offset);
      last = std::max(last, piece.offset + piece.hull());
    }
    EXPECT_EQ(first, window.begin);  // nothing is read for nobody
    EXPECT_EQ(last, window.end);
    next += window.piece_count;
  }
  EXPECT_EQ(next, list.pieces.size());
}

Piece piece_at(uint64_t offset, uint64_t numel, uint64_t destination = 0) {
  return {.offset = offset, .destination = destination, .numel = numel};
}

WindowList windows_of(std::vector<Piece> pieces, uint64_t capacity) {
  const std::vector<Move> before = moves_of(pieces);
  const WindowList list = make_windows(pieces, capacity, nullptr);
  expect_sound(list, capacity);
  EXPECT_TRUE(moves_of(list.pieces) == before) << "elements lost or moved";
  return list;
}

TEST(Windows, NothingToRead) {
  EXPECT_TRUE(windows_of({}, 64).windows.empty());
  EXPECT_TRUE(windows_of({piece_at(8, 0)}, 64).windows.empty());
}

TEST(Windows, NeighboursShareARead) {
  const WindowList list =
      windows_of({piece_at(40, 10, 900), piece_at(0, 10, 100)}, 4096);
  ASSERT_EQ(list.windows.size(), 1U);
  EXPECT_EQ(list.windows[0].begin, 0U);
  EXPECT_EQ(list.windows[0].end, 80U);
  EXPECT_EQ(list.pieces.size(), 2U);
}

TEST(Windows, WhatContinuesInTheOutputIsOnePiece) {
  EXPECT_EQ(windows_of({piece_at(0, 10, 100), piece_at(40, 10, 140)}, 4096)
                .pieces.size(),
            1U);
  // Another target, another dtype, a gap: no.
  Piece other = piece_at(40, 10, 140);
  other.target = 1;
  EXPECT_EQ(windows_of({piece_at(0, 10, 100), other}, 4096).pieces.size(), 2U);
  other = piece_at(40, 10, 140);
  other.to = DType::BF16;
  EXPECT_EQ(windows_of({piece_at(0, 10, 100), other}, 4096).pieces.size(), 2U);
  EXPECT_EQ(windows_of({piece_at(0, 10, 100), piece_at(44, 10, 140)}, 4096)
                .pieces.size(),
            2U);
}

TEST(Windows, SmallGapsAreReadOver) {
  const uint64_t capacity = uint64_t{1} << 20;
  EXPECT_EQ(windows_of({piece_at(0, 4), piece_at(16 + kGap, 4, 64)}, capacity)
                .windows.size(),
            1U);
  EXPECT_EQ(windows_of({piece_at(0, 4), piece_at(17 + kGap, 4, 64)}, capacity)
                .windows.size(),
            2U);
  // Not beyond the capacity.
  EXPECT_EQ(
      windows_of({piece_at(0, 4), piece_at(100, 4, 64)}, 115).windows.size(),
      2U);
  EXPECT_EQ(
      windows_of({piece_at(0, 4), piece_at(100, 4, 64)}, 116).windows.size(),
      1U);
}

TEST(Windows, LongPiecesAreCutBetweenElements) {
  for (uint64_t capacity = 8; capacity < 100; ++capacity) {
    for (const auto& [from, to] :
         {std::pair{DType::F32, DType::BF16}, std::pair{DType::I64, DType::I64},
          std::pair{DType::BF16, DType::F32}}) {
      Piece piece = piece_at(3, 101, 7);
      piece.from = from;
      piece.to = to;
      const WindowList list = windows_of({piece}, capacity);
      const uint64_t room = capacity / size_of(from);
      EXPECT_EQ(list.windows.size(), (101 + room - 1) / room);
    }
  }
}

TEST(Windows, SourcesNeverMix) {
  Piece other = piece_at(40, 10, 140);
  other.source = 1;
  const WindowList list = windows_of({other, piece_at(0, 10, 100)}, 4096);
  ASSERT_EQ(list.windows.size(), 2U);
  EXPECT_EQ(list.windows[0].source, 0U);
  EXPECT_EQ(list.windows[1].source, 1U);
}

// Two tensors over the same data: both get it, from one read.
TEST(Windows, SharedDataIsReadOnce) {
  const WindowList list = windows_of(
      {piece_at(0, 10, 100), piece_at(0, 10, 500), piece_at(20, 10, 800)},
      4096);
  ASSERT_EQ(list.windows.size(), 1U);
  EXPECT_EQ(list.windows[0].end, 60U);
}

TEST(Windows, ExtentsWithAStrideBecomePiecesThatFit) {
  for (const uint64_t stride : {uint64_t{12}, uint64_t{40}, uint64_t{96},
                                uint64_t{192}, uint64_t{5000}}) {
    for (uint64_t capacity = 8; capacity < 400; capacity += 3) {
      const Extent extent{.source = 2,
                          .offset = 1000,
                          .count = 17,
                          .numel = 3,
                          .stride = stride};
      Piece piece = piece_at(0, 0, 64);
      piece.to = DType::F16;
      std::vector<Piece> pieces;
      split_extent(extent, piece, capacity, pieces);
      uint64_t elements = 0;
      for (const Piece& p : pieces) {
        elements += p.elements();
        EXPECT_TRUE(p.count == 1 || p.hull() <= capacity);
      }
      EXPECT_EQ(elements, 51U);
      std::vector<Move> expected;
      for (uint64_t i = 0; i < 51; ++i) {
        expected.emplace_back(2, 1000 + i / 3 * stride + i % 3 * 4, 0,
                              64 + i * 2);
      }
      EXPECT_TRUE(moves_of(pieces) == expected);
      windows_of(pieces, capacity);
    }
  }
}

TEST(Windows, RepeatedDataHasNoStride) {  // expand(): the same run again
  std::vector<Piece> pieces;
  split_extent({.offset = 8, .count = 5, .numel = 2, .stride = 0},
               piece_at(0, 0, 0), 64, pieces);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].elements(), 10U);
  windows_of(pieces, 64);
}

// Runs far apart are read one by one: no share of a read is in vain.
TEST(Windows, SparseStridesAreNotReadWhole) {
  std::vector<Piece> pieces;
  const uint64_t far = uint64_t{1} << 20;
  split_extent({.offset = 0, .count = 10, .numel = 4, .stride = far},
               piece_at(0, 0, 0), 64 * far, pieces);
  EXPECT_EQ(pieces.size(), 10U);
  uint64_t read = 0;
  for (const Window& window : windows_of(pieces, 64 * far).windows) {
    read += window.end - window.begin;
  }
  EXPECT_EQ(read, 160U);
}

TEST(Windows, AnyMixtureIsCoveredOnce) {
  std::mt19937 random(20240613);
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 300; ++round) {
    std::vector<Piece> pieces;
    std::map<std::pair<uint32_t, uint32_t>, uint64_t> next;
    const uint64_t capacity = 8 + below(3000);
    for (uint64_t i = below(40); i-- > 0;) {
      Piece piece{.source = static_cast<uint32_t>(below(3)),
                  .target = static_cast<uint32_t>(below(2))};
      piece.from = below(2) == 0 ? DType::F32 : DType::BF16;
      piece.to = below(2) == 0 ? DType::F32 : DType::F16;
      const Extent extent{.source = piece.source,
                          .offset = below(600'000),
                          .count = 1 + below(2) * below(5),
                          .numel = below(400),
                          .stride = 1600 + below(4000)};
      uint64_t& destination = next[{0, piece.target}];
      piece.destination = destination;
      destination += extent.count * extent.numel * size_of(piece.to);
      split_extent(extent, piece, capacity, pieces);
    }
    SCOPED_TRACE("round " + std::to_string(round));
    windows_of(pieces, capacity);
  }
}

}  // namespace
}  // namespace zckpt
