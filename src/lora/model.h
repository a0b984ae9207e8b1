// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "merge/plan_files.h"

namespace zckpt {

// Model is a model that is being put together: what will be written, by name,
// in the order of the base. Tensors number those of a joined checkpoint.
class Model {
 public:
  // REQUIRES: the name is new.
  void add(NamedTensor tensor);
  // Null where there is none.
  NamedTensor* find(std::string_view name);
  const NamedTensor* find(std::string_view name) const;
  void remove(const std::string& name);
  const std::vector<NamedTensor>& tensors() const { return tensors_; }

  // Of the names, those most like `name`, for messages: "a, b, c".
  std::string nearest(std::string_view name) const;

  // alias, kept: names of one weight. Both are among tensors(), so that one
  // side can change without the other.
  std::vector<std::pair<std::string, std::string>> ties;
  // Weights that an adapter brought whole, and which one.
  std::unordered_map<std::string, std::string> replaced_by;
  // Every name that is one weight with `name`, itself first.
  std::vector<std::string> tied_with(const std::string& name) const;

 private:
  std::vector<NamedTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace zckpt
