// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "reader/layout.h"

namespace zckpt {

// Concatenation is a flat buffer whose pieces lie in several files: what the
// ranks hold of one optimizer group, one after the other.
// Memory: O(pieces).
class Concatenation {
 public:
  void append(uint32_t source, uint64_t offset, uint64_t numel, DType dtype);

  uint64_t numel() const { return starts_.back(); }
  DType dtype() const { return dtype_; }
  void extents(uint64_t first, uint64_t numel, const ExtentSink& sink) const;
  // Where each piece begins; one more than pieces.
  const std::vector<uint64_t>& starts() const { return starts_; }

 private:
  struct Piece {
    uint32_t source;
    uint64_t offset;
  };

  DType dtype_ = DType::F32;
  std::vector<Piece> pieces_;
  std::vector<uint64_t> starts_{0};
};

// A tensor that begins `start` elements into `flat`.
std::unique_ptr<const Placement> place_slice(
    std::shared_ptr<const Concatenation> flat, uint64_t start);

}  // namespace zckpt
