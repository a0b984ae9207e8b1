// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/half.h"
#include "base/parallel.h"
#include "verify/checks.h"

namespace zckpt {
namespace {

// A sample is made of short runs: the same number of elements as single ones
// for a quarter of the reads.
constexpr uint64_t kRun = 16;
constexpr uint64_t kSampledRuns = 4;
constexpr uint64_t kWhole = 1024;  // tensors up to this size are read whole
constexpr uint64_t kChunk = uint64_t{1} << 16;

struct Range {
  uint64_t first;
  uint64_t numel;
};

// Elements as floats' bits; NaN becomes one value. Nothing for other dtypes.
std::optional<uint32_t> as_float_bits(DType dtype, const std::byte* at) {
  uint32_t wide = 0;
  uint16_t narrow = 0;
  switch (dtype) {
    case DType::F32: std::memcpy(&wide, at, 4); return wide;
    case DType::BF16:
      std::memcpy(&narrow, at, 2);
      return float_bits_from_bf16(narrow);
    case DType::F16:
      std::memcpy(&narrow, at, 2);
      return float_bits_from_fp16(narrow);
    default: return std::nullopt;
  }
}

bool is_nan(uint32_t bits) { return (bits & 0x7fffffffU) > 0x7f800000U; }

// What `bits` becomes in the model's dtype, as a float's bits again.
uint32_t rounded(uint32_t bits, DType dtype) {
  switch (dtype) {
    case DType::BF16: return float_bits_from_bf16(bf16_from_float_bits(bits));
    case DType::F16: return float_bits_from_fp16(fp16_from_float_bits(bits));
    default: return bits;
  }
}

std::optional<uint64_t> first_difference(const Tensor& a, const Tensor& b,
                                         uint64_t numel,
                                         const std::vector<std::byte>& master,
                                         const std::vector<std::byte>& copy) {
  const size_t master_size = size_of(a.dtype);
  const size_t copy_size = size_of(b.dtype);
  for (size_t i = 0; i < numel; ++i) {
    const uint32_t expected =
        rounded(*as_float_bits(a.dtype, &master[i * master_size]), b.dtype);
    const uint32_t found = *as_float_bits(b.dtype, &copy[i * copy_size]);
    if (expected != found && !(is_nan(expected) && is_nan(found))) return i;
  }
  return std::nullopt;
}

class CopyChecker {
 public:
  CopyChecker(const Checkpoint& checkpoint, bool full)
      : checkpoint_(checkpoint), full_(full) {}

  CopyCheck run(const OpenOptions& options) {
    for (const Tensor& tensor : checkpoint_.tensors()) {
      const Tensor* copy = own_copy(checkpoint_, tensor);
      if (copy == nullptr) continue;
      pairs_.push_back({&tensor, copy});
    }
    std::vector<std::optional<Finding>> found(pairs_.size());
    std::vector<uint64_t> counts(pairs_.size());
    parallel_for(
        pairs_.size(), resolve_threads(options.threads), options.stop,
        [&](size_t i, int) { found[i] = compare(pairs_[i], counts[i]); });
    CopyCheck result;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (found[i]) result.findings.push_back(*found[i]);
      result.elements += counts[i];
    }
    return result;
  }

 private:
  struct Pair {
    const Tensor* master;
    const Tensor* copy;
  };

  std::vector<Range> ranges(const Tensor& tensor) const {
    if (full_ || tensor.numel <= kWhole) return {{0, tensor.numel}};
    std::vector<Range> chosen;
    for (uint64_t i = 0; i < kSampledRuns; ++i) {
      // Evenly spread, the first run at the start, the last one at the end.
      const uint64_t first = (tensor.numel - kRun) / (kSampledRuns - 1) * i;
      chosen.push_back(
          {i + 1 == kSampledRuns ? tensor.numel - kRun : first, kRun});
    }
    uint64_t boundary = 0;
    checkpoint_.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
      boundary += extent.count * extent.numel;
      if (boundary >= tensor.numel) return;
      const uint64_t first = boundary - std::min(boundary, kRun / 2);
      chosen.push_back({first, std::min(kRun, tensor.numel - first)});
    });
    return chosen;
  }

  std::optional<Finding> compare(const Pair& pair, uint64_t& count) const {
    const StoredTensor master{&checkpoint_, pair.master};
    const StoredTensor copy{&checkpoint_, pair.copy};
    for (const Range& range : ranges(*pair.master)) {
      if (const auto element =
              first_disagreement(master, copy, range.first, range.numel)) {
        return copy_disagreement(master, *element);
      }
      count += range.numel;
    }
    return std::nullopt;
  }

  const Checkpoint& checkpoint_;
  bool full_;
  std::vector<Pair> pairs_;
};

}  // namespace

bool comparable(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

const Tensor* own_copy(const Checkpoint& checkpoint, const Tensor& tensor) {
  if (tensor.role != Role::Master && tensor.role != Role::Frozen) {
    return nullptr;
  }
  const Tensor* copy = checkpoint.find(tensor.name, Role::Model);
  const bool usable = copy != nullptr && copy->numel == tensor.numel &&
                      comparable(copy->dtype) && comparable(tensor.dtype);
  return usable ? copy : nullptr;
}

std::optional<uint64_t> first_disagreement(const StoredTensor& master,
                                           const StoredTensor& copy,
                                           uint64_t first, uint64_t numel) {
  std::vector<std::byte> left;
  std::vector<std::byte> right;
  for (uint64_t done = 0; done < numel;) {
    const uint64_t count = std::min(kChunk, numel - done);
    left.resize(static_cast<size_t>(count * size_of(master.tensor->dtype)));
    right.resize(static_cast<size_t>(count * size_of(copy.tensor->dtype)));
    master.checkpoint->read(*master.tensor, first + done, count, left);
    copy.checkpoint->read(*copy.tensor, first + done, count, right);
    if (const auto at = first_difference(*master.tensor, *copy.tensor, count,
                                         left, right)) {
      return first + done + *at;
    }
    done += count;
  }
  return std::nullopt;
}

void set_place(Finding& finding, const StoredTensor& tensor, uint64_t element) {
  tensor.checkpoint->extents(
      *tensor.tensor, element, 1, [&](const Extent& extent) {
        finding.file = tensor.checkpoint->sources()[extent.source].name;
        finding.offset = extent.offset;
      });
}

Finding copy_disagreement(const StoredTensor& master, uint64_t element) {
  Finding finding{
      .code = "weights-disagree",
      .severity = Severity::Error,
      .message =
          "element " + std::to_string(element) + " of the " +
          (master.tensor->role == Role::Frozen ? "frozen weight"
                                               : "optimizer's master") +
          " does not round to the model's own copy: "
          "the shards are of another step, in another order or damaged, or "
          "the weights were edited before the save (merge --check none takes "
          "the masters all the same)",
      .tensor = master.tensor->name};
  set_place(finding, master, element);
  return finding;
}

CopyCheck check_copies(const Checkpoint& checkpoint, bool full,
                       const OpenOptions& options) {
  return CopyChecker(checkpoint, full).run(options);
}

}  // namespace zckpt
