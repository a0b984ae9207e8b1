// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/lora_changes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/cast.h"
#include "base/parallel.h"
#include "lora/product_kernels.h"

namespace zckpt {
namespace {

// Elements that are worked on at a time: their buffers stay in the L2 cache.
constexpr uint64_t kBlock = uint64_t{1} << 15;
// Left factors read at a time, in elements.
constexpr uint64_t kLeft = uint64_t{1} << 18;

// DoRA has one magnitude per output; these kinds have outputs as columns.
bool outputs_are_columns(LoraKind kind) {
  return kind == LoraKind::Conv1D || kind == LoraKind::Embedding;
}

uint64_t rank_of(const LoraChange& change) {
  uint64_t rank = 1;
  for (const LoraTerm& term : change.terms) rank = std::max(rank, term.rank);
  return rank;
}

// Rows to a block: enough for the buffers, and in fours for the kernels.
uint64_t block_rows(const LoraChange& change) {
  const uint64_t fit =
      std::min(kBlock / change.cols, kLeft / rank_of(change)) / 4 * 4;
  return std::max<uint64_t>(fit, 4);
}

template <typename T>
void load(DType from, std::span<const std::byte> in, std::vector<T>& out) {
  CastCounts ignored;
  const size_t count = in.size() / size_of(from);
  out.resize(count);
  if (from == DType::F64) {
    std::vector<double> wide(count);
    std::copy(in.begin(), in.end(),
              std::as_writable_bytes(std::span(wide)).begin());
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<T>(wide[i]);
  } else if constexpr (std::is_same_v<T, float>) {
    cast(from, in, DType::F32, std::as_writable_bytes(std::span(out)), ignored);
  } else {
    std::vector<float> narrow(count);
    cast(from, in, DType::F32, std::as_writable_bytes(std::span(narrow)),
         ignored);
    std::copy(narrow.begin(), narrow.end(), out.begin());
  }
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
      factors_(checkpoint,
               resources.memory_bytes /
                   (static_cast<uint64_t>(resources.threads) + 1),
               static_cast<size_t>(resources.threads) + 1),
      workers_(static_cast<size_t>(resources.threads)),
      scalings_(plan.changes.size()) {
  for (Worker& worker : workers_) worker.sums.resize(plan.changes.size());
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

// Cuts a run, which may begin and end anywhere, into blocks.
template <typename T>
void LoraChanges::apply_as(const ChangedRun& run, std::span<const std::byte> in,
                           std::span<std::byte> out, CastCounts& counts) {
  const LoraChange& change = plan_.changes[run.change];
  const size_t from_size = size_of(run.from);
  const size_t to_size = size_of(run.to);
  uint64_t at = run.first;
  const uint64_t end = at + in.size() / from_size;
  while (at != end) {
    Block block{.row = at / change.cols, .rows = 1, .col = at % change.cols};
    const uint64_t rest = end - at;
    if (block.col == 0 && rest >= change.cols) {
      block.rows = std::min(rest / change.cols, block_rows(change));
      block.cols = change.cols;
    } else {
      block.cols = std::min(change.cols - block.col, rest);
    }
    const auto skip = static_cast<size_t>(at - run.first);
    const auto count = static_cast<size_t>(block.elements());
    merge_block<T>(run, block, in.subspan(skip * from_size, count * from_size),
                   out.subspan(skip * to_size, count * to_size), counts);
    at += block.elements();
  }
}

template <typename T>
void LoraChanges::merge_block(const ChangedRun& run, const Block& block,
                              std::span<const std::byte> in,
                              std::span<std::byte> out, CastCounts& counts) {
  const LoraChange& change = plan_.changes[run.change];
  Numbers<T>& numbers = numbers_of<T>(run.worker);
  evaluate<T>(run.change, block, run.from, in, change.terms.size(), numbers);
  CastCounts here;
  cast(std::is_same_v<T, float> ? DType::F32 : DType::F64,
       std::as_bytes(std::span(numbers.values)), run.to, out, here);
  counts.overflowed += here.overflowed;

  Sums& sums = workers_[static_cast<size_t>(run.worker)].sums[run.change];
  sums.overflowed += here.overflowed;
  T max = 0;
  double total = 0;
  uint64_t nonfinite = 0;
  for (size_t i = 0; i < numbers.values.size(); ++i) {
    const T delta = std::abs(numbers.values[i] - numbers.before[i]);
    const bool finite = delta <= std::numeric_limits<T>::max();
    max = std::max(max, finite ? delta : T{0});
    total += finite ? static_cast<double>(delta) : 0.0;
    nonfinite += finite ? 0U : 1U;
  }
  sums.nonfinite += nonfinite;
  sums.max = std::max(sums.max, static_cast<double>(max));
  sums.total += total;
}

template <typename T>
void LoraChanges::evaluate(uint32_t change, const Block& block, DType from,
                           std::span<const std::byte> in, size_t end,
                           Numbers<T>& numbers) {
  load(from, in, numbers.before);
  numbers.values = numbers.before;
  if constexpr (std::is_same_v<T, float>) {
    // A tensor that replaces another is held in that one's dtype.
    const DType base = plan_.changes[change].base;
    if (from != base) round_to(base, numbers.values, numbers.rounding);
  }
  for (size_t i = 0; i < end; ++i) {
    add_term<T>(change, i, block, numbers);
    const LoraTerm& term = plan_.changes[change].terms[i];
    if (term.magnitude) scale_outputs<T>(change, i, block, numbers);
    if constexpr (std::is_same_v<T, float>) {
      round_to(plan_.changes[change].base, numbers.values, numbers.rounding);
    }
  }
}

template <typename T>
void LoraChanges::multiply(const LoraTerm& term, const LoraChange& change,
                           const Block& block, Numbers<T>& numbers) {
  const std::vector<float> left = factors_.left(term, block.row, block.rows);
  const ProductKernels& kernels = best_product_kernels();
  numbers.products.resize(static_cast<size_t>(block.elements()));
  const uint64_t step = factors_.right_cols(term, change.cols);
  const uint64_t end = block.col + block.cols;
  for (uint64_t piece = block.col / step * step; piece < end; piece += step) {
    const uint64_t width = std::min(step, change.cols - piece);
    const Factors::Matrix right = factors_.right(term, piece, width);
    const uint64_t first = std::max(piece, block.col);
    Product<T> product{
        .left = left.data(),
        .right = right->data() + (first - piece),
        .out = numbers.products.data() + (first - block.col),
        .rows = static_cast<size_t>(block.rows),
        .cols = static_cast<size_t>(std::min(piece + width, end) - first),
        .rank = static_cast<size_t>(term.rank),
        .left_stride = static_cast<size_t>(term.rank),
        .right_stride = static_cast<size_t>(width),
        .out_stride = static_cast<size_t>(block.cols)};
    if constexpr (std::is_same_v<T, float>) {
      kernels.f32(product);
    } else {
      kernels.f64(product);
    }
  }
}

// The product first, then its scale, as PEFT does.
template <typename T>
void LoraChanges::add_term(uint32_t change, size_t term, const Block& block,
                           Numbers<T>& numbers) {
  const LoraChange& all = plan_.changes[change];
  multiply<T>(all.terms[term], all, block, numbers);
  const T scale = static_cast<T>(all.terms[term].scale);
  for (T& product : numbers.products) product *= scale;
  if constexpr (std::is_same_v<T, float>) {
    const LoraTerm& it = all.terms[term];
    if (it.kind == LoraKind::Embedding && !it.magnitude) {
      // Embedding.merge rounds the delta before it adds it.
      round_to(all.base, numbers.products, numbers.rounding);
    }
  }
  for (size_t i = 0; i < numbers.values.size(); ++i) {
    numbers.values[i] += numbers.products[i];
  }
}

template <typename T>
void LoraChanges::scale_outputs(uint32_t change, size_t term,
                                const Block& block, Numbers<T>& numbers) const {
  const std::vector<double>& scalings = scalings_[change][term];
  const bool columns =
      outputs_are_columns(plan_.changes[change].terms[term].kind);
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
  const bool columns = outputs_are_columns(all.terms[term].kind);
  std::vector<double> norms(static_cast<size_t>(columns ? all.cols : all.rows),
                            0.0);
  const PlannedRun& run = all.runs.front();
  const Tensor& base = checkpoint_.tensors()[run.tensor];
  std::vector<std::byte> bytes;
  const uint64_t step = block_rows(all);
  for (uint64_t row = 0; row < all.rows; row += step) {
    throw_if_stopped(resources_.stop);
    const Block block{.row = row,
                      .rows = std::min(step, all.rows - row),
                      .col = 0,
                      .cols = all.cols};
    bytes.resize(static_cast<size_t>(block.elements() * size_of(base.dtype)));
    checkpoint_.read(base, run.first + row * all.cols, block.elements(), bytes);
    evaluate<T>(change, block, base.dtype, bytes, term, numbers);
    add_term<T>(change, term, block, numbers);
    size_t at = 0;
    for (uint64_t i = 0; i < block.rows; ++i) {
      for (uint64_t j = 0; j < block.cols; ++j, ++at) {
        const auto value = static_cast<double>(numbers.values[at]);
        norms[static_cast<size_t>(columns ? j : row + i)] += value * value;
      }
    }
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
      report.overflowed += worker.sums[i].overflowed;
      report.nonfinite += worker.sums[i].nonfinite;
    }
    report.mean_delta /=
        static_cast<double>(std::max<uint64_t>(1, change.rows * change.cols));
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace zckpt
