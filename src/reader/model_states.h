// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reader/shards.h"
#include "reader/tensor_view.h"
#include "zckpt/dtype.h"

namespace zckpt {

struct NamedShape {
  std::string name;
  std::vector<uint64_t> shape;
  uint64_t numel = 0;
};

struct ModuleEntry {
  std::string name;
  std::optional<TensorView> tensor;  // none: an entry that is no tensor
};

// ModelStates is the leading *_model_states.pt in full (format.md 2): the map
// by which shards become named tensors.
struct ModelStates {
  uint32_t source = 0;
  // param_shapes, one list per optimizer group (stage 1/2) or sub-group
  // (stage 3), in flat-buffer order; none where it is absent or None.
  std::optional<std::vector<std::vector<NamedShape>>> groups;
  std::vector<ModuleEntry> module;
  std::optional<std::vector<std::string>> buffer_names;
  bool has_frozen_key = false;  // the key exists, be it None
  std::optional<std::vector<NamedShape>> frozen_shapes;
  std::vector<std::optional<TensorView>> frozen_tensors;    // as frozen_shapes
  std::vector<std::pair<std::string, std::string>> shared;  // alias, kept
  // The tree, for the `optimizer` entry of stage 0.
  std::shared_ptr<const TorchFile> file;
};

// Errors: Io, Corrupt (with the tensor's name), Unsupported.
ModelStates read_model_states(const ShardSet& shards, const ShardFile& model);

// param_shapes in any of its forms (format.md 2.2): a list of mappings or one
// mapping; shapes as torch.Size, tuple or list.
std::optional<std::vector<std::vector<NamedShape>>> read_param_shapes(
    const std::optional<Value>& value);

}  // namespace zckpt
