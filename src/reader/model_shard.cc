// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "reader/digest.h"
#include "reader/shard_kinds.h"
#include "reader/shard_reader.h"
#include "reader/tensor_view.h"

namespace zckpt {
namespace {

void read_fragments(const TorchFile& file, const Value& root,
                    ShardFile& shard) {
  VectorTable table;
  const auto shapes = root.find("frozen_param_shapes");
  const auto fragments = root.find("frozen_param_fragments");
  if (shapes && fragments && shapes->is_mapping() && fragments->is_mapping()) {
    const size_t count = shapes->size();
    table.fragments.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const auto name = shapes->key(i).string();
      if (!name) continue;
      const auto fragment = entry_near(*fragments, i, *name);
      if (!fragment || fragment->is_none()) continue;
      try {
        table.fragments[i] = flat_vector(file, *fragment, shard.base);
      } catch (Error& error) {
        throw error.in_tensor(*name);
      }
    }
  }
  shard.vectors = std::make_shared<const VectorTable>(std::move(table));
}

// Whether the run's ds_config asks for bf16; nothing where it does not tell.
std::optional<bool> wants_bf16(const Value& config) {
  if (!config.is_mapping()) return std::nullopt;
  for (const std::string_view key : {"bf16", "bfloat16"}) {
    const auto section = config.find(key);
    if (!section || !section->is_mapping()) continue;
    const auto enabled = section->find("enabled");
    return enabled ? enabled->boolean() : false;
  }
  return false;
}

// A scheduler of DeepSpeed's own is loaded without asking.
bool lacks_scheduler(const Value& root) {
  const auto scheduler = root.find("lr_scheduler");
  return !scheduler || scheduler->is_none();
}

// The optimizer of stage 0: torch's own, or a wrapper with masters around it.
void note_missing_optimizer(const Value& optimizer, ShardFile& shard) {
  if (optimizer.find("state") || optimizer.find("param_groups")) {
    note_missing(optimizer, {"state", "param_groups"}, shard);
    return;
  }
  note_missing(optimizer, {"optimizer_state_dict"}, shard);
  if (!optimizer.find("fp32_groups_flat")) {
    note_missing(optimizer, {"fp32_groups"}, shard);
  }
}

}  // namespace

void read_model(const TorchFile& file, ShardFile& shard) {
  const Value root = file.root();
  ModelFacts facts;
  if (root.string()) {
    facts.is_placeholder = true;
    shard.model = std::move(facts);
    return;
  }
  if (!root.is_mapping()) {
    throw Error(ErrorCode::Corrupt,
                "expected a dict in the model shard, found something else");
  }
  facts.global_steps = integer_or_none(root.find("global_steps"));
  facts.skipped_steps = integer_or_none(root.find("skipped_steps"));
  facts.dp_world_size = integer_or_none(root.find("dp_world_size"));
  facts.mp_world_size = integer_or_none(root.find("mp_world_size"));
  facts.ds_version = text_or_empty(root.find("ds_version"));
  note_missing(
      root, {"global_steps", "skipped_steps", "dp_world_size", "mp_world_size"},
      shard);
  if (const auto config = root.find("ds_config")) {
    facts.config_digest = digest(*config);
    facts.has_scheduler_config = config->find("scheduler").has_value();
    if (facts.has_scheduler_config && lacks_scheduler(root)) {
      shard.missing_keys.emplace_back("lr_scheduler");
    }
    facts.config_bf16 = wants_bf16(*config);
    if (const auto zero = config->find("zero_optimization")) {
      facts.config_stage = integer_or_none(zero->find("stage"));
      if (const auto flag = zero->find("zero_quantized_nontrainable_weights")) {
        facts.quantized_frozen = flag->boolean().value_or(false);
      }
    }
  }
  if (const auto shapes = root.find("param_shapes")) {
    facts.shapes_digest = digest(*shapes);
  }
  if (const auto shapes = root.find("frozen_param_shapes")) {
    facts.frozen_digest = digest(*shapes);
  }
  const Value module = require(root, "module", "the model shard");
  facts.has_module = !module.is_none();
  const auto optimizer = root.find("optimizer");
  facts.has_optimizer = optimizer && optimizer->is_mapping();
  if (facts.has_optimizer) note_missing_optimizer(*optimizer, shard);
  const auto experts = root.find("num_experts");
  facts.has_experts = root.find("ds_autoep_layers").has_value() ||
                      (experts && !experts->is_none());
  if (experts) {
    if (const auto single = experts->integer()) {
      facts.num_experts.push_back(*single);
    }
    for (size_t i = 0; i < (experts->is_sequence() ? experts->size() : 0);
         ++i) {
      facts.num_experts.push_back(experts->item(i).integer().value_or(0));
    }
  }
  // Stage 3 cuts frozen parameters over the ranks; a file without a rank in
  // its name holds them whole.
  read_fragments(file, root, shard);
  shard.model = std::move(facts);
}

}  // namespace zckpt
