// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "support/zero_partitions.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace zckpt::test {

uint64_t numel_of(const Py::Shape& shape) {
  uint64_t numel = 1;
  for (const int64_t size : shape) numel *= static_cast<uint64_t>(size);
  return numel;
}

uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

std::vector<float> values_of(const std::string& name, uint64_t numel) {
  uint32_t seed = 2166136261U;
  for (const char c : name) {
    seed = (seed ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  std::vector<float> made(numel);
  for (float& value : made) {
    seed = seed * 1664525U + 1013904223U;
    const uint32_t sign = seed & 0x80000000U;
    const uint32_t exponent = 0x3d800000U + (seed >> 8 & 3U) * 0x00800000U;
    uint32_t mantissa = seed >> 5 & 0x007fffffU;
    const uint32_t kind = seed >> 28 & 3U;
    if (kind == 0) mantissa &= 0x007f0000U;
    if (kind == 1) mantissa = (mantissa & 0x007f0000U) | 0x8000U;
    value = std::bit_cast<float>(sign | exponent | mantissa);
  }
  return made;
}

std::vector<float> master_of(const Weight& weight) {
  return values_of(weight.name, numel_of(weight.shape));
}

std::vector<float> state_of(const Weight& weight, const std::string& state) {
  return values_of(weight.name + "|" + state, numel_of(weight.shape));
}

std::string encode(DType dtype, const std::vector<float>& values) {
  std::string bytes(values.size() * size_of(dtype), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    if (dtype == DType::F32) {
      std::memcpy(bytes.data() + i * 4, &bits, 4);
    } else {
      const auto half =
          static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
      std::memcpy(bytes.data() + i * 2, &half, 2);
    }
  }
  return bytes;
}

std::vector<float> slice(const std::vector<float>& all, uint64_t first,
                         uint64_t count, float beyond) {
  std::vector<float> part(count, beyond);
  for (uint64_t i = 0; i < count && first + i < all.size(); ++i) {
    part[i] = all[first + i];
  }
  return part;
}

FlatGroup flatten(const ZeroRun& run, const std::vector<Weight>& group,
                  const ValuesOf& of) {
  FlatGroup flat;
  const uint64_t unit = run.model_dtype == DType::F32 ? 4 : 8;
  for (size_t k = 0; k < group.size(); ++k) {
    flat.starts.push_back(flat.values.size());
    const auto values = of(group[k]);
    flat.values.insert(flat.values.end(), values.begin(), values.end());
    uint64_t padding = 0;
    if (run.parameter_alignment && k + 1 != group.size()) {
      padding = divide_up(flat.values.size(), unit) * unit - flat.values.size();
    }
    flat.paddings.push_back(padding);
    flat.values.resize(flat.values.size() + padding);
  }
  return flat;
}

uint64_t partition_numel(const ZeroRun& run, uint64_t need) {
  const uint64_t unit = run.narrow_alignment ? run.ranks : 2 * run.ranks;
  return divide_up(need, unit) * unit / run.ranks;
}

uint64_t kept_numel(const ZeroRun& run, uint64_t need, uint32_t rank) {
  const uint64_t size = partition_numel(run, need);
  const uint64_t before = std::min<uint64_t>(need, rank * size);
  if (run.writer == Writer::Bf16Optimizer) return size;
  if (!run.surplus_padding) return std::min(size, need - before);
  if (rank + 1 != run.ranks) return size;
  const uint64_t pad = size * run.ranks - need;
  if (pad <= size) return size - pad;
  return pad <= 2 * size ? 2 * size - pad : 0;  // t[:-k] of Python
}

std::vector<float> partitions(const ZeroRun& run,
                              const std::vector<Weight>& group,
                              const ValuesOf& of, uint32_t rank) {
  std::vector<float> part;
  for (const Weight& weight : group) {
    const auto all = of(weight);
    const uint64_t size = divide_up(all.size(), run.ranks);
    const auto own = slice(all, rank * size, size, kGarbage);
    part.insert(part.end(), own.begin(), own.end());
  }
  return part;
}

}  // namespace zckpt::test
