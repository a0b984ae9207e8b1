// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "merge/sink.h"

namespace zckpt {

// Buffers in memory as a sink.
class MemorySink : public Sink {
 public:
  uint32_t add(std::span<std::byte> target) {
    targets_.push_back(target);
    return static_cast<uint32_t>(targets_.size() - 1);
  }
  void clear() { targets_.clear(); }

  std::span<std::byte> room(uint32_t target, uint64_t offset,
                            uint64_t size) override {
    return targets_[target].subspan(static_cast<size_t>(offset),
                                    static_cast<size_t>(size));
  }
  void write(uint32_t target, uint64_t offset,
             std::span<const std::byte> bytes) override {
    std::ranges::copy(bytes, room(target, offset, bytes.size()).begin());
  }

 private:
  std::vector<std::span<std::byte>> targets_;
};

}  // namespace zckpt
