// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reader/layout.h"

namespace zckpt {
namespace {

// A strided view. Dimensions that lie without gaps are folded: `run` elements
// follow each other, `count` such runs lie `step` elements apart, and what is
// left are outer dimensions that are counted through.
class ViewPlacement final : public Placement {
 public:
  ViewPlacement(uint32_t source, const TensorView& view)
      : source_(source), offset_(view.offset), size_(size_of(view.dtype)) {
    size_t d = view.shape.size();
    // Innermost first: extend the run while strides are those of C order.
    for (; d > 0; --d) {
      const uint64_t extent = view.shape[d - 1];
      if (extent != 1 && view.stride[d - 1] != run_) break;
      run_ *= extent;
    }
    for (; d > 0; --d) {
      if (view.shape[d - 1] == 1) continue;
      shape_.push_back(view.shape[d - 1]);  // innermost first
      stride_.push_back(view.stride[d - 1]);
    }
  }

  void extents(uint64_t first, uint64_t numel,
               const ExtentSink& sink) const override {
    while (numel != 0) {
      const uint64_t within = first % run_;
      const uint64_t run = first / run_;
      const uint64_t start = offset_ + (run_offset(run) + within) * size_;
      uint64_t take = std::min(numel, run_ - within);
      if (within == 0 && take == run_ && !shape_.empty()) {
        // Whole runs along the innermost strided dimension are one extent.
        const uint64_t runs =
            std::min(numel / run_, shape_[0] - run % shape_[0]);
        sink({.source = source_,
              .offset = start,
              .count = runs,
              .numel = run_,
              .stride = stride_[0] * size_});
        take = runs * run_;
      } else {
        sink({.source = source_, .offset = start, .numel = take});
      }
      first += take;
      numel -= take;
    }
  }

 private:
  // Elements from the view's start to run number `run`.
  uint64_t run_offset(uint64_t run) const {
    uint64_t offset = 0;
    for (size_t d = 0; d < shape_.size(); ++d) {
      offset += run % shape_[d] * stride_[d];
      run /= shape_[d];
    }
    return offset;
  }

  uint32_t source_;
  uint64_t offset_;
  uint64_t size_;
  uint64_t run_ = 1;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> stride_;
};

}  // namespace

std::unique_ptr<const Placement> place_view(uint32_t source,
                                            const TensorView& view) {
  return std::make_unique<ViewPlacement>(source, view);
}

}  // namespace zckpt
