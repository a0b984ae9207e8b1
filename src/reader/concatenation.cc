// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/concatenation.h"

#include <algorithm>
#include <utility>

#include "base/arithmetic.h"

namespace zckpt {
namespace {

class SlicePlacement final : public Placement {
 public:
  SlicePlacement(std::shared_ptr<const Concatenation> flat, uint64_t start)
      : flat_(std::move(flat)), start_(start) {}

  void extents(uint64_t first, uint64_t numel,
               const ExtentSink& sink) const override {
    flat_->extents(start_ + first, numel, sink);
  }

 private:
  std::shared_ptr<const Concatenation> flat_;
  uint64_t start_;
};

}  // namespace

void Concatenation::append(uint32_t source, uint64_t offset, uint64_t numel,
                           DType dtype) {
  if (numel == 0) return;
  if (!pieces_.empty() && dtype != dtype_) {
    throw Error(
        ErrorCode::Corrupt,
        "ranks hold different dtypes: " + std::string(short_name(dtype_)) +
            " and " + std::string(short_name(dtype)));
  }
  dtype_ = dtype;
  pieces_.push_back({source, offset});
  starts_.push_back(checked_add(starts_.back(), numel, "a group"));
}

void Concatenation::extents(uint64_t first, uint64_t numel,
                            const ExtentSink& sink) const {
  if (numel == 0) return;
  size_t i = static_cast<size_t>(
      std::upper_bound(starts_.begin(), starts_.end(), first) -
      starts_.begin() - 1);
  for (; numel != 0; ++i) {
    const uint64_t take = std::min(numel, starts_[i + 1] - first);
    sink({.source = pieces_[i].source,
          .offset = pieces_[i].offset + (first - starts_[i]) * size_of(dtype_),
          .numel = take});
    first += take;
    numel -= take;
  }
}

std::unique_ptr<const Placement> place_slice(
    std::shared_ptr<const Concatenation> flat, uint64_t start) {
  return std::make_unique<SlicePlacement>(std::move(flat), start);
}

}  // namespace zckpt
