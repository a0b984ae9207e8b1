// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/layout.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace zckpt {
namespace {

constexpr std::array kLayouts{&zero3_layout, &zero12_layout,
                              &legacy_stage1_layout, &stage0_layout,
                              &model_only_layout};

bool any_of_kind(const ShardSet& shards, ShardKind kind) {
  return std::any_of(
      shards.others.begin(), shards.others.end(),
      [&](const OtherFile& file) { return file.name.kind == kind; });
}

template <typename Predicate>
bool any_model(const ShardSet& shards, Predicate predicate) {
  return std::any_of(shards.files.begin(), shards.files.end(),
                     [&](const ShardFile& file) {
                       return file.model && predicate(*file.model);
                     });
}

// The optimizer file of any rank that could be read.
const OptimFacts* any_optim(const ShardSet& shards) {
  for (const ShardFile& file : shards.files) {
    if (file.optim && file.optim->kind != OptimKind::None) {
      return &*file.optim;
    }
  }
  return nullptr;
}

}  // namespace

void Contents::add(Tensor tensor, std::unique_ptr<const Placement> placement) {
  if (find(tensor.name, tensor.role, tensor.state)) {
    findings.push_back({.code = "parameter-duplicate",
                        .severity = Severity::Error,
                        .message = "expected each name once, found " +
                                   escape(tensor.name) + " twice as " +
                                   std::string(to_string(tensor.role)),
                        .tensor = tensor.name});
    return;
  }
  by_name_[tensor.name].push_back(static_cast<uint32_t>(tensors_.size()));
  append(std::move(tensor), std::move(placement));
}

void Contents::append(Tensor tensor,
                      std::unique_ptr<const Placement> placement) {
  tensors_.push_back(std::move(tensor));
  placements_.push_back(std::move(placement));
}

std::optional<size_t> Contents::find(std::string_view name, Role role,
                                     std::string_view state) const {
  const auto it = by_name_.find(std::string(name));
  if (it == by_name_.end()) return std::nullopt;
  for (const uint32_t i : it->second) {
    if (tensors_[i].role == role && tensors_[i].state == state) return i;
  }
  return std::nullopt;
}

std::optional<size_t> Contents::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  if (it == by_name_.end()) return std::nullopt;
  std::optional<size_t> best;
  for (const uint32_t i : it->second) {
    if (tensors_[i].role == Role::State) continue;
    if (!best || tensors_[i].role < tensors_[*best].role) best = i;
  }
  return best;
}

std::optional<std::string> unsupported_layout(const ShardSet& shards) {
  if (shards.has_universal) {
    return "universal checkpoint (a folder zero/ in the tag folder)";
  }
  if (any_of_kind(shards, ShardKind::Expert) ||
      any_of_kind(shards, ShardKind::ExpertOptim)) {
    return "mixture of experts (MoE: layer_*_expert_* or expp_rank_* files)";
  }
  if (any_of_kind(shards, ShardKind::PipelineLayer)) {
    return "pipeline parallelism (layer_*-model_states.pt files)";
  }
  if (any_of_kind(shards, ShardKind::FastPart)) {
    return "FastPersist parts (*.pt-RANK.WRITERS files)";
  }
  for (const ShardFile& file : shards.files) {
    if (file.optim && file.optim->has_partition_groups) {
      return "AutoEP (ds_zero_partition_groups)";
    }
  }
  if (any_model(shards, [](const auto& m) { return m.has_experts; })) {
    return "mixture of experts (MoE: num_experts)";
  }
  if (any_model(shards, [](const auto& m) {
        return m.mp_world_size.value_or(1) > 1;
      })) {
    return "tensor or model parallelism (AutoTP, Megatron: mp_world_size > 1)";
  }
  if (any_model(shards, [](const auto& m) { return !m.has_module; })) {
    return "pipeline parallelism (module is None)";
  }
  const OptimFacts* optim = any_optim(shards);
  const ShardFile* model = shards.leading_model();
  if (optim != nullptr && model != nullptr && optim->kind == OptimKind::Zero3 &&
      optim->partition_count.size() == 1 && model->model->dp_world_size &&
      optim->partition_count[0] < *model->model->dp_world_size) {
    return "MiCS (partition_count " +
           std::to_string(optim->partition_count[0]) +
           " is less than dp_world_size " +
           std::to_string(*model->model->dp_world_size) + ")";
  }
  return std::nullopt;
}

const Layout& choose_layout(const ShardSet& shards) {
  if (const auto reason = unsupported_layout(shards)) {
    throw Error(ErrorCode::Unsupported,
                "this layout is not read yet: " + *reason,
                {.file = shards.where.tag});
  }
  for (const auto& layout : kLayouts) {
    if (layout().fits(shards)) return layout();
  }
  throw Error(ErrorCode::Invalid,
              "expected *_optim_states.pt shards, or a model file that holds "
              "whole weights; found neither",
              {.file = shards.where.tag});
}

uint32_t world_size(const ShardSet& shards) {
  // partition_count is what the shards were cut by; a model file's
  // dp_world_size may count replicas that wrote nothing.
  if (const OptimFacts* optim = any_optim(shards)) {
    const auto& counts = optim->partition_count;
    const auto most = std::max_element(counts.begin(), counts.end());
    if (most != counts.end() && *most > 0 && *most <= UINT32_MAX) {
      return static_cast<uint32_t>(*most);
    }
  }
  const ShardFile* model = shards.leading_model();
  if (model != nullptr && model->model->dp_world_size.value_or(0) > 0 &&
      *model->model->dp_world_size <= UINT32_MAX) {
    return static_cast<uint32_t>(*model->model->dp_world_size);
  }
  return static_cast<uint32_t>(std::count_if(
      shards.files.begin(), shards.files.end(), [](const ShardFile& file) {
        return file.name.kind == ShardKind::Optim;
      }));
}

std::vector<const ShardFile*> ranked_optim(const ShardSet& shards) {
  const uint32_t count = world_size(shards);
  // A hostile partition_count must not size anything by itself.
  if (count > shards.files.size()) {
    throw Error(ErrorCode::Corrupt,
                "expected optimizer shards of " + std::to_string(count) +
                    " ranks, found " + std::to_string(shards.files.size()) +
                    " shard files in all",
                {.file = shards.where.tag});
  }
  std::vector<const ShardFile*> ranks(count, nullptr);
  for (const ShardFile& file : shards.files) {
    if (file.name.kind != ShardKind::Optim || *file.name.rank >= count) {
      continue;
    }
    if (file.fault) {
      throw Error(ErrorCode::Corrupt, file.fault->message,
                  {.file = shards.sources->list()[file.source].name,
                   .tensor = file.fault->tensor,
                   .offset = file.fault->offset});
    }
    ranks[*file.name.rank] = &file;
    // A folder into which two runs saved (stage-conflict of verify).
    const ShardFile* first = ranks[0];
    if (first != nullptr && first->optim->kind != file.optim->kind) {
      throw Error(ErrorCode::Corrupt,
                  "this shard and that of rank 0 are of different ZeRO stages",
                  {.file = shards.sources->list()[file.source].name});
    }
  }
  for (uint32_t rank = 0; rank < count; ++rank) {
    if (ranks[rank] == nullptr) {
      throw Error(ErrorCode::Corrupt,
                  "the optimizer shard of rank " + std::to_string(rank) +
                      " of " + std::to_string(count) + " is missing",
                  {.file = shards.where.tag});
    }
  }
  return ranks;
}

}  // namespace zckpt
