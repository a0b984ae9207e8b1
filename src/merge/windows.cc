// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/windows.h"

#include <algorithm>
#include <tuple>

namespace zckpt {
namespace {

// Reading on over a gap this long is cheaper than another read, also from a
// disk: padding between partitions, zip headers between records.
constexpr uint64_t kGapBytes = uint64_t{1} << 17;
// A strided piece is read whole where at least this share of it is wanted.
constexpr uint64_t kSparseness = 16;

class WindowBuilder {
 public:
  WindowBuilder(uint64_t capacity, RecordChecks* checks)
      : capacity_(capacity), checks_(checks) {}

  void add(const Piece& piece) {
    if (open_ && piece.source != window_.source) close();
    if (checks_ != nullptr) {
      checks_->enter(piece.source);
      checks_->want(piece.offset);
    }
    if (piece.count > 1) {
      if (!fits(piece.offset, piece.hull())) close();
      put(piece, piece.hull());
      return;
    }
    Piece rest = piece;
    const uint64_t size = size_of(piece.from);
    while (rest.numel != 0) {
      if (!fits(rest.offset, size)) close();
      const uint64_t room =
          open_ ? capacity_ - (rest.offset - window_.begin) : capacity_;
      Piece head = rest;
      head.numel = std::min(rest.numel, room / size);
      put(head, head.numel * size);
      rest.numel -= head.numel;
      rest.offset += head.numel * size;
      rest.destination += head.numel * size_of(rest.to);
    }
  }

  WindowList finish() {
    close();
    return std::move(list_);
  }

 private:
  // Whether a run of `size` bytes at `offset` can join the open window.
  bool fits(uint64_t offset, uint64_t size) const {
    if (!open_) return true;
    return offset >= window_.begin && offset <= window_.end + kGapBytes &&
           offset - window_.begin <= capacity_ &&
           size <= capacity_ - (offset - window_.begin);
  }

  void put(const Piece& piece, uint64_t size) {
    if (!open_) {
      open_ = true;
      window_ = {.source = piece.source,
                 .begin = piece.offset,
                 .end = piece.offset,
                 .first_piece = list_.pieces.size(),
                 .first_range = list_.ranges.size()};
    }
    window_.end = std::max(window_.end, piece.offset + size);
    if (list_.pieces.size() > window_.first_piece &&
        continues(list_.pieces.back(), piece)) {
      list_.pieces.back().numel += piece.numel;
      return;
    }
    list_.pieces.push_back(piece);
    ++window_.piece_count;
  }

  static bool continues(const Piece& a, const Piece& b) {
    return a.count == 1 && b.count == 1 && a.target == b.target &&
           a.from == b.from && a.to == b.to && a.change == b.change &&
           a.offset + a.numel * size_of(a.from) == b.offset &&
           a.destination + a.numel * size_of(a.to) == b.destination;
  }

  void close() {
    if (!open_) return;
    open_ = false;
    if (checks_ != nullptr) {
      checks_->claim(window_.begin, window_.end, list_.ranges);
      window_.range_count = list_.ranges.size() - window_.first_range;
    }
    list_.windows.push_back(window_);
  }

  uint64_t capacity_;
  RecordChecks* checks_;
  WindowList list_;
  Window window_;
  bool open_ = false;
};

}  // namespace

WindowList make_windows(std::vector<Piece>& pieces, uint64_t capacity,
                        RecordChecks* checks) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.source, a.offset, a.target, a.destination) <
           std::tie(b.source, b.offset, b.target, b.destination);
  });
  WindowBuilder builder(capacity, checks);
  for (const Piece& piece : pieces) builder.add(piece);
  return builder.finish();
}

void split_extent(const Extent& extent, Piece piece, uint64_t capacity,
                  std::vector<Piece>& out) {
  const uint64_t run = extent.numel * size_of(piece.from);
  piece.source = extent.source;
  piece.numel = extent.numel;
  // Runs to a piece: as many as fit in a read, one where they lie far apart.
  uint64_t runs = 1;
  if (extent.count > 1 && run <= capacity &&
      extent.stride / kSparseness <= run) {
    runs = extent.stride == 0 ? extent.count
                              : 1 + (capacity - run) / extent.stride;
  }
  for (uint64_t i = 0; i < extent.count; i += runs) {
    piece.count = std::min(runs, extent.count - i);
    piece.offset = extent.offset + i * extent.stride;
    piece.stride = extent.stride;
    out.push_back(piece);
    piece.destination += piece.elements() * size_of(piece.to);
  }
}

}  // namespace zckpt
