// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "merge/record_checks.h"
#include "zckpt/checkpoint.h"
#include "zckpt/dtype.h"

namespace zckpt {

// A run of elements in a source and the place in the output where it goes.
// `count` > 1: that many runs of `numel` elements, `stride` bytes apart.
struct Piece {
  uint32_t source = 0;
  uint32_t target = 0;       // of the sink (merge/sink.h)
  uint64_t offset = 0;       // in the source
  uint64_t destination = 0;  // in the target
  uint64_t count = 1;
  uint64_t numel = 0;
  uint64_t stride = 0;
  DType from = DType::F32;
  DType to = DType::F32;
  // What else is done to the elements (merge/changes.h), and where in the
  // target the tensor begins that they are of: only then does it matter.
  std::optional<uint32_t> change;
  uint64_t tensor_begin = 0;

  uint64_t elements() const { return count * numel; }
  // Bytes from the first to behind the last element.
  uint64_t hull() const { return (count - 1) * stride + numel * size_of(from); }
};

// One read: bytes [begin, end) of a source, the pieces cut out of it and the
// parts of it whose CRC counts.
struct Window {
  uint32_t source = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  size_t first_piece = 0;
  size_t piece_count = 0;
  size_t first_range = 0;
  size_t range_count = 0;
};

struct WindowList {
  std::vector<Window> windows;
  std::vector<Piece> pieces;  // cut so that each lies in one window
  std::vector<ByteRange> ranges;
};

// Sorts `pieces` by source and offset and groups them into reads of at most
// `capacity` bytes: neighbours closer than a small gap share a read, longer
// pieces are cut at element boundaries. `checks` may be null.
// REQUIRES: capacity >= 8; the hull of a strided piece is at most `capacity`.
WindowList make_windows(std::vector<Piece>& pieces, uint64_t capacity,
                        RecordChecks* checks);

// `extent` as pieces that make_windows accepts.
void split_extent(const Extent& extent, Piece piece, uint64_t capacity,
                  std::vector<Piece>& out);

}  // namespace zckpt
