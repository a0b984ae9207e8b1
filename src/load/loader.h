// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "load/memory_sink.h"
#include "merge/executor.h"
#include "zckpt/load.h"

namespace zckpt {

// Loader fills targets in any number of turns; records are compared across
// them. Errors and memory: as load().
class Loader {
 public:
  // `checkpoint` must outlive this; `total` bytes are what progress counts to.
  Loader(const Checkpoint& checkpoint, const LoadOptions& options,
         uint64_t total);

  void load(std::span<const LoadTarget> targets);
  // Compares what is left of the records begun.
  void finish() { executor_.finish(); }
  LoadResult result() const;

 private:
  const Checkpoint& checkpoint_;
  const MergeOptions options_;
  MemorySink sink_;
  Executor executor_;
};

}  // namespace zckpt
