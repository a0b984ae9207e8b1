// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/dtype.h"
#include "zckpt/finding.h"
#include "zckpt/merge.h"
#include "zckpt/observer.h"

namespace zckpt {

// Reading a checkpoint into memory: what loaders and converters need.

// Opens the checkpoint at `path` (the newest of a run) after all checks that
// merge makes before it writes: shards of one save, complete, a sample of every
// weight equal to the model's own copy. Weights that the save left out are no
// error here: the checkpoint lacks their tensors, and facts() says so.
// Errors: as merge(). `findings` receives warnings and notes; may be null.
Checkpoint open_for_load(const std::string& path,
                         const OpenOptions& options = {},
                         std::vector<Finding>* findings = nullptr);

struct LoadOptions {
  // None: CRCs are not compared. Sample: of records that are read nearly
  // whole. Full: of every record that is touched, which reads the rest of it.
  Check check = Check::Sample;
  int threads = 0;                   // 0: one per core, at most 4
  uint64_t memory_bytes = 16 << 20;  // for buffers, all threads together
  uint64_t chunk_bytes = 4 << 20;    // the most that is read at once
  const StopToken* stop = nullptr;
  Observer* observer = nullptr;  // progress counts bytes of the targets
};

// Elements [first, first + numel) of a tensor, in C order, and where they go.
struct LoadTarget {
  const Tensor* tensor = nullptr;  // one of the checkpoint's tensors()
  uint64_t first = 0;
  uint64_t numel = 0;
  DType dtype = DType::F32;  // what they are converted to
  std::span<std::byte> out;  // numel * size_of(dtype) bytes
};

struct LoadResult {
  uint64_t overflowed = 0;         // finite values that became infinite
  uint64_t checked_records = 0;    // CRCs compared
  uint64_t unchecked_records = 0;  // read whole, but their writer left no CRC
  uint64_t bytes_read = 0;
};

// Fills all targets; what is adjacent in a file is read at once, whatever
// tensors it belongs to, so one call for many tensors is faster than many.
// Errors:  Corrupt where a CRC differs (the targets hold no sense then);
//          Unsupported where a dtype cannot be converted; Invalid for a target
//          that is not the checkpoint's or whose buffer has another size;
//          Conflict where a file was replaced or written to since the
//          checkpoint was opened; Limit, Io, Interrupted.
// Threads: uses options.threads of its own; calls may run concurrently.
// Memory:  options.memory_bytes beside the targets.
LoadResult load(const Checkpoint& checkpoint,
                std::span<const LoadTarget> targets,
                const LoadOptions& options = {});

// The weights of a checkpoint: for each name the best tensor (see Role), in
// the order of the files. Aliases are in facts().
std::vector<const Tensor*> weights_of(const Checkpoint& checkpoint);

enum class StreamOrder {
  File,  // as tensors lie in the files: the fastest
  Name,
};

struct StreamOptions {
  // Which tensors; empty: the weights.
  std::function<bool(const Tensor&)> wanted;
  // What floating tensors are converted to; none: as they are stored.
  std::optional<DType> dtype;
  StreamOrder order = StreamOrder::File;
  // The stream's own buffer, beside load.memory_bytes. Tensors that do not fit
  // come in pieces.
  uint64_t buffer_bytes = 64 << 20;
  LoadOptions load;
};

// A run of elements of a tensor; all of it unless it is larger than the
// stream's buffer.
struct StreamPiece {
  const Tensor* tensor = nullptr;
  uint64_t first = 0;
  uint64_t numel = 0;
  DType dtype = DType::F32;          // of the bytes
  std::span<const std::byte> bytes;  // valid until the next call of next()
};

// TensorStream hands out tensors one after the other in bounded memory:
//
//   TensorStream stream(checkpoint, {.dtype = DType::BF16});
//   while (const auto piece = stream.next()) copy(*piece);
//
// Errors:  as load(). A record's CRC is compared once all of it was read: what
//          was handed out before counts only when next() has returned nothing.
// Threads: one at a time. Memory: the two budgets of the options.
class TensorStream {
 public:
  // `checkpoint` must outlive the stream.
  TensorStream(const Checkpoint& checkpoint, StreamOptions options);
  TensorStream(const TensorStream&) = delete;
  TensorStream& operator=(const TensorStream&) = delete;
  ~TensorStream();

  // The next piece; nothing behind the last, when all CRCs were compared.
  // After an error every call throws it again.
  std::optional<StreamPiece> next();
  // Whether the next piece is in memory already, and next() reads nothing.
  bool is_buffered() const;
  // Bytes that all pieces have together.
  uint64_t size_bytes() const;
  // What was counted so far.
  LoadResult result() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace zckpt
