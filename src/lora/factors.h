// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/lora.h"

namespace zckpt {

// The weight is in x out, hence the product of the factors is transposed, and
// the outputs are columns.
constexpr bool is_transposed(LoraKind kind) {
  return kind == LoraKind::Conv1D || kind == LoraKind::Embedding;
}

// Factors gives the two matrices whose product a term adds to its weight:
// left, rows x rank, is read by rows as they are needed; right, rank x cols, is
// what every row needs, so the ones in use are kept.
// Errors:  Io, Corrupt.
// Threads: may be called concurrently.
// Memory:  at most `kept` pieces of right factors of `piece_bytes`, besides
//          those that callers hold.
class Factors {
 public:
  using Matrix = std::shared_ptr<const std::vector<float>>;

  Factors(const Checkpoint& checkpoint, uint64_t piece_bytes, size_t kept)
      : checkpoint_(checkpoint), piece_bytes_(piece_bytes), kept_(kept) {}

  // Rows [first, first + count) of the left factor.
  std::vector<float> left(const LoraTerm& term, uint64_t first,
                          uint64_t count) const;
  // The columns of the right factor that are given at once: all, where they
  // fit into a piece.
  uint64_t right_cols(const LoraTerm& term, uint64_t cols) const;
  // Columns [first, first + count), row-major.
  Matrix right(const LoraTerm& term, uint64_t first, uint64_t count);

 private:
  // Rows x cols elements of a matrix, as floats.
  std::vector<float> block(uint32_t tensor, uint64_t row, uint64_t rows,
                           uint64_t col, uint64_t cols) const;

  struct Kept {
    uint32_t tensor;
    uint64_t first;
    Matrix matrix;
  };

  const Checkpoint& checkpoint_;
  const uint64_t piece_bytes_;
  const size_t kept_;
  std::mutex mutex_;          // guards: matrices_
  std::list<Kept> matrices_;  // most recent first
};

}  // namespace zckpt
