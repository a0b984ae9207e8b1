// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/plan_files.h"

#include <map>
#include <utility>

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
  FilePlanner(const std::vector<NamedTensor>& selected,
              const MergeOptions& options, std::string_view stem, Plan& plan)
      : selected_(selected), options_(options), stem_(stem), plan_(plan) {}

  void run() {
    std::vector<uint64_t> sizes;
    for (const NamedTensor& tensor : selected_) {
      uint64_t numel = 0;
      for (const PlannedRun& run : tensor.runs) numel += run.numel;
      sizes.push_back(
          checked_mul(numel, size_of(output_dtype(tensor)), "a tensor's size"));
      plan_.data_bytes =
          checked_add(plan_.data_bytes, sizes.back(), "the output's size");
      if (tensor.role != Role::Buffer) plan_.parameter_count += numel;
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
  DType output_dtype(const NamedTensor& tensor) const {
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
    std::map<std::string_view, const NamedTensor*> tensor_of;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (shards[i] != shard) continue;
      const NamedTensor& tensor = selected_[i];
      slots.push_back({.name = tensor.name,
                       .dtype = output_dtype(tensor),
                       .shape = tensor.shape});
      tensor_of[tensor.name] = &tensor;
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
      const NamedTensor& tensor = *tensor_of[slot.name];
      file.tensors.push_back({.name = slot.name,
                              .dtype = slot.dtype,
                              .offset = slot.offset,
                              .size_bytes = slot.size_bytes,
                              .runs = tensor.runs,
                              .change = tensor.change});
    }
    return file;
  }

  const std::vector<NamedTensor>& selected_;
  const MergeOptions& options_;
  std::string_view stem_;
  Plan& plan_;
};

}  // namespace

NamedTensor whole_tensor(const Checkpoint& checkpoint, uint32_t tensor,
                         std::string name) {
  const Tensor& stored = checkpoint.tensors()[tensor];
  return {.name = std::move(name),
          .role = stored.role,
          .dtype = stored.dtype,
          .shape = stored.shape,
          .runs = {{.tensor = tensor, .numel = stored.numel}},
          .change = std::nullopt};
}

void plan_files(const std::vector<NamedTensor>& selected,
                const MergeOptions& options, std::string_view stem,
                Plan& plan) {
  FilePlanner(selected, options, stem, plan).run();
}

}  // namespace zckpt
