// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/tensor_slot.h"

#include <algorithm>

#include "base/arithmetic.h"
#include "base/text.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// json_quote would put U+FFFD into the name, in silence.
bool is_text(const std::string& name) {
  const std::string_view replacement = "\xef\xbf\xbd";
  const auto count = [&](std::string_view text) {
    size_t found = 0;
    for (size_t at = text.find(replacement); at != std::string_view::npos;
         at = text.find(replacement, at + replacement.size())) {
      ++found;
    }
    return found;
  };
  return count(json_quote(name, false)) == count(name);
}

}  // namespace

uint64_t bytes_of(const TensorSlot& slot) {
  uint64_t bytes = size_of(slot.dtype);
  for (const uint64_t dimension : slot.shape) {
    bytes = checked_mul(bytes, dimension, "the size of a tensor");
  }
  return bytes;
}

void check_names(const std::vector<TensorSlot>& slots,
                 std::string_view format) {
  std::vector<std::string_view> names;
  names.reserve(slots.size());
  for (const TensorSlot& slot : slots) names.emplace_back(slot.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) {
    throw Error(ErrorCode::Internal, "two tensors of one name in one file",
                {.tensor = std::string(*twice)});
  }
  for (const TensorSlot& slot : slots) {
    if (is_text(slot.name)) continue;
    throw Error(ErrorCode::Unsupported,
                std::string(format) + " cannot hold a name that is not UTF-8",
                {.tensor = slot.name});
  }
}

}  // namespace zckpt
