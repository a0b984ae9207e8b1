// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/factors.h"

#include <algorithm>

#include "base/cast.h"

namespace zckpt {
namespace {

std::vector<float> transpose(const std::vector<float>& matrix, uint64_t rows,
                             uint64_t cols) {
  std::vector<float> turned(matrix.size());
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < cols; ++j) {
      turned[static_cast<size_t>(j * rows + i)] =
          matrix[static_cast<size_t>(i * cols + j)];
    }
  }
  return turned;
}

}  // namespace

std::vector<float> Factors::block(uint32_t tensor, uint64_t row, uint64_t rows,
                                  uint64_t col, uint64_t cols) const {
  const Tensor& stored = checkpoint_.tensors()[tensor];
  const uint64_t width = stored.shape.size() < 2 ? 1 : stored.shape[1];
  const uint64_t size = size_of(stored.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * cols * size));
  const std::span<std::byte> all(bytes);
  if (cols == width) {
    checkpoint_.read(stored, row * width, rows * cols, all);
  } else {
    for (uint64_t i = 0; i < rows; ++i) {
      checkpoint_.read(stored, (row + i) * width + col, cols,
                       all.subspan(static_cast<size_t>(i * cols * size),
                                   static_cast<size_t>(cols * size)));
    }
  }
  std::vector<float> floats(static_cast<size_t>(rows * cols));
  CastCounts ignored;
  cast(stored.dtype, bytes, DType::F32,
       std::as_writable_bytes(std::span(floats)), ignored);
  return floats;
}

std::vector<float> Factors::left(const LoraTerm& term, uint64_t first,
                                 uint64_t count) const {
  if (!is_transposed(term.kind)) {
    return block(term.b, first, count, 0, term.rank);
  }
  return transpose(block(term.a, 0, term.rank, first, count), term.rank, count);
}

uint64_t Factors::right_cols(const LoraTerm& term, uint64_t cols) const {
  const uint64_t fit = piece_bytes_ / (term.rank * sizeof(float));
  return std::clamp<uint64_t>(fit, 1, cols);
}

Factors::Matrix Factors::right(const LoraTerm& term, uint64_t first,
                               uint64_t count) {
  if (term.kind == LoraKind::Bias) {
    return std::make_shared<const std::vector<float>>(1, 1.0F);
  }
  const bool transposed = is_transposed(term.kind);
  const uint32_t tensor = transposed ? term.b : term.a;
  const std::lock_guard lock(mutex_);
  const auto known =
      std::find_if(matrices_.begin(), matrices_.end(), [&](const Kept& kept) {
        return kept.tensor == tensor && kept.first == first;
      });
  if (known != matrices_.end()) {
    matrices_.splice(matrices_.begin(), matrices_, known);
    return matrices_.front().matrix;
  }
  if (matrices_.size() >= kept_) matrices_.pop_back();
  auto matrix = std::make_shared<const std::vector<float>>(
      transposed ? transpose(block(tensor, first, count, 0, term.rank), count,
                             term.rank)
                 : block(tensor, 0, term.rank, first, count));
  matrices_.push_front({tensor, first, matrix});
  return matrix;
}

}  // namespace zckpt
