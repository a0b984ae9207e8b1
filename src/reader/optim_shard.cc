// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "reader/digest.h"
#include "reader/shard_kinds.h"
#include "reader/shard_reader.h"
#include "reader/tensor_view.h"
#include "reader/torch_tensor.h"

namespace zckpt {
namespace {

bool is_tensor_of_rank(const Value& value, size_t rank) {
  const auto tensor = as_tensor(value);
  return tensor && tensor->shape.size() == rank;
}

// What is no count (NaN, a flipped sign) tells nothing about the step.
std::optional<double> count_or_none(double number) {
  constexpr double kMost = 1e15;
  if (number >= 0 && number <= kMost) return number;
  return std::nullopt;
}

// The value of a step: an integer, or a 0-dim float tensor whose four bytes
// are the only payload that indexing ever reads.
std::optional<double> read_step(const ByteSource& source, const TorchFile& file,
                                const Value& value) {
  if (const auto number = value.number()) return count_or_none(*number);
  const auto tensor = as_tensor(value);
  if (!tensor || tensor->numel() != 1) return std::nullopt;
  const FlatVector vector = flat_vector(file, value, 0);
  std::array<std::byte, 8> bytes{};
  source.read_at(vector.offset, std::span(bytes).first(size_of(vector.dtype)));
  if (vector.dtype == DType::F32) {
    float number = 0;
    std::memcpy(&number, bytes.data(), sizeof(number));
    return count_or_none(number);
  }
  if (vector.dtype == DType::I64) {
    int64_t number = 0;
    std::memcpy(&number, bytes.data(), sizeof(number));
    return count_or_none(static_cast<double>(number));
  }
  return std::nullopt;
}

// Reads one optimizer shard (format.md 3).
class OptimReader {
 public:
  OptimReader(const ByteSource& source, const TorchFile& file, ShardFile& shard)
      : source_(source), file_(file), shard_(shard) {}

  void read() {
    const Value root = file_.root();
    const auto inner = root.find("optimizer_state_dict");
    facts_.ds_version = text_or_empty(root.find("ds_version"));
    if (const auto config = root.find("ds_config")) {
      facts_.config_digest = digest(*config);
    }
    if (inner && inner->is_mapping()) {
      read_inner(*inner);
    } else if (!root.find("optimizer")) {
      require(root, "optimizer_state_dict", "the optimizer shard");
    }
    require_apart();
    shard_.vectors = std::make_shared<const VectorTable>(std::move(table_));
    shard_.optim = std::move(facts_);
  }

 private:
  void read_inner(const Value& inner) {
    if (const auto stage = inner.find("zero_stage")) {
      facts_.zero_stage = stage_number(*stage);
    }
    if (facts_.ds_version.empty()) {
      facts_.ds_version = text_or_empty(inner.find("ds_version"));
    }
    read_settings(inner);
    facts_.has_partition_groups =
        inner.find("ds_zero_partition_groups").has_value();
    read_integers(inner.find("partition_count"), facts_.partition_count);
    read_integers(inner.find("group_paddings"), facts_.group_paddings);
    read_alignment(inner.find("param_alignment_paddings"));
    read_slices(inner.find("param_slice_mappings"));
    if (const auto groups = inner.find("fp32_flat_groups")) {
      facts_.kind = OptimKind::Zero3;
      note_missing(inner,
                   {"loss_scaler", "dynamic_loss_scale", "overflow",
                    "optimizer_state_dict"},
                   shard_);
      read_masters(*groups);
      if (const auto optimizer = inner.find("optimizer_state_dict")) {
        read_rigid_states(*optimizer);
      }
    } else if (const auto parts =
                   inner.find("single_partition_of_fp32_groups")) {
      // BF16_Optimizer writes no zero_stage and does not strip padding.
      facts_.kind =
          inner.find("zero_stage") ? OptimKind::Zero12 : OptimKind::Bf16;
      note_missing(inner, {"base_optimizer_state", "ds_version"}, shard_);
      read_masters(*parts);
      read_states(inner);
    } else if (const auto subs =
                   inner.find("local_sub_partitions_of_fp32_groups")) {
      facts_.kind = OptimKind::LegacyStage1;
      read_sub_partitions(*subs);
    } else {
      require(inner, "fp32_flat_groups", "the optimizer state");
    }
  }

  void read_settings(const Value& inner) {
    for (const char* key : {"optimizer_state_dict", "base_optimizer_state"}) {
      const auto optimizer = inner.find(key);
      const auto groups = optimizer && optimizer->is_mapping()
                              ? optimizer->find("param_groups")
                              : std::nullopt;
      if (groups) facts_.settings_digest = digest(*groups);
    }
    if (const auto scaler = inner.find("loss_scaler")) {
      facts_.scaler_digest = digest(*scaler);
    }
  }

  void read_integers(const std::optional<Value>& value,
                     std::vector<int64_t>& out) {
    if (!value) return;
    if (const auto single = value->integer()) out.push_back(*single);
    for (size_t i = 0; i < (value->is_sequence() ? value->size() : 0); ++i) {
      out.push_back(value->item(i).integer().value_or(0));
    }
  }

  void read_alignment(const std::optional<Value>& value) {
    if (!value || !value->is_sequence()) return;
    for (size_t g = 0; g < value->size(); ++g) {
      std::vector<int64_t> signed_paddings;
      read_integers(value->item(g), signed_paddings);
      auto& paddings = facts_.alignment_paddings.emplace_back();
      for (const int64_t padding : signed_paddings) {
        if (padding < 0) {
          throw Error(ErrorCode::Corrupt,
                      "param_alignment_paddings holds a negative number");
        }
        paddings.push_back(static_cast<uint64_t>(padding));
      }
    }
  }

  // Per group: name -> fragment_address(numel, start).
  void read_slices(const std::optional<Value>& groups) {
    if (!groups || !groups->is_sequence()) return;
    for (size_t g = 0; g < groups->size(); ++g) {
      const Value group = groups->item(g);
      std::vector<Slice>& slices = facts_.slices.emplace_back();
      for (size_t i = 0; i < (group.is_mapping() ? group.size() : 0); ++i) {
        const auto name = group.key(i).string();
        const Value address = group.value(i);
        const auto state = address.is_call() ? address.state() : std::nullopt;
        const auto part = [&](const char* key) {
          const auto value =
              state && state->is_mapping() ? state->find(key) : std::nullopt;
          return value ? value->integer().value_or(-1) : -1;
        };
        const int64_t start = part("start");
        const int64_t numel = part("numel");
        // Of another form: nothing is known of any group.
        if (!name || start < 0 || numel < 0) return facts_.slices.clear();
        slices.push_back({.name = digest(*name),
                          .start = static_cast<uint64_t>(start),
                          .numel = static_cast<uint64_t>(numel)});
      }
    }
  }

  void read_masters(const Value& groups) {
    if (!groups.is_sequence()) {
      throw Error(ErrorCode::Corrupt, "the masters are not a list");
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      table_.masters.push_back(flat_vector(file_, groups.item(g), shard_.base));
      if (!is_floating(table_.masters.back().dtype)) {
        throw Error(ErrorCode::Corrupt,
                    "expected floating masters, found " +
                        std::string(short_name(table_.masters.back().dtype)));
      }
    }
  }

  // No two groups hold the same bytes.
  void require_apart() const {
    std::vector<std::pair<uint64_t, uint64_t>> runs;
    for (const FlatVector& vector : table_.masters) {
      if (vector.numel == 0) continue;
      runs.emplace_back(vector.offset,
                        vector.offset + vector.numel * size_of(vector.dtype));
    }
    std::sort(runs.begin(), runs.end());
    for (size_t i = 1; i < runs.size(); ++i) {
      if (runs[i].first >= runs[i - 1].second) continue;
      throw Error(ErrorCode::Corrupt, "two groups of masters overlap",
                  {.offset = shard_.base + runs[i].first});
    }
  }

  void read_sub_partitions(const Value& groups) {
    if (!groups.is_sequence()) {
      throw Error(ErrorCode::Corrupt, "the sub-partitions are not a list");
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      const size_t before = table_.masters.size();
      if (groups.item(g).is_sequence()) {
        read_masters(groups.item(g));
      } else {
        table_.masters.push_back(
            flat_vector(file_, groups.item(g), shard_.base));
      }
      facts_.sub_partitions.push_back(
          static_cast<uint32_t>(table_.masters.size() - before));
    }
  }

  void read_states(const Value& inner) {
    const auto base = inner.find("base_optimizer_state");
    if (!base) return;
    if (base->is_mapping()) return read_rigid_states(*base);
    // Elastic: a list of one dict per group, padding stripped.
    if (!base->is_sequence()) return;
    facts_.elastic_state = true;
    note_missing(inner, {"base_optimizer_state_step"}, shard_);
    const size_t groups = std::min(base->size(), table_.masters.size());
    for (size_t g = 0; g < groups; ++g) read_group_state(g, base->item(g));
  }

  // torch's own form: {'state': {g: {...}}, 'param_groups': [...]}.
  void read_rigid_states(const Value& optimizer) {
    if (!optimizer.is_mapping()) return;
    note_missing(optimizer, {"state", "param_groups"}, shard_);
    read_param_groups(optimizer.find("param_groups"));
    const auto state = optimizer.find("state");
    if (!state || !state->is_mapping()) return;
    for (size_t g = 0; g < table_.masters.size(); ++g) {
      const auto group = state->find(static_cast<int64_t>(g));
      if (group) read_group_state(g, *group);
    }
  }

  void read_param_groups(const std::optional<Value>& groups) {
    if (!groups || !groups->is_sequence()) return;
    uint64_t listed = 0;
    for (size_t g = 0; g < groups->size(); ++g) {
      const Value group = groups->item(g);
      if (!group.is_mapping()) return;
      const auto params = group.find("params");
      if (!params || !params->is_sequence()) return;
      listed += params->size();
      facts_.has_betas = facts_.has_betas || group.find("betas").has_value();
    }
    facts_.listed_params = listed;
  }

  void read_group_state(size_t group, const Value& state) {
    if (!state.is_mapping()) return;
    for (size_t i = 0; i < state.size(); ++i) {
      const auto name = state.key(i).string();
      if (!name) continue;
      const Value value = state.value(i);
      if (*name == "step" && !facts_.step) {
        facts_.step = read_step(source_, file_, value);
      }
      // A vector along the partition can be cut; everything else (a step, a
      // scalar) belongs to the group as a whole.
      if (!is_tensor_of_rank(value, 1)) continue;
      states_of(*name).vectors[group] = flat_vector(file_, value, shard_.base);
    }
  }

  NamedVectors& states_of(std::string_view name) {
    for (NamedVectors& entry : table_.states) {
      if (entry.name == name) return entry;
    }
    NamedVectors& entry = table_.states.emplace_back();
    entry.name = name;
    entry.vectors.resize(table_.masters.size());
    return entry;
  }

  const ByteSource& source_;
  const TorchFile& file_;
  ShardFile& shard_;
  OptimFacts facts_;
  VectorTable table_;
};

}  // namespace

void read_optim(const ByteSource& source, const TorchFile& file,
                ShardFile& shard) {
  OptimReader(source, file, shard).read();
}

}  // namespace zckpt
