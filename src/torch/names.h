// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "zckpt/checkpoint.h"

namespace zckpt {

// The names of a checkpoint's weights, aliases among them, as state_dict()
// lists them. `checkpoint` must outlive it.
class WeightNames {
 public:
  explicit WeightNames(const Checkpoint& checkpoint);
  WeightNames(const WeightNames&) = delete;
  WeightNames& operator=(const WeightNames&) = delete;

  const Tensor* find(std::string_view name) const;
  const std::vector<std::pair<std::string_view, const Tensor*>>& in_order()
      const {
    return in_order_;
  }

 private:
  std::unordered_map<std::string_view, const Tensor*> tensors_;
  std::vector<std::pair<std::string_view, const Tensor*>> in_order_;
};

}  // namespace zckpt
