// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lora/factors.h"
#include "lora/product_kernels.h"
#include "merge/changes.h"
#include "zckpt/checkpoint.h"
#include "zckpt/lora.h"
#include "zckpt/observer.h"

namespace zckpt {

struct LoraResources {
  int threads = 1;
  uint64_t memory_bytes = 0;  // for right factors, all threads together
  const StopToken* stop = nullptr;
};

// LoraChanges merges: it turns runs of base weights into runs of merged ones.
// An element is computed the same way however runs are cut, so the output does
// not depend on threads or budgets.
// Errors:  Io, Corrupt, Interrupted.
// Threads: apply() from several workers, the rest from one thread.
// Memory:  resources.memory_bytes, some MiB per worker, and 8 bytes per output
//          of every weight with DoRA.
class LoraChanges final : public Changes {
 public:
  // `checkpoint` and `plan` must outlive this.
  LoraChanges(const Checkpoint& checkpoint, const LoraPlan& plan,
              const LoraResources& resources);

  // What must be known of whole weights before any run of them: DoRA's norms,
  // for which their bases are read once more. Before the first apply().
  void prepare();
  void apply(const ChangedRun& run, std::span<const std::byte> in,
             std::span<std::byte> out, CastCounts& counts) override;
  // One for each change with terms, after the last apply().
  std::vector<LoraReport> report() const;

 private:
  // A rectangle of a weight that is worked on at a time.
  struct Block {
    uint64_t row = 0;
    uint64_t rows = 0;
    uint64_t col = 0;
    uint64_t cols = 0;
    uint64_t elements() const { return rows * cols; }
  };
  // The rows of a block as they are stored: elements of the first row, and how
  // far it is from row to row.
  struct Rows {
    DType dtype = DType::F32;
    const std::byte* first = nullptr;
    size_t stride_bytes = 0;
  };
  template <typename T>
  struct Numbers {
    std::vector<T> before;  // the base
    std::vector<T> values;
    std::vector<float> narrow;
    std::vector<float> delta;  // where it is rounded by itself
    std::vector<std::byte> rounding;
  };
  // Rows of the left factors of all terms.
  template <typename T>
  struct Lefts {
    uint64_t first_row = 0;
    std::vector<std::vector<T>> factors;
  };
  struct Worker {
    Numbers<float> floats;
    Numbers<double> doubles;
    std::vector<DeltaSums> sums;       // by change
    std::vector<uint64_t> overflowed;  // by change
  };
  // DoRA's magnitude / norm, by change and term; empty for other terms.
  using Scalings = std::vector<std::vector<std::vector<double>>>;

  template <typename T>
  void apply_as(const ChangedRun& run, std::span<const std::byte> in,
                std::span<std::byte> out, CastCounts& counts);
  // Whole rows, or a part of one, `in` and `out` from its first element on.
  template <typename T>
  void merge_rows(const ChangedRun& run, const Block& rows, const std::byte* in,
                  std::byte* out, CastCounts& counts);
  template <typename T>
  Lefts<T> read_lefts(const LoraChange& change, uint64_t row,
                      uint64_t rows) const;
  // Loads a block and adds the terms before number `end`; leaves those values.
  template <typename T>
  void evaluate(uint32_t change, const Block& block, const Rows& in,
                const Lefts<T>& lefts, size_t end, DType to,
                Numbers<T>& numbers);
  // values = base + a term; `base` may be `values`.
  template <typename T>
  void add_term(uint32_t change, size_t term, const Block& block,
                const Lefts<T>& lefts, const std::vector<T>& base,
                Numbers<T>& numbers);
  template <typename T>
  void add_product(const LoraChange& change, size_t term, const Block& block,
                   const Lefts<T>& lefts, T scale, const T* base, T* out);
  template <typename T>
  void scale_outputs(uint32_t change, size_t term, const Block& block,
                     Numbers<T>& numbers) const;
  template <typename T>
  void find_scalings(uint32_t change, size_t term, Numbers<T>& numbers);
  template <typename T>
  Numbers<T>& numbers_of(int worker);

  const Checkpoint& checkpoint_;
  const LoraPlan& plan_;
  const LoraResources resources_;
  const ProductKernels& kernels_;
  Factors factors_;
  std::vector<Worker> workers_;
  Scalings scalings_;
};

}  // namespace zckpt
