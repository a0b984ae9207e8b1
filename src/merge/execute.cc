// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/execute.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/cast.h"
#include "base/crc32.h"
#include "base/page_buffer.h"
#include "base/parallel.h"
#include "base/text.h"
#include "merge/windows.h"
#include "reader/checkpoint_data.h"

namespace zckpt {
namespace {

// Pieces planned ahead: enough that neighbours meet also with hundreds of
// ranks, few enough for some MB.
constexpr size_t kBatchPieces = size_t{1} << 16;
// Converted elements are written in runs of at most this many bytes.
constexpr uint64_t kScratchBytes = uint64_t{1} << 20;
constexpr uint64_t kLargestElement = 8;
// Output files that are written at a time: with the sources below 128.
constexpr size_t kOpenFiles = 48;

// The buffers of one worker.
struct Buffers {
  int worker = 0;
  PageBuffer read;
  std::vector<std::byte> scratch;
  CastCounts counts;
};

// Gathers adjacent output of one window into few writes.
class Run {
 public:
  Run(std::vector<Output::File*>& files, std::vector<std::byte>& scratch)
      : files_(files), scratch_(scratch) {}

  // Room for `size` bytes at `destination` of `file`; at most the scratch.
  std::span<std::byte> take(uint32_t file, uint64_t destination,
                            uint64_t size) {
    if (used_ != 0 && (file != file_ || destination != begin_ + used_ ||
                       size > scratch_.size() - used_)) {
      flush();
    }
    if (used_ == 0) {
      file_ = file;
      begin_ = destination;
    }
    const auto room = std::span(scratch_).subspan(static_cast<size_t>(used_),
                                                  static_cast<size_t>(size));
    used_ += size;
    return room;
  }

  void flush() {
    if (used_ == 0) return;
    files_[file_]->write_at(
        begin_, std::span(scratch_).first(static_cast<size_t>(used_)));
    used_ = 0;
  }

 private:
  std::vector<Output::File*>& files_;
  std::vector<std::byte>& scratch_;
  uint32_t file_ = 0;
  uint64_t begin_ = 0;
  uint64_t used_ = 0;
};

class Executor {
 public:
  Executor(const Checkpoint& checkpoint, const Plan& plan,
           const MergeOptions& options, Changes* changes,
           std::vector<Output::File*> files)
      : checkpoint_(checkpoint),
        sources_(*checkpoint.data().sources),
        plan_(plan),
        options_(options),
        changes_(changes),
        files_(std::move(files)),
        threads_(resolve_threads(options.open.threads)),
        checks_(sources_) {
    size_buffers();
  }

  void run() {
    // A file is open from its first byte to its last, so only some of them
    // are begun at a time. Shards follow the module's order, as the sources
    // do: each group reads its own stretch of every source.
    const size_t count = plan_.files.size();
    for (size_t first = 0; first < count; first += kOpenFiles) {
      run_files(first, std::min(count, first + kOpenFiles));
    }
    if (options_.check != Check::None) read_missing();
  }

  void report(MergeResult& result) const {
    for (const Buffers& buffers : buffers_) {
      result.overflowed += buffers.counts.overflowed;
    }
    result.checked_records += checks_.checked();
    result.unchecked_records += checks_.unchecked();
    result.reads = reads_;
    result.bytes_read = bytes_read_;
  }

 private:
  void size_buffers() {
    const uint64_t share =
        options_.memory_bytes / static_cast<uint64_t>(threads_);
    const uint64_t scratch = std::min(kScratchBytes, share / 4);
    capacity_ = std::min(options_.chunk_bytes, share - scratch);
    capacity_ = std::max(capacity_, kLargestElement);
    if (scratch < kLargestElement) {
      throw Error(ErrorCode::Limit,
                  "a memory budget of " +
                      std::to_string(options_.memory_bytes) +
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

  void run_files(size_t first, size_t end) {
    // In the order of the sources, as far as the index knows it: tensors of
    // one group follow each other in every rank's file.
    struct Target {
      const PlannedTensor* tensor;
      uint32_t file;
    };
    std::vector<Target> targets;
    for (size_t f = first; f < end; ++f) {
      const PlannedFile& planned = plan_.files[f];
      files_[f]->write_at(0, std::as_bytes(std::span(planned.header)));
      if (planned.copy_of) {
        const Extent all{.source = *planned.copy_of,
                         .numel = planned.size_bytes};
        split_extent(all,
                     {.file = static_cast<uint32_t>(f),
                      .from = DType::U8,
                      .to = DType::U8},
                     capacity_, pieces_);
      }
      for (const PlannedTensor& tensor : planned.tensors) {
        targets.push_back({&tensor, static_cast<uint32_t>(f)});
      }
    }
    std::stable_sort(
        targets.begin(), targets.end(), [](const Target& a, const Target& b) {
          return a.tensor->runs.front().tensor < b.tensor->runs.front().tensor;
        });
    for (const Target& target : targets) add(*target.tensor, target.file);
    run_batch();
  }

  RecordChecks* checks() {
    return options_.check == Check::None ? nullptr : &checks_;
  }

  void add(const PlannedTensor& planned, uint32_t file) {
    Piece piece{.file = file,
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
            if (pieces_.size() >= kBatchPieces) run_batch();
          });
    }
  }

  void run_batch() {
    const WindowList list = make_windows(pieces_, capacity_, checks());
    pieces_.clear();
    parallel_for(list.windows.size(), threads_, options_.open.stop,
                 [&](size_t i, int worker) {
                   run_window(list, list.windows[i],
                              buffers_[static_cast<size_t>(worker)]);
                 });
  }

  std::span<const std::byte> read(uint32_t source, uint64_t begin, uint64_t end,
                                  Buffers& buffers) {
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

  void run_window(const WindowList& list, const Window& window,
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
    Run run(files_, buffers.scratch);
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

  void write(const Piece& piece, std::span<const std::byte> from, Run& run,
             Buffers& buffers) {
    const uint64_t from_size = size_of(piece.from);
    const uint64_t to_size = size_of(piece.to);
    // Long unchanged runs go out straight from where they were read.
    if (piece.count == 1 && piece.from == piece.to && !piece.change &&
        from.size() >= buffers.scratch.size() / 16) {
      run.flush();
      files_[piece.file]->write_at(piece.destination, from);
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
        const auto out = run.take(piece.file, destination, count * to_size);
        const auto in = source.subspan(static_cast<size_t>(done * from_size),
                                       static_cast<size_t>(count * from_size));
        if (piece.change) {
          changes_->apply(
              {.change = *piece.change,
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

  // Padding behind the last tensor of a record and gaps between tensors, so
  // that a record's CRC can be compared.
  void read_missing() {
    const std::vector<ByteRange> ranges =
        checks_.missing(options_.check == Check::Full);
    parallel_for(
        ranges.size(), threads_, options_.open.stop, [&](size_t i, int worker) {
          const ByteRange& range = ranges[i];
          uint32_t crc = 0;
          for (uint64_t at = range.begin; at < range.end;) {
            const uint64_t end = std::min(range.end, at + capacity_);
            crc =
                crc32_update(crc, read(range.source, at, end,
                                       buffers_[static_cast<size_t>(worker)]));
            at = end;
          }
          checks_.add(range, crc);
        });
  }

  void progress(uint64_t written) {
    if (options_.observer == nullptr) return;
    const uint64_t done = written_.fetch_add(written) + written;
    options_.observer->progress(done, plan_.data_bytes);
  }

  const Checkpoint& checkpoint_;
  const SourceSet& sources_;
  const Plan& plan_;
  const MergeOptions& options_;
  Changes* changes_;
  std::vector<Output::File*> files_;
  int threads_;
  uint64_t capacity_ = 0;
  RecordChecks checks_;
  std::vector<Buffers> buffers_;
  std::vector<Piece> pieces_;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> reads_{0};
  std::atomic<uint64_t> bytes_read_{0};
};

}  // namespace

void execute(const Checkpoint& checkpoint, const Plan& plan,
             const MergeOptions& options, Changes* changes, Output& output,
             MergeResult& result) {
  std::vector<Output::File*> files;
  for (const PlannedFile& planned : plan.files) {
    files.push_back(&output.create(planned.name, planned.size_bytes));
  }
  Executor executor(checkpoint, plan, options, changes, std::move(files));
  executor.run();
  executor.report(result);
}

}  // namespace zckpt
