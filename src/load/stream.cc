// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>
#include <utility>

#include "load/loader.h"
#include "zckpt/error.h"
#include "zckpt/load.h"

namespace zckpt {
namespace {

// Data of a tensor begins at multiples of this in the buffer, so that it can
// be used in place.
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kLargestElement = 8;

}  // namespace

class TensorStream::State {
 public:
  State(const Checkpoint& checkpoint, StreamOptions options)
      : options_(std::move(options)),
        tensors_(selected(checkpoint)),
        total_(count_bytes()),
        loader_(checkpoint, options_.load, total_) {
    if (options_.buffer_bytes < kLargestElement) {
      throw Error(ErrorCode::Limit, "a buffer of " +
                                        std::to_string(options_.buffer_bytes) +
                                        " bytes holds no element");
    }
  }

  std::optional<StreamPiece> next() {
    if (failure_) std::rethrow_exception(failure_);
    if (!is_buffered() && !fill_or_fail()) return std::nullopt;
    const LoadTarget& target = batch_[given_++];
    return StreamPiece{.tensor = target.tensor,
                       .first = target.first,
                       .numel = target.numel,
                       .dtype = target.dtype,
                       .bytes = target.out};
  }

  bool is_buffered() const { return given_ < batch_.size(); }
  uint64_t size_bytes() const { return total_; }
  LoadResult result() const { return loader_.result(); }

 private:
  std::vector<const Tensor*> selected(const Checkpoint& checkpoint) const {
    std::vector<const Tensor*> tensors;
    if (!options_.wanted) {
      tensors = weights_of(checkpoint);
    } else {
      for (const Tensor& tensor : checkpoint.tensors()) {
        if (options_.wanted(tensor)) tensors.push_back(&tensor);
      }
    }
    if (options_.order == StreamOrder::Name) {
      std::stable_sort(
          tensors.begin(), tensors.end(),
          [](const Tensor* a, const Tensor* b) { return a->name < b->name; });
    }
    return tensors;
  }

  DType dtype_of(const Tensor& tensor) const {
    return is_floating(tensor.dtype) ? options_.dtype.value_or(tensor.dtype)
                                     : tensor.dtype;
  }

  uint64_t count_bytes() const {
    uint64_t bytes = 0;
    for (const Tensor* tensor : tensors_) {
      bytes += tensor->numel * size_of(dtype_of(*tensor));
    }
    return bytes;
  }

  // What was read when it failed is none of the caller's.
  bool fill_or_fail() {
    try {
      return fill();
    } catch (...) {
      failure_ = std::current_exception();
      batch_.clear();
      given_ = 0;
      throw;
    }
  }

  // Reads as many whole tensors as the buffer holds, or a piece of one.
  bool fill() {
    batch_.clear();
    given_ = 0;
    std::vector<uint64_t> offsets;
    uint64_t used = 0;
    while (next_tensor_ < tensors_.size()) {
      const Tensor& tensor = *tensors_[next_tensor_];
      const DType dtype = dtype_of(tensor);
      const uint64_t size = size_of(dtype);
      const uint64_t begin = (used + kAlignment - 1) / kAlignment * kAlignment;
      const uint64_t room =
          begin < options_.buffer_bytes ? options_.buffer_bytes - begin : 0;
      const uint64_t left = tensor.numel - next_element_;
      const bool fits = left <= room / size;
      if (!fits && !batch_.empty()) break;
      const uint64_t numel = fits ? left : room / size;
      batch_.push_back({.tensor = &tensor,
                        .first = next_element_,
                        .numel = numel,
                        .dtype = dtype,
                        .out = {}});
      offsets.push_back(begin);
      used = begin + numel * size;
      next_element_ += numel;
      if (!fits) break;
      ++next_tensor_;
      next_element_ = 0;
    }
    if (batch_.empty()) {
      if (!finished_) loader_.finish();
      finished_ = true;
      return false;
    }
    buffer_.reserve(static_cast<size_t>(used));
    const std::span<std::byte> buffer =
        buffer_.first(static_cast<size_t>(used));
    for (size_t i = 0; i < batch_.size(); ++i) {
      batch_[i].out = buffer.subspan(
          static_cast<size_t>(offsets[i]),
          static_cast<size_t>(batch_[i].numel * size_of(batch_[i].dtype)));
    }
    loader_.load(batch_);
    return true;
  }

  const StreamOptions options_;
  const std::vector<const Tensor*> tensors_;
  const uint64_t total_;
  Loader loader_;
  PageBuffer buffer_;
  std::vector<LoadTarget> batch_;
  size_t given_ = 0;
  size_t next_tensor_ = 0;
  uint64_t next_element_ = 0;  // of it
  bool finished_ = false;
  std::exception_ptr failure_;
};

TensorStream::TensorStream(const Checkpoint& checkpoint, StreamOptions options)
    : state_(std::make_unique<State>(checkpoint, std::move(options))) {}

TensorStream::~TensorStream() = default;

std::optional<StreamPiece> TensorStream::next() { return state_->next(); }
bool TensorStream::is_buffered() const { return state_->is_buffered(); }
uint64_t TensorStream::size_bytes() const { return state_->size_bytes(); }
LoadResult TensorStream::result() const { return state_->result(); }

}  // namespace zckpt
