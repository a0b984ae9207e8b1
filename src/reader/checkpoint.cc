// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <vector>

#include "base/cast.h"
#include "reader/checkpoint_data.h"

namespace zckpt {
namespace {

constexpr uint64_t kSmallRun = uint64_t{1} << 16;
// Elements that are converted at a time.
constexpr uint64_t kCastElements = uint64_t{1} << 18;

void read_extent(const SourceSet& sources, const Extent& extent, uint64_t size,
                 std::byte* out) {
  const auto file = sources.open(extent.source);
  const uint64_t run = extent.numel * size;
  // Short runs that lie near each other are read together.
  if (extent.count > 1 && extent.stride <= kSmallRun && run != 0) {
    constexpr uint64_t kBatchBytes = kSmallRun * 16;
    const uint64_t batch =
        std::max<uint64_t>(1, (kBatchBytes - std::min(run, kBatchBytes)) /
                                  std::max<uint64_t>(extent.stride, 1));
    std::vector<std::byte> buffer;
    for (uint64_t i = 0; i < extent.count; i += batch) {
      const uint64_t runs = std::min(batch, extent.count - i);
      buffer.resize(static_cast<size_t>((runs - 1) * extent.stride + run));
      file->read_at(extent.offset + i * extent.stride, buffer);
      for (uint64_t k = 0; k < runs; ++k) {
        std::memcpy(out, buffer.data() + k * extent.stride,
                    static_cast<size_t>(run));
        out += run;
      }
    }
    return;
  }
  for (uint64_t i = 0; i < extent.count; ++i) {
    file->read_at(extent.offset + i * extent.stride,
                  {out, static_cast<size_t>(run)});
    out += run;
  }
}

std::string layout_name(const ShardSet& shards, const Layout& layout) {
  for (const ShardFile& file : shards.files) {
    if (!file.optim || file.optim->kind == OptimKind::None) continue;
    if (file.optim->kind == OptimKind::Bf16) return "BF16_Optimizer";
    if (file.optim->kind == OptimKind::Zero12) {
      return file.optim->zero_stage == 1 ? "ZeRO-1" : "ZeRO-2";
    }
    break;
  }
  return std::string(layout.name);
}

void read_dtypes(const Contents& contents, CheckpointFacts& facts) {
  for (const Tensor& tensor : contents.tensors()) {
    if (tensor.role == Role::Master && !facts.master_dtype) {
      facts.master_dtype = tensor.dtype;
    }
    if (tensor.role == Role::Model && !facts.dtype) {
      facts.dtype = tensor.dtype;
    }
  }
}

// Whether the save left frozen weights out: DeepSpeed then writes None where
// stage 2 and 3 files otherwise hold a mapping (format.md 2.1); a PEFT model
// without its base says so at every stage.
bool frozen_excluded(const ModelStates& states, const ShardSet& shards,
                     const Contents& contents, std::optional<int> stage) {
  bool peft = false;
  bool any_frozen = false;
  std::set<std::string_view> aliases;
  for (const auto& [alias, kept] : states.shared) aliases.insert(alias);
  for (const Tensor& tensor : contents.tensors()) {
    // An alias stays in the module where the weight it repeats is left out.
    any_frozen = any_frozen || (tensor.role == Role::Frozen &&
                                !aliases.contains(tensor.name));
    peft = peft || (tensor.role == Role::Master &&
                    tensor.name.find(".lora_") != std::string::npos);
  }
  if (!states.groups) return false;
  const bool bf16_optimizer = std::any_of(
      shards.files.begin(), shards.files.end(), [](const ShardFile& file) {
        return file.optim && file.optim->kind == OptimKind::Bf16;
      });
  const bool none_written = states.has_frozen_key && !states.frozen_shapes &&
                            stage.value_or(0) >= 2 && !bf16_optimizer;
  return none_written || (peft && !any_frozen);
}

}  // namespace

std::string_view to_string(Role role) {
  switch (role) {
    case Role::Master: return "master";
    case Role::Frozen: return "frozen";
    case Role::Buffer: return "buffer";
    case Role::Model: return "model";
    case Role::State: return "state";
  }
  return "model";
}

CheckpointFacts facts_of(const ShardSet& shards) {
  CheckpointFacts facts;
  facts.folder = shards.where.folder;
  facts.tag = shards.where.tag;
  facts.framework = to_string(shards.where.framework);
  facts.world_size = world_size(shards);
  const ShardFile* model = shards.leading_model();
  if (model != nullptr) {
    facts.step = model->model->global_steps;
    facts.deepspeed_version = model->model->ds_version;
    if (model->model->config_stage) {
      facts.stage = static_cast<int>(*model->model->config_stage);
    }
  }
  for (const ShardFile& file : shards.files) {
    if (!file.optim) continue;
    if (!facts.optimizer_step) facts.optimizer_step = file.optim->step;
    if (facts.deepspeed_version.empty()) {
      facts.deepspeed_version = file.optim->ds_version;
    }
    if (file.optim->kind == OptimKind::Zero3) facts.stage = 3;
    if (!facts.stage && file.optim->zero_stage) {
      facts.stage = static_cast<int>(*file.optim->zero_stage);
    }
  }
  return facts;
}

std::shared_ptr<const CheckpointData> build_checkpoint(
    const CheckpointPath& where,
    const std::shared_ptr<const ShardSet>& shards) {
  auto data = std::make_shared<CheckpointData>();
  if (where.framework == Framework::Weights) {
    auto sources = std::make_shared<SourceSet>(where.folder);
    data->contents = read_weights_folder(where.folder, *sources);
    data->sources = std::move(sources);
    data->facts.folder = where.folder;
    data->facts.framework = "weights";
    data->facts.layout = "Hugging Face weights";
  } else {
    const Layout& layout = choose_layout(*shards);
    const ShardFile* model = shards->leading_model();
    if (model == nullptr) {
      throw Error(ErrorCode::Corrupt,
                  "no *_model_states.pt could be read: without it the shards "
                  "have no names",
                  {.file = where.tag});
    }
    const ModelStates states = read_model_states(*shards, *model);
    layout.read(shards, states, data->contents);
    read_model_contents(shards, states, data->contents);
    data->shards = shards;
    data->sources = shards->sources;
    data->facts = facts_of(*shards);
    data->facts.layout = layout_name(*shards, layout);
    data->facts.frozen_excluded =
        frozen_excluded(states, *shards, data->contents, data->facts.stage);
    if (data->facts.frozen_excluded) {
      // Left out with the frozen weights: nothing is lost by accident.
      for (Finding& finding : data->contents.findings) {
        if (finding.code == "alias-dangling") finding.severity = Severity::Note;
      }
    }
    if (!data->facts.dtype) {
      // Stage 3 leaves placeholders of the model's dtype.
      for (const ModuleEntry& entry : states.module) {
        if (entry.tensor && data->contents.find(entry.name, Role::Master)) {
          data->facts.dtype = entry.tensor->dtype;
          break;
        }
      }
    }
  }
  read_dtypes(data->contents, data->facts);
  data->facts.aliases = data->contents.aliases;
  data->facts.module_order = data->contents.module_order;
  data->facts.notes = where.notes;
  data->facts.notes.insert(data->facts.notes.end(),
                           data->contents.notes.begin(),
                           data->contents.notes.end());
  return data;
}

std::shared_ptr<const CheckpointData> open_weights_beside(
    const std::string& folder) {
  if (!has_weights(folder)) return nullptr;
  CheckpointPath where;
  where.folder = folder;
  where.framework = Framework::Weights;
  return build_checkpoint(where, nullptr);
}

std::shared_ptr<const CheckpointData> open_adapter_weights(
    const std::string& folder) {
  for (const char* name : {"adapter_model.safetensors", "adapter_model.bin"}) {
    std::error_code ignored;
    if (!std::filesystem::exists(std::filesystem::path(folder) / name,
                                 ignored)) {
      continue;
    }
    auto data = std::make_shared<CheckpointData>();
    auto sources = std::make_shared<SourceSet>(folder);
    data->contents = read_weights_file(folder, name, *sources);
    data->sources = sources;
    data->facts.folder = folder;
    data->facts.aliases = data->contents.aliases;
    data->facts.module_order = data->contents.module_order;
    return data;
  }
  return nullptr;
}

Checkpoint Checkpoint::open(const std::string& path,
                            const OpenOptions& options) {
  const auto found = find_checkpoints(path, options);
  const CheckpointPath& where = found.front();
  std::shared_ptr<const ShardSet> shards;
  if (where.framework != Framework::Weights) {
    shards = std::make_shared<const ShardSet>(read_shards(where, options));
  }
  auto data = build_checkpoint(where, shards);
  for (const Finding& finding : data->contents.findings) {
    if (finding.severity == Severity::Error) {
      throw Error(ErrorCode::Corrupt, finding.message,
                  {.tensor = finding.tensor})
          .with_findings(data->contents.findings);
    }
  }
  return Checkpoint(std::move(data));
}

Checkpoint::Checkpoint(std::shared_ptr<const CheckpointData> data)
    : data_(std::move(data)) {}

const CheckpointFacts& Checkpoint::facts() const { return data_->facts; }

std::span<const Tensor> Checkpoint::tensors() const {
  return data_->contents.tensors();
}

std::span<const Source> Checkpoint::sources() const {
  return data_->sources->list();
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto i = data_->contents.find(name);
  return i ? &data_->contents.tensors()[*i] : nullptr;
}

const Tensor* Checkpoint::find(std::string_view name, Role role,
                               std::string_view state) const {
  const auto i = data_->contents.find(name, role, state);
  return i ? &data_->contents.tensors()[*i] : nullptr;
}

void check_read(const Tensor& tensor, uint64_t first, uint64_t numel,
                DType dtype, size_t out_bytes) {
  if (first > tensor.numel || numel > tensor.numel - first) {
    throw Error(ErrorCode::Invalid, "expected a range within the tensor",
                {.tensor = tensor.name});
  }
  const uint64_t size = size_of(dtype);
  if (out_bytes / size != numel || out_bytes % size != 0) {
    throw Error(ErrorCode::Invalid, "the buffer is not as long as the range",
                {.tensor = tensor.name});
  }
  if (!can_cast(tensor.dtype, dtype)) {
    throw Error(ErrorCode::Unsupported,
                "cannot convert " + std::string(short_name(tensor.dtype)) +
                    " to " + std::string(short_name(dtype)),
                {.tensor = tensor.name});
  }
}

void Checkpoint::extents(const Tensor& tensor, uint64_t first, uint64_t numel,
                         const ExtentSink& sink) const {
  const auto index =
      static_cast<size_t>(&tensor - data_->contents.tensors().data());
  if (index >= data_->contents.tensors().size() || first > tensor.numel ||
      numel > tensor.numel - first) {
    throw Error(ErrorCode::Invalid, "expected a range within the tensor",
                {.tensor = tensor.name});
  }
  if (numel != 0) data_->contents.placement(index).extents(first, numel, sink);
}

void Checkpoint::read(const Tensor& tensor, uint64_t first, uint64_t numel,
                      std::span<std::byte> out) const {
  check_read(tensor, first, numel, tensor.dtype, out.size());
  const uint64_t size = size_of(tensor.dtype);
  std::byte* next = out.data();
  extents(tensor, first, numel, [&](const Extent& extent) {
    read_extent(*data_->sources, extent, size, next);
    next += extent.count * extent.numel * size;
  });
  data_->sources->check_unchanged();
}

void Checkpoint::read(const Tensor& tensor, uint64_t first, uint64_t numel,
                      DType dtype, std::span<std::byte> out) const {
  if (dtype == tensor.dtype) return read(tensor, first, numel, out);
  check_read(tensor, first, numel, dtype, out.size());
  const uint64_t from_size = size_of(tensor.dtype);
  const uint64_t to_size = size_of(dtype);
  std::vector<std::byte> stored(
      static_cast<size_t>(std::min(numel, kCastElements) * from_size));
  CastCounts ignored;
  for (uint64_t done = 0; done < numel;) {
    const uint64_t count = std::min(kCastElements, numel - done);
    const auto in =
        std::span(stored).first(static_cast<size_t>(count * from_size));
    read(tensor, first + done, count, in);
    cast(tensor.dtype, in, dtype,
         out.subspan(static_cast<size_t>(done * to_size),
                     static_cast<size_t>(count * to_size)),
         ignored);
    done += count;
  }
}

}  // namespace zckpt
