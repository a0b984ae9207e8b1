// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/load.h"

#include <set>
#include <utility>

#include "load/loader.h"
#include "merge/write.h"

namespace zckpt {

Checkpoint open_for_load(const std::string& path, const OpenOptions& options,
                         std::vector<Finding>* findings) {
  MergeOptions opening;
  opening.open = options;
  opening.exclude_frozen = true;  // no error where the save left them out
  CheckedCheckpoint checked = open_checked(path, opening);
  check_own_copies(*checked.checkpoint, opening);
  if (findings != nullptr) *findings = std::move(checked.findings);
  return std::move(*checked.checkpoint);
}

LoadResult load(const Checkpoint& checkpoint,
                std::span<const LoadTarget> targets,
                const LoadOptions& options) {
  uint64_t total = 0;
  for (const LoadTarget& target : targets) total += target.out.size();
  Loader loader(checkpoint, options, total);
  loader.load(targets);
  loader.finish();
  return loader.result();
}

std::vector<const Tensor*> weights_of(const Checkpoint& checkpoint) {
  std::vector<const Tensor*> weights;
  for (const Tensor& tensor : checkpoint.tensors()) {
    if (tensor.role != Role::State && checkpoint.find(tensor.name) == &tensor) {
      weights.push_back(&tensor);
    }
  }
  return weights;
}

}  // namespace zckpt
