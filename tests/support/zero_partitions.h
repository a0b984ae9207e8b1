// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/zero_checkpoint.h"

// How DeepSpeed cuts weights over ranks, written from format.md 3 and sharing
// nothing with src/: the oracle of the reader's tests.

namespace zckpt::test {

uint64_t numel_of(const Py::Shape& shape);
uint64_t divide_up(uint64_t a, uint64_t b);

// What a run holds of a weight or of one of its optimizer states: exact in
// bf16, or to be rounded up, down or to even.
std::vector<float> values_of(const std::string& name, uint64_t numel);
std::vector<float> master_of(const Weight& weight);
std::vector<float> state_of(const Weight& weight, const std::string& state);
using ValuesOf = std::function<std::vector<float>(const Weight&)>;

// Floats in the bytes of `dtype`: F32, or BF16 rounded to nearest even.
std::string encode(DType dtype, const std::vector<float>& values);

// The tails of stage-3 partitions are uninitialised memory.
inline constexpr float kGarbage = -7.7e33F;
// `count` floats from `first` on; past the end, `beyond`.
std::vector<float> slice(const std::vector<float>& all, uint64_t first,
                         uint64_t count, float beyond);

// A group of stages 1 and 2 as one buffer, without the padding at its end.
struct FlatGroup {
  std::vector<float> values;
  std::vector<uint64_t> starts;    // of each parameter
  std::vector<uint64_t> paddings;  // behind each parameter
};
FlatGroup flatten(const ZeroRun& run, const std::vector<Weight>& group,
                  const ValuesOf& of);
// Elements of one rank's partition of a group of `need`, padding included,
// and how many of them the rank's shard keeps.
uint64_t partition_numel(const ZeroRun& run, uint64_t need);
uint64_t kept_numel(const ZeroRun& run, uint64_t need, uint32_t rank);

// Rank `rank`'s part of a stage-3 sub-group: partition after partition.
std::vector<float> partitions(const ZeroRun& run,
                              const std::vector<Weight>& group,
                              const ValuesOf& of, uint32_t rank);

}  // namespace zckpt::test
