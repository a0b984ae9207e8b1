// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/executor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/crc32.h"
#include "base/parallel.h"
#include "base/text.h"
#include "reader/checkpoint_data.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// Pieces planned ahead: enough that neighbours meet also with hundreds of
// ranks, few enough for some MB.
constexpr size_t kBatchPieces = size_t{1} << 16;
// Converted elements are written in runs of at most this many bytes.
constexpr uint64_t kScratchBytes = uint64_t{1} << 20;
constexpr uint64_t kLargestElement = 8;

}  // namespace

// Gathers adjacent output of one window into few writes.
class Executor::Run {
 public:
  Run(Sink& sink, std::vector<std::byte>& scratch)
      : sink_(sink), scratch_(scratch) {}

  // Room for `size` bytes at `destination` of `target`; at most the scratch.
  std::span<std::byte> take(uint32_t target, uint64_t destination,
                            uint64_t size) {
    const std::span<std::byte> own = sink_.room(target, destination, size);
    if (!own.empty()) return own;
    if (used_ != 0 && (target != target_ || destination != begin_ + used_ ||
                       size > scratch_.size() - used_)) {
      flush();
    }
    if (used_ == 0) {
      target_ = target;
      begin_ = destination;
    }
    const auto room = std::span(scratch_).subspan(static_cast<size_t>(used_),
                                                  static_cast<size_t>(size));
    used_ += size;
    return room;
  }

  void flush() {
    if (used_ == 0) return;
    sink_.write(target_, begin_,
                std::span(scratch_).first(static_cast<size_t>(used_)));
    used_ = 0;
  }

 private:
  Sink& sink_;
  std::vector<std::byte>& scratch_;
  uint32_t target_ = 0;
  uint64_t begin_ = 0;
  uint64_t used_ = 0;
};

Executor::Executor(const Checkpoint& checkpoint, const MergeOptions& options,
                   Changes* changes, Sink& sink, uint64_t total)
    : checkpoint_(checkpoint),
      sources_(*checkpoint.data().sources),
      options_(options),
      changes_(changes),
      sink_(sink),
      total_(total),
      threads_(resolve_threads(options.open.threads)),
      checks_(sources_) {
  size_buffers();
}

void Executor::size_buffers() {
  const uint64_t share =
      options_.memory_bytes / static_cast<uint64_t>(threads_);
  const uint64_t scratch = std::min(kScratchBytes, share / 4);
  capacity_ = std::min(options_.chunk_bytes, share - scratch);
  capacity_ = std::max(capacity_, kLargestElement);
  if (scratch < kLargestElement) {
    throw Error(ErrorCode::Limit,
                "a memory budget of " + std::to_string(options_.memory_bytes) +
                    " bytes is too small; " +
                    count_of(static_cast<uint64_t>(threads_), "thread") +
                    " cannot do with less than " +
                    std::to_string(4 * kLargestElement *
                                   static_cast<uint64_t>(threads_)));
  }
  buffers_.resize(static_cast<size_t>(threads_));
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].worker = static_cast<int>(i);
    buffers_[i].scratch.resize(static_cast<size_t>(scratch));
  }
}

RecordChecks* Executor::checks() {
  return options_.check == Check::None ? nullptr : &checks_;
}

void Executor::add(const PlannedTensor& planned, uint32_t target) {
  Piece piece{.target = target,
              .destination = planned.offset,
              .to = planned.dtype,
              .change = planned.change,
              .tensor_begin = planned.offset};
  for (const PlannedRun& run : planned.runs) {
    const Tensor& tensor = checkpoint_.tensors()[run.tensor];
    piece.from = tensor.dtype;
    checkpoint_.extents(
        tensor, run.first, run.numel, [&](const Extent& extent) {
          split_extent(extent, piece, capacity_, pieces_);
          piece.destination +=
              extent.count * extent.numel * size_of(planned.dtype);
          if (pieces_.size() >= kBatchPieces) flush();
        });
  }
}

void Executor::add_copy(uint32_t source, uint64_t size, uint32_t target) {
  split_extent({.source = source, .numel = size},
               {.target = target, .from = DType::U8, .to = DType::U8},
               capacity_, pieces_);
}

void Executor::flush() {
  // Taken out first: after a failure nothing of it must go on.
  std::vector<Piece> pieces = std::move(pieces_);
  pieces_.clear();
  const WindowList list = make_windows(pieces, capacity_, checks());
  parallel_for(list.windows.size(), threads_, options_.open.stop,
               [&](size_t i, int worker) {
                 run_window(list, list.windows[i],
                            buffers_[static_cast<size_t>(worker)]);
               });
  sources_.check_unchanged();
}

void Executor::finish() {
  flush();
  if (options_.check == Check::None) return;
  const std::vector<ByteRange> ranges =
      checks_.missing(options_.check == Check::Full);
  parallel_for(
      ranges.size(), threads_, options_.open.stop, [&](size_t i, int worker) {
        const ByteRange& range = ranges[i];
        uint32_t crc = 0;
        for (uint64_t at = range.begin; at < range.end;) {
          const uint64_t end = std::min(range.end, at + capacity_);
          crc = crc32_update(crc, read(range.source, at, end,
                                       buffers_[static_cast<size_t>(worker)]));
          at = end;
        }
        checks_.add(range, crc);
      });
  sources_.check_unchanged();
}

void Executor::report(MergeResult& result) const {
  for (const Buffers& buffers : buffers_) {
    result.overflowed += buffers.counts.overflowed;
  }
  result.checked_records += checks_.checked();
  result.unchecked_records += checks_.unchecked();
  result.reads += reads_;
  result.bytes_read += bytes_read_;
}

std::span<const std::byte> Executor::read(uint32_t source, uint64_t begin,
                                          uint64_t end, Buffers& buffers) {
  // From page to page, which the kernel copies in half the time.
  const uint64_t lead = begin % PageBuffer::kPage;
  const auto size = static_cast<size_t>(end - begin + lead);
  buffers.read.reserve(size);
  const std::span<std::byte> bytes = buffers.read.first(size);
  try {
    sources_.open(source)->read_at(begin - lead, bytes);
  } catch (Error& error) {
    throw error.in_file(sources_.list()[source].name);
  }
  reads_.fetch_add(1, std::memory_order_relaxed);
  bytes_read_.fetch_add(size, std::memory_order_relaxed);
  return bytes.subspan(static_cast<size_t>(lead));
}

void Executor::run_window(const WindowList& list, const Window& window,
                          Buffers& buffers) {
  const std::span<const std::byte> bytes =
      read(window.source, window.begin, window.end, buffers);
  const auto ranges =
      std::span(list.ranges).subspan(window.first_range, window.range_count);
  for (const ByteRange& range : ranges) {
    checks_.add(
        range,
        crc32_update(
            0, bytes.subspan(static_cast<size_t>(range.begin - window.begin),
                             static_cast<size_t>(range.end - range.begin))));
  }
  Run run(sink_, buffers.scratch);
  uint64_t written = 0;
  const auto pieces =
      std::span(list.pieces).subspan(window.first_piece, window.piece_count);
  for (const Piece& piece : pieces) {
    const auto from =
        bytes.subspan(static_cast<size_t>(piece.offset - window.begin),
                      static_cast<size_t>(piece.hull()));
    write(piece, from, run, buffers);
    written += piece.elements() * size_of(piece.to);
  }
  run.flush();
  progress(written);
}

void Executor::write(const Piece& piece, std::span<const std::byte> from,
                     Run& run, Buffers& buffers) {
  const uint64_t from_size = size_of(piece.from);
  const uint64_t to_size = size_of(piece.to);
  // Long unchanged runs go out straight from where they were read.
  if (piece.count == 1 && piece.from == piece.to && !piece.change &&
      from.size() >= buffers.scratch.size() / 16) {
    run.flush();
    sink_.write(piece.target, piece.destination, from);
    return;
  }
  const uint64_t most = buffers.scratch.size() / to_size;
  uint64_t destination = piece.destination;
  for (uint64_t r = 0; r < piece.count; ++r) {
    const auto source =
        from.subspan(static_cast<size_t>(r * piece.stride),
                     static_cast<size_t>(piece.numel * from_size));
    for (uint64_t done = 0; done < piece.numel;) {
      const uint64_t count = std::min(most, piece.numel - done);
      const auto out = run.take(piece.target, destination, count * to_size);
      const auto in = source.subspan(static_cast<size_t>(done * from_size),
                                     static_cast<size_t>(count * from_size));
      if (piece.change) {
        changes_->apply({.change = *piece.change,
                         .first = (destination - piece.tensor_begin) / to_size,
                         .from = piece.from,
                         .to = piece.to,
                         .worker = buffers.worker},
                        in, out, buffers.counts);
      } else {
        cast(piece.from, in, piece.to, out, buffers.counts);
      }
      done += count;
      destination += count * to_size;
    }
  }
}

void Executor::progress(uint64_t written) {
  if (options_.observer == nullptr) return;
  const uint64_t done = written_.fetch_add(written) + written;
  options_.observer->progress(done, total_);
}

}  // namespace zckpt
