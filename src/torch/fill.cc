// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/fill.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/cast.h"
#include "base/text.h"
#include "zckpt/error.h"
#include "zckpt/torch.h"

namespace zckpt {
namespace {

// What goes through temporaries has a stream of its own.
using Staged = std::unordered_map<const Tensor*, std::vector<const Fill*>>;

// Progress of a part of the work, told as progress of all of it.
class PartObserver : public Observer {
 public:
  PartObserver(Observer* whole, uint64_t total)
      : whole_(whole), total_(total) {}
  void note(std::string_view message) override {
    if (whole_ != nullptr) whole_->note(message);
  }
  void progress(uint64_t done, uint64_t part) override {
    if (whole_ == nullptr || part == 0) return;
    // Parts may count other bytes than their targets have.
    const double share = static_cast<double>(done) / static_cast<double>(part);
    whole_->progress(
        before_ + static_cast<uint64_t>(share * static_cast<double>(size_)),
        total_);
  }
  void begin_part(uint64_t size) {
    before_ += size_;
    size_ = size;
  }

 private:
  Observer* whole_;
  uint64_t total_;
  uint64_t before_ = 0;
  uint64_t size_ = 0;
};

void check(const Checkpoint& checkpoint, const Fill& fill) {
  const std::span<const Tensor> all = checkpoint.tensors();
  if (fill.tensor < all.data() || fill.tensor >= all.data() + all.size()) {
    throw Error(ErrorCode::Invalid, "not a tensor of this checkpoint");
  }
  const at::Tensor& target = fill.target;
  if (!target.defined()) {
    throw Error(ErrorCode::Invalid, "the tensor to load into is undefined",
                {.tensor = fill.name});
  }
  if (target.is_meta()) {
    throw Error(ErrorCode::Invalid,
                "the tensor to load into is on the meta device, which holds "
                "no values",
                {.tensor = fill.name});
  }
  if (!has_shape_of(target, *fill.tensor)) {
    throw Error(ErrorCode::Conflict,
                "the tensor to load into has another shape than the "
                "checkpoint's",
                {.tensor = fill.name});
  }
  if (!converts(fill.tensor->dtype, target.scalar_type())) {
    throw Error(ErrorCode::Unsupported,
                "cannot convert " +
                    std::string(short_name(fill.tensor->dtype)) + " to " +
                    c10::toString(target.scalar_type()),
                {.tensor = fill.name});
  }
}

// The dtype of the target, where the core converts to it.
std::optional<DType> own_conversion(const Fill& fill) {
  for (const DType dtype :
       {fill.tensor->dtype, DType::F32, DType::BF16, DType::F16}) {
    if (to_scalar_type(dtype) == fill.target.scalar_type() &&
        can_cast(fill.tensor->dtype, dtype)) {
      return dtype;
    }
  }
  return std::nullopt;
}

bool is_plain_memory(const at::Tensor& target) {
  return target.device().is_cpu() && target.layout() == at::kStrided &&
         target.has_storage() && target.is_contiguous() && !target.is_conj() &&
         !target.is_neg();
}

std::span<std::byte> memory_of(const at::Tensor& target) {
  return {static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()};
}

// Several threads write at once, so no two targets may overlap; the same
// tensor twice is written once.
void drop_repeated(std::vector<LoadTarget>& targets) {
  std::sort(targets.begin(), targets.end(),
            [](const LoadTarget& a, const LoadTarget& b) {
              return a.out.data() < b.out.data();
            });
  const auto same = [](const LoadTarget& a, const LoadTarget& b) {
    return a.tensor == b.tensor && a.dtype == b.dtype &&
           a.out.data() == b.out.data();
  };
  targets.erase(std::unique(targets.begin(), targets.end(), same),
                targets.end());
  for (size_t i = 1; i < targets.size(); ++i) {
    const LoadTarget& before = targets[i - 1];
    if (before.out.data() + before.out.size() > targets[i].out.data()) {
      throw Error(ErrorCode::Invalid,
                  "its target shares memory with that of " +
                      escape(before.tensor->name),
                  {.tensor = targets[i].tensor->name});
    }
  }
}

void copy_into(const Fill& fill, const at::Tensor& values) {
  try {
    with_own_errors([&] { fill.target.copy_(values); });
  } catch (Error& error) {
    error.in_tensor(fill.name);
    throw;
  }
}

void add(LoadResult& sum, const LoadResult& part) {
  sum.overflowed += part.overflowed;
  sum.checked_records += part.checked_records;
  sum.unchecked_records += part.unchecked_records;
  sum.bytes_read += part.bytes_read;
}

class Filler {
 public:
  Filler(const Checkpoint& checkpoint, std::span<const Fill> fills,
         const LoadOptions& options)
      : checkpoint_(checkpoint),
        options_(options),
        observer_(options.observer, total_bytes(fills)) {
    for (const Fill& fill : fills) check(checkpoint, fill);
    for (const Fill& fill : fills) sort(fill);
    drop_repeated(direct_);
    options_.observer = &observer_;
  }

  LoadResult run() {
    const at::NoGradGuard no_grad;
    load_direct();
    for (const auto& [dtype, staged] : staged_) load_staged(dtype, staged);
    return result_;
  }

 private:
  static uint64_t total_bytes(std::span<const Fill> fills) {
    uint64_t total = 0;
    for (const Fill& fill : fills) {
      if (fill.target.defined()) total += size_of_target(fill);
    }
    return total;
  }
  static uint64_t size_of_target(const Fill& fill) {
    return static_cast<uint64_t>(fill.target.numel() *
                                 fill.target.element_size());
  }

  void sort(const Fill& fill) {
    if (fill.tensor->numel == 0) return;
    const std::optional<DType> dtype = own_conversion(fill);
    if (dtype && is_plain_memory(fill.target)) {
      direct_.push_back({.tensor = fill.tensor,
                         .numel = fill.tensor->numel,
                         .dtype = *dtype,
                         .out = memory_of(fill.target)});
      written_.push_back(&fill.target);
      return;
    }
    // A stream converts floating tensors only, and all of them alike.
    const bool as_stored = !dtype || *dtype == fill.tensor->dtype;
    staged_[as_stored ? std::nullopt : dtype][fill.tensor].push_back(&fill);
  }

  void load_direct() {
    if (direct_.empty()) return;
    uint64_t size = 0;
    for (const LoadTarget& target : direct_) size += target.out.size();
    observer_.begin_part(size);
    // Also where reading fails: part of it was written.
    for (const at::Tensor* target : written_) {
      if (target->is_inference()) continue;
      target->unsafeGetTensorImpl()->bump_version();
    }
    add(result_, load(checkpoint_, direct_, options_));
  }

  void load_staged(std::optional<DType> dtype, const Staged& staged) {
    uint64_t size = 0;
    for (const auto& [tensor, fills] : staged) {
      for (const Fill* fill : fills) size += size_of_target(*fill);
    }
    observer_.begin_part(size);
    TorchStream stream(
        checkpoint_,
        {.wanted = [&](const Tensor& t) { return staged.contains(&t); },
         .dtype = dtype,
         .load = options_});
    while (const std::optional<NamedTensor> next = stream.next()) {
      for (const Fill* fill : staged.at(next->source)) {
        copy_into(*fill, next->data);
      }
    }
    add(result_, stream.result());
  }

  const Checkpoint& checkpoint_;
  LoadOptions options_;
  PartObserver observer_;
  std::vector<LoadTarget> direct_;
  std::vector<const at::Tensor*> written_;
  std::map<std::optional<DType>, Staged> staged_;
  LoadResult result_;
};

}  // namespace

at::Tensor make_tensor(const Tensor& tensor, at::ScalarType type) {
  std::vector<int64_t> shape;
  for (const uint64_t size : tensor.shape) {
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw Error(ErrorCode::Limit,
                  "a dimension is larger than libtorch counts",
                  {.tensor = tensor.name});
    }
    shape.push_back(static_cast<int64_t>(size));
  }
  try {
    return at::empty(shape, at::TensorOptions().dtype(type).device(at::kCPU));
  } catch (const c10::Error&) {  // all else about it was checked
    throw Error(
        ErrorCode::Limit,
        "no memory for a tensor of " + format_count(tensor.numel) + " elements",
        {.tensor = tensor.name});
  }
}

bool has_shape_of(const at::Tensor& target, const Tensor& tensor) {
  return std::equal(
      target.sizes().begin(), target.sizes().end(), tensor.shape.begin(),
      tensor.shape.end(),
      [](int64_t a, uint64_t b) { return static_cast<uint64_t>(a) == b; });
}

bool converts(DType stored, at::ScalarType target) {
  // libtorch would also make integers of floats, and halve wide ones.
  return is_floating(stored) ? c10::isFloatingType(target)
                             : to_scalar_type(stored) == target;
}

LoadResult fill(const Checkpoint& checkpoint, std::span<const Fill> fills,
                const LoadOptions& options) {
  return with_own_errors(
      [&] { return Filler(checkpoint, fills, options).run(); });
}

}  // namespace zckpt
