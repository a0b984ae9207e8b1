// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/model_states.h"

#include "base/arithmetic.h"
#include "reader/shard_reader.h"

namespace zckpt {
namespace {

NamedShape named_shape(std::string_view name, const Value& value) {
  NamedShape shape{.name = std::string(name), .numel = 1};
  if (!value.is_sequence()) {
    throw Error(ErrorCode::Corrupt,
                "expected a shape in param_shapes, found something else",
                {.tensor = shape.name});
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const auto size = value.item(i).integer();
    if (!size || *size < 0) {
      throw Error(ErrorCode::Corrupt, "a shape holds something that is no size",
                  {.tensor = shape.name});
    }
    shape.shape.push_back(static_cast<uint64_t>(*size));
    shape.numel =
        checked_mul(shape.numel, shape.shape.back(), "the number of elements");
  }
  return shape;
}

std::vector<NamedShape> named_shapes(const Value& mapping) {
  if (!mapping.is_mapping()) {
    throw Error(ErrorCode::Corrupt,
                "expected names with shapes in param_shapes, found something "
                "else");
  }
  std::vector<NamedShape> shapes;
  for (size_t i = 0; i < mapping.size(); ++i) {
    const auto name = mapping.key(i).string();
    if (!name) {
      throw Error(ErrorCode::Corrupt, "a name in param_shapes is no string");
    }
    shapes.push_back(named_shape(*name, mapping.value(i)));
  }
  return shapes;
}

void read_module(const Value& module, ModelStates& states) {
  if (!module.is_mapping()) {
    throw Error(ErrorCode::Corrupt,
                "expected a dict of tensors in module, found something else");
  }
  for (size_t i = 0; i < module.size(); ++i) {
    const auto name = module.key(i).string();
    if (!name) continue;
    ModuleEntry entry{.name = std::string(*name)};
    try {
      entry.tensor = view_of(*states.file, module.value(i));
    } catch (Error& error) {
      throw error.in_tensor(*name);
    }
    states.module.push_back(std::move(entry));
  }
}

void read_frozen(const Value& root, ModelStates& states) {
  const auto shapes = root.find("frozen_param_shapes");
  states.has_frozen_key = shapes.has_value();
  if (!shapes || !shapes->is_mapping()) return;
  states.frozen_shapes = named_shapes(*shapes);
  const auto fragments = root.find("frozen_param_fragments");
  for (size_t i = 0; i < states.frozen_shapes->size(); ++i) {
    auto& tensor = states.frozen_tensors.emplace_back();
    if (!fragments) continue;
    const auto fragment =
        entry_near(*fragments, i, (*states.frozen_shapes)[i].name);
    if (fragment) tensor = view_of(*states.file, *fragment);
  }
}

void read_strings(const std::optional<Value>& list,
                  std::optional<std::vector<std::string>>& out) {
  if (!list || !list->is_sequence()) return;
  out.emplace();
  for (size_t i = 0; i < list->size(); ++i) {
    if (const auto name = list->item(i).string()) out->emplace_back(*name);
  }
}

void read_shared(const std::optional<Value>& shared, ModelStates& states) {
  if (!shared || !shared->is_mapping()) return;
  for (size_t i = 0; i < shared->size(); ++i) {
    const auto alias = shared->key(i).string();
    const auto kept = shared->value(i).string();
    if (alias && kept) states.shared.emplace_back(*alias, *kept);
  }
}

}  // namespace

std::optional<std::vector<std::vector<NamedShape>>> read_param_shapes(
    const std::optional<Value>& value) {
  if (!value || value->is_none()) return std::nullopt;
  std::vector<std::vector<NamedShape>> groups;
  if (value->is_mapping()) {
    groups.push_back(named_shapes(*value));
  } else if (value->is_sequence()) {
    for (size_t g = 0; g < value->size(); ++g) {
      groups.push_back(named_shapes(value->item(g)));
    }
  } else {
    throw Error(ErrorCode::Corrupt,
                "expected a list of mappings in param_shapes");
  }
  return groups;
}

ModelStates read_model_states(const ShardSet& shards, const ShardFile& model) {
  ModelStates states;
  states.source = model.source;
  const std::string& name = shards.sources->list()[model.source].name;
  try {
    const FileSource source(model.path);
    states.file = std::make_shared<const TorchFile>(TorchFile::open(source));
    const Value root = states.file->root();
    states.groups = read_param_shapes(root.find("param_shapes"));
    if (const auto module = root.find("module")) read_module(*module, states);
    read_strings(root.find("buffer_names"), states.buffer_names);
    read_frozen(root, states);
    read_shared(root.find("shared_params"), states);
  } catch (Error& error) {
    throw error.in_file(name);
  }
  // Versions 0.3.14 to 0.5.x keep param_shapes in the optimizer shards.
  const ShardFile* optim = shards.optim(0);
  if (!states.groups && optim != nullptr && optim->optim) {
    try {
      const FileSource source(optim->path);
      const TorchFile file = TorchFile::open(source);
      states.groups = read_param_shapes(file.root().find("param_shapes"));
    } catch (Error& error) {
      throw error.in_file(shards.sources->list()[optim->source].name);
    }
  }
  return states;
}

}  // namespace zckpt
