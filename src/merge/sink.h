// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace zckpt {

// Where elements go once they are read and converted: files of an output, or a
// caller's memory. Targets are numbered; offsets are in bytes of a target.
// Every byte is given once, in any order.
// Threads: disjoint ranges may be given concurrently.
class Sink {
 public:
  virtual ~Sink() = default;
  // Memory for a range of `target`, to be filled at once in write()'s place;
  // empty where there is none, and the range is handed to write().
  virtual std::span<std::byte> room(uint32_t /*target*/, uint64_t /*offset*/,
                                    uint64_t /*size*/) {
    return {};
  }
  virtual void write(uint32_t target, uint64_t offset,
                     std::span<const std::byte> bytes) = 0;
};

}  // namespace zckpt
