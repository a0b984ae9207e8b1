// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/shard_reader.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "reader/digest.h"
#include "reader/recognise.h"
#include "reader/tensor_view.h"
#include "reader/torch_tensor.h"
#include "reader/zip_directory.h"

namespace zckpt {
namespace {

std::string text_or_empty(const std::optional<Value>& value) {
  return value ? std::string(value->string().value_or("")) : std::string();
}

std::optional<int64_t> integer_or_none(const std::optional<Value>& value) {
  return value ? value->integer() : std::nullopt;
}

Value require(const Value& mapping, std::string_view key,
              std::string_view where) {
  const auto value = mapping.find(key);
  if (value) return *value;
  throw fault_error("key-missing", "expected the key " + std::string(key) +
                                       " in " + std::string(where) +
                                       ", found none");
}

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

void note_missing(const Value& mapping,
                  std::initializer_list<std::string_view> keys,
                  ShardFile& shard) {
  for (const std::string_view key : keys) {
    if (!mapping.find(key)) shard.missing_keys.emplace_back(key);
  }
}

// Every class and function that an unpickler would import. getattr counts only
// where it is not one of the two forms of ZeroStageEnum.
std::vector<std::string> imported_names(const Pickle& pickle) {
  std::set<std::string> names;
  for (NodeId id = 0; id < pickle.node_count(); ++id) {
    const Value value(pickle, id);
    if (value.kind() == NodeKind::Global && value.global_name() != "getattr") {
      names.insert(std::string(value.global_module()) + " " +
                   std::string(value.global_name()));
    } else if (value.is_call() && value.callable().global_name() == "getattr" &&
               !stage_number(value)) {
      names.insert(std::string(value.callable().global_module()) + " getattr");
    }
  }
  return {names.begin(), names.end()};
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
    facts_.has_partition_groups =
        inner.find("ds_zero_partition_groups").has_value();
    read_integers(inner.find("partition_count"), facts_.partition_count);
    read_integers(inner.find("group_paddings"), facts_.group_paddings);
    read_alignment(inner.find("param_alignment_paddings"));
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

  void read_masters(const Value& groups) {
    if (!groups.is_sequence()) {
      throw Error(ErrorCode::Corrupt, "the masters are not a list");
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      table_.masters.push_back(flat_vector(file_, groups.item(g), shard_.base));
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
  // Stage 3 cuts frozen parameters over the ranks; a file without a rank in
  // its name holds them whole.
  read_fragments(file, root, shard);
  shard.model = std::move(facts);
}

bool has_sound_directory(const ByteSource& source) {
  try {
    const ZipDirectory directory(source);
    return true;
  } catch (const Error&) {
    return false;
  }
}

uint64_t content_digest(const TorchFile& file) {
  std::vector<uint64_t> content;
  for (const StorageRecord& record : file.storages()) {
    if (record.size_bytes == 0) continue;
    if (!record.has_crc) return 0;
    content.push_back(record.size_bytes);
    content.push_back(record.crc);
  }
  if (content.empty()) return 0;
  return XXH3_64bits(content.data(), content.size() * sizeof(uint64_t));
}

}  // namespace

uint64_t first_payload(const TorchFile& file) {
  uint64_t first = UINT64_MAX;
  for (const StorageRecord& record : file.storages()) {
    if (record.size_bytes != 0) first = std::min(first, record.offset);
  }
  return first == UINT64_MAX ? 0 : first;
}

FlatVector flat_vector(const TorchFile& file, const Value& value,
                       uint64_t base) {
  const auto view = view_of(file, value);
  if (!view) {
    throw Error(ErrorCode::Corrupt, "expected a tensor, found something else");
  }
  if (view->numel == 0) {
    // Only an empty vector can have been swapped out to NVMe.
    return {.dtype = view->dtype, .swap_id = string_attribute(*view, "ds_id")};
  }
  if (!view->contiguous) {
    throw Error(ErrorCode::Unsupported,
                "expected a contiguous vector, found a strided view");
  }
  return {.offset = view->offset - base,
          .numel = view->numel,
          .dtype = view->dtype};
}

std::optional<Value> entry_near(const Value& mapping, size_t i,
                                std::string_view name) {
  if (!mapping.is_mapping()) return std::nullopt;
  if (i < mapping.size() && mapping.key(i).string() == name) {
    return mapping.value(i);
  }
  return mapping.find(name);
}

std::optional<int64_t> stage_number(const Value& value) {
  if (const auto number = value.integer()) return number;
  if (!value.is_call()) return std::nullopt;
  const Value callable = value.callable();
  if (callable.global_name() == "ZeroStageEnum" &&
      value.argument_count() == 1) {
    return value.argument(0).integer();
  }
  // Early Python 3.11 pickled members as getattr(ZeroStageEnum, name).
  if (callable.global_name() == "getattr" && value.argument_count() == 2 &&
      value.argument(0).global_name() == "ZeroStageEnum") {
    const auto name = value.argument(1).string();
    if (name == "disabled") return 0;
    if (name == "optimizer_states") return 1;
    if (name == "gradients") return 2;
    if (name == "weights") return 3;
  }
  return std::nullopt;
}

FileFault fault_of(const ByteSource& source, const Error& error) {
  FileFault fault{.code = "pickle-invalid",
                  .message = error.message(),
                  .tensor = error.tensor(),
                  .offset = error.offset()};
  if (!error.findings().empty()) {
    fault.code = error.findings().front().code;
    return fault;
  }
  if (error.code() == ErrorCode::Io) {
    fault.code = "file-unreadable";
    return fault;
  }
  switch (const FileForm form = recognise(source)) {
    case FileForm::Empty:
      return {.code = "file-empty", .message = "the file has no bytes"};
    case FileForm::TorchZipTorn: fault.code = "file-truncated"; break;
    case FileForm::TorchLegacy:
      // The container has no end of its own: a cut is met while reading on.
      if (error.offset() == source.size()) fault.code = "file-truncated";
      break;
    case FileForm::TorchZip:
      if (!has_sound_directory(source)) fault.code = "container-damaged";
      break;
    default:
      fault.code = "foreign-writer";
      fault.message =
          std::string("expected a file of torch.save, found ") + describe(form);
  }
  return fault;
}

void read_shard(ShardFile& shard) {
  std::optional<FileSource> source;
  try {
    source.emplace(shard.path);
    shard.size_bytes = source->size();
    const TorchFile file = TorchFile::open(*source);
    shard.archive_prefix = file.prefix();
    shard.pickle_bytes = file.pickle_bytes();
    shard.base = first_payload(file);
    shard.content_digest = content_digest(file);
    shard.globals = std::make_shared<const std::vector<std::string>>(
        imported_names(file.pickle()));
    if (shard.name.kind == ShardKind::Optim) {
      OptimReader(*source, file, shard).read();
    } else {
      read_model(file, shard);
    }
  } catch (const Error& error) {
    shard.model.reset();
    shard.optim.reset();
    if (source) {
      shard.fault = fault_of(*source, error);
    } else {
      shard.fault = {.code = "file-unreadable", .message = error.message()};
    }
  }
}

}  // namespace zckpt
