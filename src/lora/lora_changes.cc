// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/lora_changes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>

#include "base/cast.h"
#include "base/parallel.h"

namespace zckpt {
namespace {

// Elements that are worked on at a time: their buffers stay in the L2 cache.
constexpr uint64_t kBlock = uint64_t{1} << 14;
// Rows to a block, where there are as many: each use of a right factor serves
// all of them.
constexpr uint64_t kRows = 32;
// Left factors read at a time, in elements.
constexpr uint64_t kLeft = uint64_t{1} << 18;
// Columns are cut where the kernels are at their best.
constexpr uint64_t kColumns = 64;

template <typename T>
constexpr DType kComputed = std::is_same_v<T, float> ? DType::F32 : DType::F64;

template <typename T>
const KernelsOf<T>& kernels_of(const ProductKernels& kernels) {
  if constexpr (std::is_same_v<T, float>) {
    return kernels.f32;
  } else {
    return kernels.f64;
  }
}

uint64_t rank_of(const LoraChange& change) {
  uint64_t rank = 1;
  for (const LoraTerm& term : change.terms) rank = std::max(rank, term.rank);
  return rank;
}

// Rows whose left factors are read at once.
uint64_t rows_at_once(const LoraChange& change) {
  const uint64_t by_size = std::max(kRows, kBlock / change.cols);
  return std::clamp<uint64_t>(kLeft / rank_of(change), 1, by_size);
}

uint64_t cols_at_once(uint64_t rows, uint64_t cols) {
  const uint64_t fit = kBlock / rows / kColumns * kColumns;
  return std::clamp<uint64_t>(fit, kColumns, std::max(cols, kColumns));
}

template <typename T>
std::span<std::byte> bytes_of(std::vector<T>& values, uint64_t first,
                              uint64_t count) {
  return std::as_writable_bytes(std::span(values).subspan(
      static_cast<size_t>(first), static_cast<size_t>(count)));
}

// Through the base's dtype and back.
void round_to(DType dtype, std::vector<float>& values,
              std::vector<std::byte>& buffer) {
  if (dtype == DType::F32) return;
  CastCounts ignored;
  buffer.resize(values.size() * size_of(dtype));
  cast(DType::F32, std::as_bytes(std::span(values)), dtype, buffer, ignored);
  cast(dtype, buffer, DType::F32, std::as_writable_bytes(std::span(values)),
       ignored);
}

}  // namespace

LoraChanges::LoraChanges(const Checkpoint& checkpoint, const LoraPlan& plan,
                         const LoraResources& resources)
    : checkpoint_(checkpoint),
      plan_(plan),
      resources_(resources),
      kernels_(best_product_kernels()),
      factors_(checkpoint,
               resources.memory_bytes /
                   (static_cast<uint64_t>(resources.threads) + 1),
               static_cast<size_t>(resources.threads) + 1),
      workers_(static_cast<size_t>(resources.threads)),
      scalings_(plan.changes.size()) {
  for (Worker& worker : workers_) {
    worker.sums.resize(plan.changes.size());
    worker.overflowed.resize(plan.changes.size());
  }
  for (size_t i = 0; i < plan.changes.size(); ++i) {
    scalings_[i].resize(plan.changes[i].terms.size());
  }
}

template <>
LoraChanges::Numbers<float>& LoraChanges::numbers_of(int worker) {
  return workers_[static_cast<size_t>(worker)].floats;
}

template <>
LoraChanges::Numbers<double>& LoraChanges::numbers_of(int worker) {
  return workers_[static_cast<size_t>(worker)].doubles;
}

void LoraChanges::apply(const ChangedRun& run, std::span<const std::byte> in,
                        std::span<std::byte> out, CastCounts& counts) {
  if (plan_.math == LoraMath::Exact) {
    apply_as<double>(run, in, out, counts);
  } else {
    apply_as<float>(run, in, out, counts);
  }
}

// Cuts a run, which may begin and end anywhere, into whole rows and parts of
// rows.
template <typename T>
void LoraChanges::apply_as(const ChangedRun& run, std::span<const std::byte> in,
                           std::span<std::byte> out, CastCounts& counts) {
  const LoraChange& change = plan_.changes[run.change];
  const size_t from_size = size_of(run.from);
  uint64_t at = run.first;
  const uint64_t end = at + in.size() / from_size;
  while (at != end) {
    Block rows{.row = at / change.cols, .rows = 1, .col = at % change.cols};
    const uint64_t rest = end - at;
    if (rows.col == 0 && rest >= change.cols) {
      rows.rows = std::min(rest / change.cols, rows_at_once(change));
      rows.cols = change.cols;
    } else {
      rows.cols = std::min(change.cols - rows.col, rest);
    }
    const auto skip = static_cast<size_t>(at - run.first);
    merge_rows<T>(run, rows, in.data() + skip * from_size,
                  out.data() + skip * size_of(run.to), counts);
    at += rows.elements();
  }
}

template <typename T>
LoraChanges::Lefts<T> LoraChanges::read_lefts(const LoraChange& change,
                                              uint64_t row,
                                              uint64_t rows) const {
  Lefts<T> lefts{.first_row = row, .factors = {}};
  for (const LoraTerm& term : change.terms) {
    const std::vector<float> left = factors_.left(term, row, rows);
    lefts.factors.emplace_back(left.begin(), left.end());
  }
  return lefts;
}

template <typename T>
void LoraChanges::merge_rows(const ChangedRun& run, const Block& rows,
                             const std::byte* in, std::byte* out,
                             CastCounts& counts) {
  const LoraChange& change = plan_.changes[run.change];
  Numbers<T>& numbers = numbers_of<T>(run.worker);
  Worker& worker = workers_[static_cast<size_t>(run.worker)];
  const Lefts<T> lefts = read_lefts<T>(change, rows.row, rows.rows);
  const size_t from_size = size_of(run.from);
  const size_t to_size = size_of(run.to);
  const uint64_t step = cols_at_once(rows.rows, rows.cols);
  CastCounts here;
  for (uint64_t col = 0; col < rows.cols; col += step) {
    const Block block{.row = rows.row,
                      .rows = rows.rows,
                      .col = rows.col + col,
                      .cols = std::min(step, rows.cols - col)};
    evaluate<T>(run.change, block,
                {.dtype = run.from,
                 .first = in + static_cast<size_t>(col) * from_size,
                 .stride_bytes = static_cast<size_t>(rows.cols) * from_size},
                lefts, change.terms.size(), run.to, numbers);
    for (uint64_t i = 0; i < block.rows; ++i) {
      std::byte* const row =
          out + static_cast<size_t>(i * rows.cols + col) * to_size;
      cast(kComputed<T>, bytes_of(numbers.values, i * block.cols, block.cols),
           run.to, {row, static_cast<size_t>(block.cols) * to_size}, here);
    }
    const DeltaSums sums = kernels_of<T>(kernels_).measure(
        numbers.before.data(), numbers.values.data(), numbers.values.size());
    DeltaSums& all = worker.sums[run.change];
    all.max = std::max(all.max, sums.max);
    all.total += sums.total;
    all.nonfinite += sums.nonfinite;
  }
  worker.overflowed[run.change] += here.overflowed;
  counts.overflowed += here.overflowed;
}

template <typename T>
void LoraChanges::evaluate(uint32_t change, const Block& block, const Rows& in,
                           const Lefts<T>& lefts, size_t end, DType to,
                           Numbers<T>& numbers) {
  const LoraChange& all = plan_.changes[change];
  const auto count = static_cast<size_t>(block.elements());
  // float64 bases are merged in float64 only.
  const bool widened = std::is_same_v<T, double> && in.dtype != DType::F64;
  numbers.before.resize(count);
  if (widened) numbers.narrow.resize(count);
  CastCounts ignored;
  for (uint64_t i = 0; i < block.rows; ++i) {
    const std::span<const std::byte> row(
        in.first + static_cast<size_t>(i) * in.stride_bytes,
        static_cast<size_t>(block.cols) * size_of(in.dtype));
    cast(in.dtype, row, widened ? DType::F32 : kComputed<T>,
         widened ? bytes_of(numbers.narrow, i * block.cols, block.cols)
                 : bytes_of(numbers.before, i * block.cols, block.cols),
         ignored);
  }
  if constexpr (std::is_same_v<T, double>) {
    if (widened) {
      kernels_.widen(numbers.narrow.data(), numbers.before.data(), count);
    }
  }
  const std::vector<T>* base = &numbers.before;
  // A tensor that replaces another is held in that one's dtype.
  const bool rounded = std::is_same_v<T, float> && in.dtype != all.base;
  numbers.values.resize(count);
  if (rounded || end == 0) {
    numbers.values = numbers.before;
    base = &numbers.values;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (rounded) round_to(all.base, numbers.values, numbers.rounding);
  }
  for (size_t i = 0; i < end; ++i) {
    add_term<T>(change, i, block, lefts, *base, numbers);
    base = &numbers.values;
    if (all.terms[i].magnitude) scale_outputs<T>(change, i, block, numbers);
    if constexpr (std::is_same_v<T, float>) {
      // The last rounding is the output's own where it is the same.
      if (i + 1 < end || to != all.base) {
        round_to(all.base, numbers.values, numbers.rounding);
      }
    }
  }
}

template <typename T>
void LoraChanges::add_term(uint32_t change, size_t index, const Block& block,
                           const Lefts<T>& lefts, const std::vector<T>& base,
                           Numbers<T>& numbers) {
  const LoraChange& all = plan_.changes[change];
  const LoraTerm& term = all.terms[index];
  const T scale = static_cast<T>(term.scale);
  if constexpr (std::is_same_v<T, float>) {
    if (term.kind == LoraKind::Embedding && !term.magnitude) {
      // Embedding.merge rounds the delta before it adds it. A zero that changes
      // nothing, not even a negative zero, is the negative one.
      numbers.delta.assign(base.size(), -0.0F);
      add_product<float>(all, index, block, lefts, scale, numbers.delta.data(),
                         numbers.delta.data());
      round_to(all.base, numbers.delta, numbers.rounding);
      std::transform(base.begin(), base.end(), numbers.delta.begin(),
                     numbers.values.begin(), std::plus<>());
      return;
    }
  }
  add_product<T>(all, index, block, lefts, scale, base.data(),
                 numbers.values.data());
}

template <typename T>
void LoraChanges::add_product(const LoraChange& change, size_t index,
                              const Block& block, const Lefts<T>& lefts,
                              T scale, const T* base, T* out) {
  const LoraTerm& term = change.terms[index];
  const T* left =
      lefts.factors[index].data() + (block.row - lefts.first_row) * term.rank;
  const uint64_t step = factors_.right_cols(term, change.cols);
  const uint64_t end = block.col + block.cols;
  for (uint64_t piece = block.col / step * step; piece < end; piece += step) {
    const uint64_t width = std::min(step, change.cols - piece);
    const Factors::Matrix right = factors_.right(term, piece, width);
    const uint64_t first = std::max(piece, block.col);
    kernels_of<T>(kernels_).add_product(
        {.left = left,
         .right = right->data() + (first - piece),
         .base = base + (first - block.col),
         .out = out + (first - block.col),
         .scale = scale,
         .rows = static_cast<size_t>(block.rows),
         .cols = static_cast<size_t>(std::min(piece + width, end) - first),
         .rank = static_cast<size_t>(term.rank),
         .left_stride = static_cast<size_t>(term.rank),
         .right_stride = static_cast<size_t>(width),
         .stride = static_cast<size_t>(block.cols)});
  }
}

template <typename T>
void LoraChanges::scale_outputs(uint32_t change, size_t term,
                                const Block& block, Numbers<T>& numbers) const {
  const std::vector<double>& scalings = scalings_[change][term];
  const bool columns = is_transposed(plan_.changes[change].terms[term].kind);
  size_t at = 0;
  for (uint64_t i = 0; i < block.rows; ++i) {
    for (uint64_t j = 0; j < block.cols; ++j, ++at) {
      const uint64_t output = columns ? block.col + j : block.row + i;
      numbers.values[at] *=
          static_cast<T>(scalings[static_cast<size_t>(output)]);
    }
  }
}

void LoraChanges::prepare() {
  std::vector<uint32_t> scaled;
  for (uint32_t i = 0; i < plan_.changes.size(); ++i) {
    const auto& terms = plan_.changes[i].terms;
    if (std::any_of(terms.begin(), terms.end(), [](const LoraTerm& term) {
          return term.magnitude.has_value();
        })) {
      scaled.push_back(i);
    }
  }
  parallel_for(scaled.size(), resources_.threads, resources_.stop,
               [&](size_t i, int worker) {
                 const auto& terms = plan_.changes[scaled[i]].terms;
                 for (size_t term = 0; term < terms.size(); ++term) {
                   if (!terms[term].magnitude) continue;
                   if (plan_.math == LoraMath::Exact) {
                     find_scalings(scaled[i], term, numbers_of<double>(worker));
                   } else {
                     find_scalings(scaled[i], term, numbers_of<float>(worker));
                   }
                 }
               });
}

// magnitude / norm of every output of base + terms so far.
template <typename T>
void LoraChanges::find_scalings(uint32_t change, size_t term,
                                Numbers<T>& numbers) {
  const LoraChange& all = plan_.changes[change];
  const bool columns = is_transposed(all.terms[term].kind);
  std::vector<double> norms(static_cast<size_t>(columns ? all.cols : all.rows),
                            0.0);
  const PlannedRun& run = all.runs.front();
  const Tensor& base = checkpoint_.tensors()[run.tensor];
  std::vector<std::byte> bytes;
  const size_t size = size_of(base.dtype);
  for (uint64_t row = 0; row < all.rows;) {
    throw_if_stopped(resources_.stop);
    const uint64_t rows = std::min(rows_at_once(all), all.rows - row);
    const Lefts<T> lefts = read_lefts<T>(all, row, rows);
    bytes.resize(static_cast<size_t>(rows * all.cols) * size);
    checkpoint_.read(base, run.first + row * all.cols, rows * all.cols, bytes);
    const uint64_t step = cols_at_once(rows, all.cols);
    for (uint64_t col = 0; col < all.cols; col += step) {
      const Block block{.row = row,
                        .rows = rows,
                        .col = col,
                        .cols = std::min(step, all.cols - col)};
      evaluate<T>(change, block,
                  {.dtype = base.dtype,
                   .first = bytes.data() + static_cast<size_t>(col) * size,
                   .stride_bytes = static_cast<size_t>(all.cols) * size},
                  lefts, term, kComputed<T>, numbers);
      add_term<T>(change, term, block, lefts, numbers.values, numbers);
      size_t at = 0;
      for (uint64_t i = 0; i < block.rows; ++i) {
        for (uint64_t j = 0; j < block.cols; ++j, ++at) {
          const auto value = static_cast<double>(numbers.values[at]);
          norms[static_cast<size_t>(columns ? col + j : row + i)] +=
              value * value;
        }
      }
    }
    row += rows;
  }
  // A vector, which the reader of factors takes for one column.
  LoraTerm magnitude{.kind = LoraKind::Bias, .b = *all.terms[term].magnitude};
  const std::vector<float> magnitudes =
      factors_.left(magnitude, 0, norms.size());
  for (size_t i = 0; i < norms.size(); ++i) {
    const T norm = static_cast<T>(std::sqrt(norms[i]));
    norms[i] = static_cast<double>(static_cast<T>(magnitudes[i]) / norm);
  }
  scalings_[change][term] = std::move(norms);
}

std::vector<LoraReport> LoraChanges::report() const {
  std::vector<LoraReport> reports;
  for (size_t i = 0; i < plan_.changes.size(); ++i) {
    const LoraChange& change = plan_.changes[i];
    if (change.terms.empty()) continue;
    LoraReport report{.name = change.name};
    for (const LoraTerm& term : change.terms) report.rank += term.rank;
    for (const Worker& worker : workers_) {
      report.max_delta = std::max(report.max_delta, worker.sums[i].max);
      report.mean_delta += worker.sums[i].total;
      report.overflowed += worker.overflowed[i];
      report.nonfinite += worker.sums[i].nonfinite;
    }
    report.mean_delta /=
        static_cast<double>(std::max<uint64_t>(1, change.rows * change.cols));
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace zckpt
