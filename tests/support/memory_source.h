// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/file.h"
#include "zckpt/error.h"

namespace zckpt::test {

// MemorySource is a ByteSource over a string, with the errors of FileSource.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string bytes, std::string name = "memory")
      : bytes_(std::move(bytes)), name_(std::move(name)) {}

  uint64_t size() const override { return bytes_.size(); }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      throw Error(ErrorCode::Corrupt, "read past the end",
                  {.file = name_, .offset = offset});
    }
    if (out.empty()) return;  // may have no address, which memcpy rejects
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }
  const std::string& name() const override { return name_; }

 private:
  std::string bytes_;
  std::string name_;
};

}  // namespace zckpt::test
