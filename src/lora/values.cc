// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/values.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/parallel.h"

namespace zckpt {

ValueCensus take_census(const Checkpoint& checkpoint, const Tensor& tensor,
                        const StopToken* stop) {
  constexpr uint64_t kChunk = uint64_t{1} << 16;
  ValueCensus census;
  std::vector<std::byte> bytes;
  for (uint64_t first = 0; first < tensor.numel;) {
    throw_if_stopped(stop);
    const uint64_t count = std::min(kChunk, tensor.numel - first);
    bytes.resize(static_cast<size_t>(count * size_of(tensor.dtype)));
    checkpoint.read(tensor, first, count, bytes);
    census.any = census.any || !all_zero(bytes);
    const NonFinite here = count_nonfinite(tensor.dtype, bytes);
    census.bad.nan += here.nan;
    census.bad.inf += here.inf;
    if (here.first && !census.bad.first) {
      census.bad.first = first + *here.first;
    }
    first += count;
  }
  return census;
}

}  // namespace zckpt
