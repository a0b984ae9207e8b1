// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cast.h"
#include "base/page_buffer.h"
#include "merge/changes.h"
#include "merge/record_checks.h"
#include "merge/sink.h"
#include "merge/windows.h"
#include "zckpt/merge.h"

namespace zckpt {

// Executor copies planned tensors into a sink. Reads follow the order of the
// sources, not that in which tensors were added: what is adjacent in a file is
// read at once, whatever tensors it belongs to, in runs of up to
// options.chunk_bytes; each run's elements then go to where they belong.
// Errors:  Corrupt where a record's CRC differs, Io, Limit, Interrupted.
// Threads: uses options.open.threads of its own; calls come from one thread.
// Memory:  options.memory_bytes for buffers, and some MB for pieces ahead.
class Executor {
 public:
  // `changes` may be null where no tensor has one; `total` bytes are what
  // progress counts to. What is referred to must outlive this.
  Executor(const Checkpoint& checkpoint, const MergeOptions& options,
           Changes* changes, Sink& sink, uint64_t total);

  void add(const PlannedTensor& tensor, uint32_t target);
  // A whole source, as it is.
  void add_copy(uint32_t source, uint64_t size, uint32_t target);
  // Does what was added and is not done yet.
  void flush();
  // flush(), then reads what is missing of the records begun, padding behind
  // the last tensor and gaps, so that their CRCs can be compared.
  void finish();

  // Adds what was done so far.
  void report(MergeResult& result) const;

 private:
  // The buffers of one worker.
  struct Buffers {
    int worker = 0;
    PageBuffer read;
    std::vector<std::byte> scratch;
    CastCounts counts;
  };
  class Run;

  void size_buffers();
  RecordChecks* checks();
  std::span<const std::byte> read(uint32_t source, uint64_t begin, uint64_t end,
                                  Buffers& buffers);
  void run_window(const WindowList& list, const Window& window,
                  Buffers& buffers);
  void write(const Piece& piece, std::span<const std::byte> from, Run& run,
             Buffers& buffers);
  void progress(uint64_t written);

  const Checkpoint& checkpoint_;
  const SourceSet& sources_;
  const MergeOptions& options_;
  Changes* changes_;
  Sink& sink_;
  const uint64_t total_;
  int threads_;
  uint64_t capacity_ = 0;
  RecordChecks checks_;
  std::vector<Buffers> buffers_;
  std::vector<Piece> pieces_;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> reads_{0};
  std::atomic<uint64_t> bytes_read_{0};
};

}  // namespace zckpt
