// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/file.h"

namespace zckpt::test {

// SparseSource is a large file of zeros that begins with `head` and ends with
// `tail`: for limits that no test should have to fill.
class SparseSource final : public ByteSource {
 public:
  SparseSource(std::string head, uint64_t size, std::string tail = "")
      : head_(std::move(head)), tail_(std::move(tail)), size_(size) {}

  uint64_t size() const override { return size_; }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = at(offset + i);
  }
  const std::string& name() const override { return name_; }

 private:
  std::byte at(uint64_t offset) const {
    const uint64_t tail_begin = size_ - tail_.size();
    char c = '\0';
    if (offset < head_.size()) c = head_[static_cast<size_t>(offset)];
    if (offset >= tail_begin) {
      c = tail_[static_cast<size_t>(offset - tail_begin)];
    }
    return static_cast<std::byte>(c);
  }

  std::string head_;
  std::string tail_;
  uint64_t size_;
  std::string name_ = "sparse";
};

}  // namespace zckpt::test
