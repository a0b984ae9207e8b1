// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "base/arithmetic.h"
#include "base/cast.h"
#include "base/text.h"
#include "writer/hf_index.h"
#include "writer/safetensors_header.h"
#include "zckpt/error.h"
#include "zckpt/merge.h"

namespace zckpt {
namespace {

// A tensor that will be written: its name in the output and its source.
struct Selected {
  std::string name;
  uint32_t tensor = 0;
};

bool matches_any(const std::vector<std::string>& globs, std::string_view name) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    return glob_match(glob, name);
  });
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const MergeOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  Plan plan() {
    plan_.dtype = options_.dtype;
    select();
    check_patterns();
    if (selected_.empty()) {
      throw Error(ErrorCode::Invalid, "no tensor is left to write");
    }
    cut_files();
    return std::move(plan_);
  }

 private:
  // Whether --include, --exclude and --exclude-frozen let a name through.
  bool wanted(const std::string& name, Role role) const {
    if (options_.exclude_frozen && role == Role::Frozen) return false;
    return wants_name(options_, name);
  }

  std::vector<std::string> names_in_order() const {
    const CheckpointFacts& facts = checkpoint_.facts();
    if (options_.order == TensorOrder::Module) return facts.module_order;
    // As zero_to_fp32 lists them: buffers, frozen weights, trainable ones in
    // flat-buffer order, tied names last.
    std::vector<std::string> names;
    std::set<std::string> listed;
    for (const Role role :
         {Role::Buffer, Role::Frozen, Role::Master, Role::Model}) {
      for (const Tensor& tensor : checkpoint_.tensors()) {
        if (tensor.role == role && listed.insert(tensor.name).second) {
          names.push_back(tensor.name);
        }
      }
    }
    for (const auto& [alias, kept] : facts.aliases) names.push_back(alias);
    return names;
  }

  void select() {
    std::map<std::string, std::string> kept_of;
    for (const auto& [alias, kept] : checkpoint_.facts().aliases) {
      kept_of[alias] = kept;
    }
    for (const std::string& name : names_in_order()) {
      const auto alias = kept_of.find(name);
      const std::string& data = alias == kept_of.end() ? name : alias->second;
      const Tensor* tensor = checkpoint_.find(data);
      if (tensor == nullptr || !wanted(name, tensor->role)) continue;
      const bool kept_is_written =
          alias != kept_of.end() && wanted(data, tensor->role);
      if (kept_is_written && options_.aliases == Aliases::Drop) {
        plan_.aliases.emplace_back(output_name(name), output_name(data));
        add_name(plan_.aliases.back().first);
        continue;
      }
      add(output_name(name), *tensor);
    }
  }

  void add_name(const std::string& name) {
    if (names_.insert(name).second) return;
    throw Error(ErrorCode::Conflict,
                "two tensors would get this name; choose another "
                "--strip-prefix",
                {.tensor = name});
  }

  void add(std::string name, const Tensor& tensor) {
    if (name.empty()) {
      throw Error(ErrorCode::Invalid,
                  "nothing would be left of this name; choose another "
                  "--strip-prefix",
                  {.tensor = tensor.name});
    }
    add_name(name);
    selected_.push_back({.name = std::move(name),
                         .tensor = static_cast<uint32_t>(
                             &tensor - checkpoint_.tensors().data())});
  }

  std::string output_name(const std::string& name) {
    if (options_.strip_prefix.empty() ||
        !name.starts_with(options_.strip_prefix)) {
      return name;
    }
    stripped_ = true;
    return name.substr(options_.strip_prefix.size());
  }

  // A pattern that matches nothing is a typing error that would otherwise
  // show only in what is missing.
  void check_patterns() const {
    for (const auto* globs : {&options_.include, &options_.exclude}) {
      for (const std::string& glob : *globs) {
        const auto& names = checkpoint_.facts().module_order;
        if (std::none_of(names.begin(), names.end(), [&](const auto& name) {
              return glob_match(glob, name);
            })) {
          throw Error(ErrorCode::Invalid,
                      "no tensor name matches " + escape(glob));
        }
      }
    }
    if (!options_.strip_prefix.empty() && !stripped_) {
      throw Error(ErrorCode::Invalid, "no tensor name begins with " +
                                          escape(options_.strip_prefix));
    }
  }

  DType output_dtype(const Tensor& tensor) const {
    if (!options_.dtype || !is_floating(tensor.dtype)) return tensor.dtype;
    if (!can_cast(tensor.dtype, *options_.dtype)) {
      throw Error(ErrorCode::Unsupported,
                  "cannot convert " + std::string(short_name(tensor.dtype)) +
                      " to " + std::string(short_name(*options_.dtype)) +
                      "; --dtype keep writes it as it is",
                  {.tensor = tensor.name});
    }
    return *options_.dtype;
  }

  void cut_files() {
    std::vector<uint64_t> sizes;
    for (const Selected& selected : selected_) {
      const Tensor& tensor = checkpoint_.tensors()[selected.tensor];
      sizes.push_back(checked_mul(tensor.numel, size_of(output_dtype(tensor)),
                                  "a tensor's size"));
      plan_.data_bytes =
          checked_add(plan_.data_bytes, sizes.back(), "the output's size");
      if (tensor.role != Role::Buffer) plan_.parameter_count += tensor.numel;
    }
    plan_.tensor_count = selected_.size();
    uint32_t count = 0;
    const std::vector<uint32_t> shards = split_into_shards(
        sizes, options_.single_file ? UINT64_MAX : options_.max_shard_bytes,
        &count);
    HfIndex index{.total_size = plan_.data_bytes,
                  .total_parameters = plan_.parameter_count,
                  .aliases = plan_.aliases};
    for (uint32_t shard = 0; shard < count; ++shard) {
      const std::string name =
          shard_file_name("model", ".safetensors", shard, count);
      plan_.files.push_back(plan_file(name, shard, shards, count == 1));
      for (const PlannedTensor& tensor : plan_.files.back().tensors) {
        index.weight_map.emplace_back(tensor.name, name);
      }
    }
    if (count > 1) {
      PlannedFile file{.name = "model.safetensors.index.json",
                       .header = hf_index_text(index)};
      file.size_bytes = file.header.size();
      plan_.files.push_back(std::move(file));
    }
  }

  PlannedFile plan_file(const std::string& name, uint32_t shard,
                        const std::vector<uint32_t>& shards, bool only) {
    std::vector<SafetensorsSlot> slots;
    std::map<std::string, uint32_t> tensor_of;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (shards[i] != shard) continue;
      const Tensor& tensor = checkpoint_.tensors()[selected_[i].tensor];
      slots.push_back({.name = selected_[i].name,
                       .dtype = output_dtype(tensor),
                       .shape = tensor.shape});
      tensor_of[selected_[i].name] = selected_[i].tensor;
    }
    std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"}};
    // huggingface_hub puts dropped names into the file, or into the index
    // where there is one.
    if (only) {
      metadata.insert(metadata.end(), plan_.aliases.begin(),
                      plan_.aliases.end());
    }
    PlannedFile file{.name = name};
    uint64_t data_bytes = 0;
    file.header = layout_safetensors(slots, metadata, &data_bytes);
    file.size_bytes =
        checked_add(file.header.size(), data_bytes, "a file's size");
    for (const SafetensorsSlot& slot : slots) {
      file.tensors.push_back({.name = slot.name,
                              .tensor = tensor_of[slot.name],
                              .dtype = slot.dtype,
                              .offset = slot.offset,
                              .size_bytes = slot.size_bytes});
    }
    return file;
  }

  const Checkpoint& checkpoint_;
  const MergeOptions& options_;
  Plan plan_;
  std::vector<Selected> selected_;
  std::set<std::string> names_;
  bool stripped_ = false;
};

}  // namespace

bool wants_name(const MergeOptions& options, std::string_view name) {
  return (options.include.empty() || matches_any(options.include, name)) &&
         !matches_any(options.exclude, name);
}

Plan plan_merge(const Checkpoint& checkpoint, const MergeOptions& options) {
  return Planner(checkpoint, options).plan();
}

}  // namespace zckpt
