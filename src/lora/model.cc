// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/model.h"

#include <algorithm>

#include "base/text.h"

namespace zckpt {
namespace {

// How many characters two names have in common at their ends.
size_t common_end(std::string_view a, std::string_view b) {
  const auto [left, right] =
      std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return static_cast<size_t>(left - a.rbegin());
}

}  // namespace

void Model::add(NamedTensor tensor) {
  by_name_.emplace(tensor.name, tensors_.size());
  tensors_.push_back(std::move(tensor));
}

NamedTensor* Model::find(std::string_view name) {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

const NamedTensor* Model::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

void Model::remove(const std::string& name) {
  const size_t index = by_name_.at(name);
  tensors_.erase(tensors_.begin() + static_cast<ptrdiff_t>(index));
  by_name_.erase(name);
  for (auto& [other, at] : by_name_) at -= at > index ? 1 : 0;
}

std::string Model::nearest(std::string_view name) const {
  constexpr size_t kShown = 3;
  std::vector<std::pair<size_t, std::string_view>> ranked;
  for (const NamedTensor& tensor : tensors_) {
    ranked.emplace_back(common_end(tensor.name, name), tensor.name);
  }
  std::stable_sort(
      ranked.begin(), ranked.end(),
      [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (size_t i = 0; i < std::min(kShown, ranked.size()); ++i) {
    text += (text.empty() ? "" : ", ") + escape(ranked[i].second);
  }
  return text;
}

std::vector<std::string> Model::tied_with(const std::string& name) const {
  std::vector<std::string> names{name};
  std::string kept = name;
  for (const auto& [alias, target] : ties) {
    if (alias == name) kept = target;
  }
  if (kept != name) names.push_back(kept);
  for (const auto& [alias, target] : ties) {
    if (target == kept && alias != name) names.push_back(alias);
  }
  return names;
}

}  // namespace zckpt
