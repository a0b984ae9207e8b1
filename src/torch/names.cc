// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/names.h"

#include <unordered_set>

#include "zckpt/load.h"

namespace zckpt {

WeightNames::WeightNames(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  const std::vector<const Tensor*> weights = weights_of(checkpoint);
  for (const Tensor* tensor : weights) tensors_[tensor->name] = tensor;
  // As merge: what an alias says of itself yields to the weight that is kept.
  std::vector<std::pair<std::string_view, const Tensor*>> aliases;
  for (const auto& [alias, kept] : facts.aliases) {
    const Tensor* tensor = find(kept);
    if (tensor != nullptr) aliases.emplace_back(alias, tensor);
  }
  for (const auto& [alias, tensor] : aliases) tensors_[alias] = tensor;

  std::unordered_set<std::string_view> listed;
  const auto list = [&](std::string_view name) {
    const Tensor* tensor = find(name);
    if (tensor != nullptr && listed.insert(name).second) {
      in_order_.emplace_back(name, tensor);
    }
  };
  for (const std::string& name : facts.module_order) list(name);
  for (const Tensor* tensor : weights) list(tensor->name);
  for (const auto& [alias, tensor] : aliases) list(alias);
}

const Tensor* WeightNames::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace zckpt
