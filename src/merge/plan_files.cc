// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/plan_files.h"

#include <map>
#include <string>
#include <utility>

#include "base/arithmetic.h"
#include "base/cast.h"
#include "base/text.h"
#include "writer/hf_index.h"
#include "writer/safetensors_header.h"
#include "writer/torch_archive.h"
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
    for (const auto& [alias, kept] : plan_.aliases) {
      aliases_of_[kept].push_back(alias);
    }
    HfIndex index{.total_size = plan_.data_bytes,
                  .total_parameters = plan_.parameter_count};
    if (!is_bin()) index.aliases = plan_.aliases;
    for (uint32_t shard = 0; shard < count; ++shard) {
      plan_.files.push_back(
          plan_file(shard_file_name(stem_, extension(), shard, count), shard,
                    shards, count == 1));
      const PlannedFile& file = plan_.files.back();
      for (const PlannedTensor& tensor : file.tensors) {
        index.weight_map.emplace_back(tensor.name, file.name);
        if (!is_bin()) continue;
        for (const std::string& alias : aliases_of_[tensor.name]) {
          index.weight_map.emplace_back(alias, file.name);
        }
      }
    }
    if (count > 1) {
      PlannedFile file{
          .name = std::string(stem_) + std::string(extension()) + ".index.json",
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

  bool is_bin() const { return options_.format == WeightFormat::Bin; }
  std::string_view extension() const {
    return is_bin() ? ".bin" : ".safetensors";
  }

  PlannedFile plan_file(const std::string& name, uint32_t shard,
                        const std::vector<uint32_t>& shards, bool only) {
    std::vector<TensorSlot> slots;
    std::map<std::string_view, const NamedTensor*> tensor_of;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (shards[i] != shard) continue;
      const NamedTensor& tensor = selected_[i];
      slots.push_back({.name = tensor.name,
                       .dtype = output_dtype(tensor),
                       .shape = tensor.shape});
      tensor_of[tensor.name] = &tensor;
    }
    PlannedFile file{.name = name};
    if (is_bin()) {
      lay_out_bin(slots, file);
    } else {
      lay_out_safetensors(slots, only, file);
    }
    for (const TensorSlot& slot : slots) {
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

  void lay_out_safetensors(std::vector<TensorSlot>& slots, bool only,
                           PlannedFile& file) {
    std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"}};
    // huggingface_hub puts dropped names into the file, or into the index
    // where there is one.
    if (only) {
      metadata.insert(metadata.end(), plan_.aliases.begin(),
                      plan_.aliases.end());
    }
    uint64_t data_bytes = 0;
    file.header = layout_safetensors(slots, metadata, &data_bytes);
    file.size_bytes =
        checked_add(file.header.size(), data_bytes, "a file's size");
  }

  void lay_out_bin(std::vector<TensorSlot>& slots, PlannedFile& file) {
    std::vector<std::pair<std::string, std::string>> aliases;
    for (const TensorSlot& slot : slots) {
      for (const std::string& alias : aliases_of_[slot.name]) {
        aliases.emplace_back(alias, slot.name);
      }
    }
    const std::string_view prefix = std::string_view(file.name).substr(
        0, file.name.size() - extension().size());
    TorchArchive archive = layout_torch_archive(prefix, slots, aliases);
    file.header = std::move(archive.header);
    file.records = std::move(archive.records);
    file.size_bytes = archive.size_bytes;
  }

  const std::vector<NamedTensor>& selected_;
  const MergeOptions& options_;
  std::string_view stem_;
  Plan& plan_;
  // Names that a .bin gives to a tensor besides its own.
  std::map<std::string, std::vector<std::string>> aliases_of_;
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

std::string_view model_stem(WeightFormat format) {
  return format == WeightFormat::Bin ? "pytorch_model" : "model";
}

void plan_files(const std::vector<NamedTensor>& selected,
                const MergeOptions& options, std::string_view stem,
                Plan& plan) {
  FilePlanner(selected, options, stem, plan).run();
}

}  // namespace zckpt
