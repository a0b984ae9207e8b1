// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "load/loader.h"

#include <vector>

#include "reader/checkpoint_data.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

MergeOptions merge_options(const LoadOptions& options) {
  MergeOptions merging;
  merging.check = options.check;
  merging.open.threads = options.threads;
  merging.open.stop = options.stop;
  merging.memory_bytes = options.memory_bytes;
  merging.chunk_bytes = options.chunk_bytes;
  merging.observer = options.observer;
  return merging;
}

// The place of `target`'s tensor among the checkpoint's.
uint32_t check(const Checkpoint& checkpoint, const LoadTarget& target) {
  const std::span<const Tensor> tensors = checkpoint.tensors();
  const auto index = static_cast<size_t>(target.tensor - tensors.data());
  if (index >= tensors.size()) {
    throw Error(ErrorCode::Invalid, "not a tensor of this checkpoint");
  }
  check_read(tensors[index], target.first, target.numel, target.dtype,
             target.out.size());
  return static_cast<uint32_t>(index);
}

}  // namespace

Loader::Loader(const Checkpoint& checkpoint, const LoadOptions& options,
               uint64_t total)
    : checkpoint_(checkpoint),
      options_(merge_options(options)),
      executor_(checkpoint, options_, nullptr, sink_, total) {}

void Loader::load(std::span<const LoadTarget> targets) {
  std::vector<PlannedTensor> planned;
  planned.reserve(targets.size());
  for (const LoadTarget& target : targets) {
    const PlannedRun run{.tensor = check(checkpoint_, target),
                         .first = target.first,
                         .numel = target.numel};
    planned.push_back({.name = target.tensor->name,
                       .dtype = target.dtype,
                       .size_bytes = target.out.size(),
                       .runs = {run}});
  }
  sink_.clear();
  for (size_t i = 0; i < targets.size(); ++i) {
    executor_.add(planned[i], sink_.add(targets[i].out));
  }
  executor_.flush();
}

LoadResult Loader::result() const {
  MergeResult counts;
  executor_.report(counts);
  return {.overflowed = counts.overflowed,
          .checked_records = counts.checked_records,
          .unchecked_records = counts.unchecked_records,
          .bytes_read = counts.bytes_read};
}

}  // namespace zckpt
