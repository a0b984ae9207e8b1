// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/execute.h"

#include <algorithm>
#include <vector>

#include "merge/executor.h"
#include "merge/file_sink.h"

namespace zckpt {
namespace {

// Output files that are written at a time: with the sources below 128.
constexpr size_t kOpenFiles = 48;

void execute_files(const Plan& plan, size_t first, size_t end, FileSink& sink,
                   Executor& executor) {
  // In the order of the sources, as far as the index knows it: tensors of
  // one group follow each other in every rank's file.
  struct Target {
    const PlannedTensor* tensor;
    uint32_t file;
  };
  std::vector<Target> targets;
  for (size_t f = first; f < end; ++f) {
    const PlannedFile& planned = plan.files[f];
    const auto file = static_cast<uint32_t>(f);
    sink.write_header(file);
    if (planned.copy_of) {
      executor.add_copy(*planned.copy_of, planned.size_bytes, file);
    }
    for (const PlannedTensor& tensor : planned.tensors) {
      targets.push_back({&tensor, file});
    }
  }
  std::stable_sort(
      targets.begin(), targets.end(), [](const Target& a, const Target& b) {
        return a.tensor->runs.front().tensor < b.tensor->runs.front().tensor;
      });
  for (const Target& target : targets) {
    executor.add(*target.tensor, target.file);
  }
  executor.flush();
  for (size_t f = first; f < end; ++f) {
    sink.write_rest(static_cast<uint32_t>(f));
  }
}

}  // namespace

void execute(const Checkpoint& checkpoint, const Plan& plan,
             const MergeOptions& options, Changes* changes, Output& output,
             MergeResult& result) {
  FileSink sink(plan, output);
  Executor executor(checkpoint, options, changes, sink, plan.data_bytes);
  // A file is open from its first byte to its last, so only some of them
  // are begun at a time. Shards follow the module's order, as the sources
  // do: each group reads its own stretch of every source.
  const size_t count = plan.files.size();
  for (size_t first = 0; first < count; first += kOpenFiles) {
    execute_files(plan, first, std::min(count, first + kOpenFiles), sink,
                  executor);
  }
  executor.finish();
  executor.report(result);
}

}  // namespace zckpt
