// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "reader/checkpoint_data.h"
#include "zckpt/checkpoint.h"

namespace zckpt {

// Joined is several checkpoints seen as one, so that one plan can take
// elements from all of them. Tensors and sources of `main` keep their numbers,
// those of the others follow. Only main's tensors can be found by name.
class Joined {
 public:
  explicit Joined(const Checkpoint& main);

  // Returns the number that the first tensor of `other` has from now on.
  uint32_t add(const Checkpoint& other);
  // A file that is copied as it is; returns the number of its source.
  uint32_t add_file(const std::string& path, uint64_t size_bytes);
  // All that was added. REQUIRES: called once, last.
  Checkpoint finish();

 private:
  uint32_t add_sources(const CheckpointData& data);

  std::shared_ptr<CheckpointData> data_;
  std::shared_ptr<SourceSet> sources_;
};

}  // namespace zckpt
