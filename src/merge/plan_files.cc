// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/plan_files.h"

#include <map>

#include "base/arithmetic.h"
#include "base/cast.h"
#include "base/text.h"
#include "writer/hf_index.h"
#include "writer/safetensors_header.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

class FilePlanner {
 public:
  FilePlanner(const Checkpoint& checkpoint,
              const std::vector<NamedTensor>& selected,
              const MergeOptions& options, std::string_view stem, Plan& plan)
      : checkpoint_(checkpoint),
        selected_(selected),
        options_(options),
        stem_(stem),
        plan_(plan) {}

  void run() {
    std::vector<uint64_t> sizes;
    for (const NamedTensor& selected : selected_) {
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
          shard_file_name(stem_, ".safetensors", shard, count);
      plan_.files.push_back(plan_file(name, shard, shards, count == 1));
      for (const PlannedTensor& tensor : plan_.files.back().tensors) {
        index.weight_map.emplace_back(tensor.name, name);
      }
    }
    if (count > 1) {
      PlannedFile file{.name = std::string(stem_) + ".safetensors.index.json",
                       .header = hf_index_text(index)};
      file.size_bytes = file.header.size();
      plan_.files.push_back(std::move(file));
    }
  }

 private:
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
  const std::vector<NamedTensor>& selected_;
  const MergeOptions& options_;
  std::string_view stem_;
  Plan& plan_;
};

}  // namespace

void plan_files(const Checkpoint& checkpoint,
                const std::vector<NamedTensor>& selected,
                const MergeOptions& options, std::string_view stem,
                Plan& plan) {
  FilePlanner(checkpoint, selected, options, stem, plan).run();
}

}  // namespace zckpt
