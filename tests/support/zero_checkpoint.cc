// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "support/zero_checkpoint.h"

#include <algorithm>
#include <cstdio>

#include "support/checkpoint_tools.h"
#include "support/zero_partitions.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

std::string rank_name(uint32_t rank) {
  return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00";
}

std::vector<uint64_t> unsigned_shape(const Py::Shape& shape) {
  return {shape.begin(), shape.end()};
}

}  // namespace

// Fills in the shards of a ZeroCheckpoint.
class ShardMaker {
 public:
  explicit ShardMaker(ZeroCheckpoint& made) : made_(made), run_(made.run_) {}

  void make() {
    const uint32_t models = run_.writer == Writer::Stage3 ? run_.ranks : 1;
    for (uint32_t rank = 0; rank < models; ++rank) make_model(rank);
    if (run_.writer != Writer::Stage0) {
      for (uint32_t rank = 0; rank < run_.ranks; ++rank) make_optim(rank);
    }
    list_truth();
  }

 private:
  ZeroCheckpoint::Shard& start(const std::string& name) {
    const std::string stem = name.substr(0, name.size() - 3);
    const std::string prefix = run_.archive_prefix ? "archive" : stem;
    return made_.shards_
        .emplace(name, ZeroCheckpoint::Shard{TorchArchive(prefix), Py()})
        .first->second;
  }

  Py shapes_of(const std::vector<Weight>& weights) const {
    Py shapes = Py::ordered_dict();
    for (const Weight& weight : weights) {
      Py::List sizes(weight.shape.begin(), weight.shape.end());
      shapes.set(weight.name, run_.shapes_as_tuples ? Py::tuple(sizes)
                                                    : Py::size(weight.shape));
    }
    return shapes;
  }

  Py param_shapes() const {
    Py list = Py::list();
    for (const auto& group : run_.groups) list.append(shapes_of(group));
    if (!run_.shapes_as_dict) return list;
    std::vector<Weight> all;
    for (const auto& group : run_.groups) {
      all.insert(all.end(), group.begin(), group.end());
    }
    return shapes_of(all);
  }

  Py tensor(TorchArchive& archive, const Py::Shape& shape,
            const std::vector<float>& values, DType dtype) const {
    return archive.tensor(dtype, shape, encode(dtype, values));
  }

  Py vector(TorchArchive& archive, const std::vector<float>& values,
            uint64_t keep, DType dtype = DType::F32) const {
    const std::string key = archive.add_storage(encode(dtype, values), 4);
    return Py::tensor(dtype, {static_cast<int64_t>(keep)}, key, 0, {},
                      static_cast<int64_t>(values.size()));
  }

  void make_model(uint32_t rank) {
    auto& shard = start(made_.model_name(rank));
    const bool stage0 = run_.writer == Writer::Stage0;
    const bool keeps_frozen =
        (run_.writer == Writer::Stage2 || run_.writer == Writer::Stage3) &&
        !run_.exclude_frozen;
    Py root = Py::dict();
    root.set("module", module(shard.archive));
    if (!run_.no_buffer_names) {
      Py names = Py::list();
      for (const StoredBuffer& buffer : run_.buffers) names.append(buffer.name);
      root.set("buffer_names", names);
    }
    root.set("optimizer", stage0 ? stage0_optimizer(shard.archive) : Py());
    if (!run_.shapes_in_optim) {
      root.set("param_shapes", stage0 ? Py() : param_shapes());
    }
    root.set("frozen_param_shapes",
             keeps_frozen ? shapes_of(run_.frozen) : Py());
    if (!run_.no_shared_params) {
      Py shared = Py::dict();
      if (rank == 0) {
        for (const auto& [alias, kept] : run_.aliases) shared.set(alias, kept);
      }
      root.set("shared_params", stage0 ? Py() : shared);
    }
    root.set("frozen_param_fragments",
             keeps_frozen ? fragments(shard.archive, rank) : Py());
    root.set("lr_scheduler", Py());
    root.set("skipped_steps", 0).set("global_steps", run_.step);
    root.set("global_samples", run_.step * 8);
    root.set("dp_world_size", run_.ranks).set("mp_world_size", 1);
    add_versions(root);
    shard.root = root;
  }

  void add_versions(Py& root) const {
    if (run_.version.empty()) return;  // before 0.4.0
    int stage = 2;
    if (run_.writer == Writer::Stage0) stage = 0;
    if (run_.writer == Writer::Stage1) stage = 1;
    if (run_.writer == Writer::Bf16Optimizer) stage = 1;
    if (run_.writer == Writer::OldStage1) stage = 1;
    if (run_.writer == Writer::Stage3) stage = 3;
    root.set("ds_config",
             Py::dict({{"zero_optimization", Py::dict({{"stage", stage}})},
                       {"train_batch_size", 8}}));
    root.set("ds_version", run_.version);
  }

  Py module(TorchArchive& archive) const {
    const bool placeholders = run_.writer == Writer::Stage3;
    std::map<std::string, Py> made;
    for (const auto& group : run_.groups) {
      if (placeholders) {
        for (const Weight& weight : group) {
          made[weight.name] = placeholder(archive);
        }
        continue;
      }
      add_views(archive, group, made);
    }
    for (const Weight& weight : run_.frozen) {
      if (run_.exclude_frozen) continue;
      made[weight.name] = placeholders
                              ? placeholder(archive)
                              : tensor(archive, weight.shape, master_of(weight),
                                       run_.model_dtype);
    }
    for (const StoredBuffer& buffer : run_.buffers) {
      made[buffer.name] =
          archive.tensor(buffer.dtype, buffer.shape, buffer.bytes);
    }
    for (const auto& [alias, kept] : run_.aliases) {
      made[alias] = made.contains(kept) ? made.at(kept) : placeholder(archive);
    }
    Py module = Py::ordered_dict();
    for (const std::string& name : order()) {
      if (made.contains(name)) module.set(name, made.at(name));
    }
    return module;
  }

  Py placeholder(TorchArchive& archive) const {
    if (!run_.old_placeholders) {
      return tensor(archive, {0}, {}, run_.model_dtype);
    }
    return tensor(archive, {1}, {1.0F}, run_.model_dtype);
  }

  // Views of one storage, as DeepSpeed's flattening leaves them.
  void add_views(TorchArchive& archive, const std::vector<Weight>& group,
                 std::map<std::string, Py>& made) const {
    FlatGroup flat = flatten(run_, group, &master_of);
    const uint64_t need = flat.values.size();
    flat.values.resize(partition_numel(run_, need) * run_.ranks);
    const std::string key =
        archive.add_storage(encode(run_.model_dtype, flat.values),
                            run_.model_dtype == DType::F32 ? 4 : 2);
    for (size_t k = 0; k < group.size(); ++k) {
      made[group[k].name] =
          Py::tensor(run_.model_dtype, group[k].shape, key,
                     static_cast<int64_t>(flat.starts[k]), {},
                     static_cast<int64_t>(flat.values.size()));
    }
  }

  std::vector<std::string> order() const {
    if (!run_.module_order.empty()) return run_.module_order;
    std::vector<std::string> names;
    for (const auto& group : run_.groups) {
      for (const Weight& weight : group) names.push_back(weight.name);
    }
    for (const Weight& weight : run_.frozen) names.push_back(weight.name);
    for (const auto& [alias, kept] : run_.aliases) names.push_back(alias);
    for (const StoredBuffer& buffer : run_.buffers) {
      names.push_back(buffer.name);
    }
    return names;
  }

  Py fragments(TorchArchive& archive, uint32_t rank) const {
    Py made = Py::ordered_dict();
    for (const Weight& weight : run_.frozen) {
      const auto all = master_of(weight);
      if (run_.writer == Writer::Stage3) {
        const uint64_t part = divide_up(all.size(), run_.ranks);
        made.set(weight.name, tensor(archive, {static_cast<int64_t>(part)},
                                     slice(all, rank * part, part, kGarbage),
                                     run_.model_dtype));
      } else {
        made.set(weight.name,
                 tensor(archive, weight.shape, all, run_.model_dtype));
      }
    }
    return made;
  }

  Py stage0_optimizer(TorchArchive& archive) const {
    Py optimizer = Py::dict();
    if (run_.model_dtype == DType::F32) {
      return optimizer.set("state", Py::dict()).set("param_groups", Py::list());
    }
    Py groups = Py::list();
    for (const auto& group : run_.groups) {
      if (run_.unfused) {
        Py list = Py::list();
        for (const Weight& weight : group) {
          list.append(
              tensor(archive, weight.shape, master_of(weight), DType::F32));
        }
        groups.append(list);
      } else {
        const FlatGroup flat = flatten(run_, group, &master_of);
        groups.append(vector(archive, flat.values, flat.values.size()));
      }
    }
    return optimizer.set(run_.unfused ? "fp32_groups" : "fp32_groups_flat",
                         groups);
  }

  void make_optim(uint32_t rank) {
    auto& shard = start(made_.optim_name(rank));
    Py inner = Py::dict();
    switch (run_.writer) {
      case Writer::Stage3: fill_stage3(shard.archive, inner, rank); break;
      case Writer::OldStage1:
        fill_old_stage1(shard.archive, inner, rank);
        break;
      default: fill_partitions(shard.archive, inner, rank);
    }
    add_stage(inner);
    Py root = Py::dict({{"optimizer_state_dict", inner}});
    if (run_.shapes_in_optim) root.set("param_shapes", param_shapes());
    add_versions(root);
    shard.root = root;
  }

  void add_stage(Py& inner) const {
    if (run_.writer == Writer::Bf16Optimizer) return;
    int stage = 2;
    std::string_view member = "gradients";
    if (run_.writer == Writer::Stage3) stage = 3, member = "weights";
    if (run_.writer == Writer::Stage1) stage = 1, member = "optimizer_states";
    if (run_.writer == Writer::OldStage1) stage = 1;
    const Py type =
        Py::global("deepspeed.runtime.zero.config", "ZeroStageEnum");
    switch (run_.stage_form) {
      case StageForm::Enum:
        inner.set("zero_stage", Py::call(type, {stage}));
        break;
      case StageForm::Getattr:
        inner.set("zero_stage",
                  Py::call("__builtin__", "getattr", {type, Py(member)}));
        break;
      case StageForm::Integer: inner.set("zero_stage", stage); break;
      case StageForm::Absent: break;
    }
  }

  Py step(TorchArchive& archive) const {
    if (run_.integer_step) return run_.step;
    return tensor(archive, {}, {static_cast<float>(run_.step)}, DType::F32);
  }

  void fill_partitions(TorchArchive& archive, Py& inner, uint32_t rank) {
    Py masters = Py::list();
    Py paddings = Py::list();
    Py counts = Py::list();
    Py alignment = Py::list();
    Py state = run_.elastic ? Py::list() : Py::dict();
    for (size_t g = 0; g < run_.groups.size(); ++g) {
      const FlatGroup flat = flatten(run_, run_.groups[g], &master_of);
      const uint64_t need = flat.values.size();
      const uint64_t size = partition_numel(run_, need);
      const uint64_t keep = kept_numel(run_, need, rank);
      masters.append(
          vector(archive, slice(flat.values, rank * size, size, 0), keep));
      const uint64_t held = need - std::min(need, rank * size);
      paddings.append(size - std::min(size, held));
      counts.append(run_.ranks);
      alignment.append(Py::list({flat.paddings.begin(), flat.paddings.end()}));
      Py entry = Py::dict({{"step", step(archive)}});
      for (const std::string& name : run_.states) {
        const FlatGroup moments = flatten(
            run_, run_.groups[g],
            [&](const Weight& weight) { return state_of(weight, name); });
        entry.set(name,
                  vector(archive, slice(moments.values, rank * size, size, 0),
                         run_.elastic ? keep : size));
      }
      if (run_.elastic) {
        state.append(entry);
      } else {
        state.set(g, entry);
      }
    }
    inner.set("base_optimizer_state",
              run_.elastic
                  ? state
                  : Py::dict({{"state", state}, {"param_groups", Py::list()}}));
    inner.set("single_partition_of_fp32_groups", masters);
    if (!run_.no_group_paddings) inner.set("group_paddings", paddings);
    inner.set("partition_count", counts);
    if (run_.parameter_alignment) {
      inner.set("param_alignment_paddings", alignment);
    }
    inner.set("ds_version", run_.version);
  }

  Py sub_group(TorchArchive& archive, size_t group, const std::string& state,
               const std::vector<float>& values, uint32_t rank) {
    const bool swapped = std::find(run_.swapped.begin(), run_.swapped.end(),
                                   group) != run_.swapped.end();
    if (!swapped) return vector(archive, values, values.size());
    const std::string number = std::to_string(group);
    const std::string id =
        (state.empty() ? "" : state + "-") + number + "_" + number;
    std::string bytes = encode(DType::F32, values);
    bytes.resize(divide_up(bytes.size(), 1024) * 1024, '\x5a');
    char folder[48];
    std::snprintf(folder, sizeof(folder), "offloaded_tensors/rank%02u/", rank);
    made_.swap_files_[folder + id + ".tensor.swp"] = bytes;
    return Py::tensor_with(tensor(archive, {0}, {}, DType::F32),
                           {{"ds_id", id}});
  }

  void fill_stage3(TorchArchive& archive, Py& inner, uint32_t rank) {
    Py masters = Py::list();
    Py state = Py::dict();
    for (size_t g = 0; g < run_.groups.size(); ++g) {
      masters.append(
          sub_group(archive, g, "",
                    partitions(run_, run_.groups[g], &master_of, rank), rank));
      Py entry = Py::dict({{"step", step(archive)}});
      for (const std::string& name : run_.states) {
        const auto of = [&](const Weight& weight) {
          return state_of(weight, name);
        };
        entry.set(name,
                  sub_group(archive, g, name,
                            partitions(run_, run_.groups[g], of, rank), rank));
      }
      state.set(g, entry);
    }
    inner.set("partition_count", run_.ranks);
    inner.set("optimizer_state_dict", Py::dict({{"state", state}}));
    inner.set("fp32_flat_groups", masters);
  }

  void fill_old_stage1(TorchArchive& archive, Py& inner, uint32_t rank) {
    Py groups = Py::list();
    for (const auto& group : run_.groups) {
      const FlatGroup flat = flatten(run_, group, &master_of);
      const uint64_t size =
          divide_up(flat.values.size(), run_.ranks * run_.intervals);
      Py parts = Py::list();
      for (uint32_t interval = 0; interval < run_.intervals; ++interval) {
        const uint64_t number = interval * run_.ranks + rank;
        parts.append(
            vector(archive, slice(flat.values, number * size, size, 0), size));
      }
      groups.append(parts);
    }
    inner.set("local_sub_partitions_of_fp32_groups", groups);
    inner.set("partition_count", run_.ranks);
  }

  void add_truth(const Weight& weight, Role role, DType dtype,
                 const std::string& state = "") {
    made_.truth_.push_back(
        {weight.name, role, state, dtype, unsigned_shape(weight.shape),
         encode(dtype,
                state.empty() ? master_of(weight) : state_of(weight, state))});
  }

  void list_truth() {
    const bool stage0 = run_.writer == Writer::Stage0;
    for (const auto& group : run_.groups) {
      for (const Weight& weight : group) {
        if (!stage0 || run_.model_dtype != DType::F32) {
          add_truth(weight, Role::Master, DType::F32);
        }
        if (run_.writer != Writer::Stage3 && numel_of(weight.shape) != 0) {
          add_truth(weight, Role::Model, run_.model_dtype);
        }
        if (stage0 || run_.writer == Writer::OldStage1) continue;
        for (const std::string& state : run_.states) {
          add_truth(weight, Role::State, DType::F32, state);
        }
      }
    }
    for (const Weight& weight : run_.frozen) {
      if (run_.exclude_frozen) continue;
      add_truth(weight, stage0 ? Role::Model : Role::Frozen, run_.model_dtype);
    }
    for (const StoredBuffer& buffer : run_.buffers) {
      made_.truth_.push_back({buffer.name, Role::Buffer, "", buffer.dtype,
                              unsigned_shape(buffer.shape), buffer.bytes});
    }
  }

  ZeroCheckpoint& made_;
  const ZeroRun& run_;
};

ZeroCheckpoint::ZeroCheckpoint(ZeroRun run) : run_(std::move(run)) {
  ShardMaker(*this).make();
}

std::string ZeroCheckpoint::model_name(uint32_t rank) const {
  return (run_.writer == Writer::Stage3 ? rank_name(rank) : "mp_rank_00") +
         "_model_states.pt";
}

std::string ZeroCheckpoint::optim_name(uint32_t rank) const {
  const bool bf16 = run_.model_dtype == DType::BF16 && !run_.old_names;
  return (bf16 ? "bf16_" : "") + rank_name(rank) +
         (run_.old_names ? "optim_states.pt" : "_optim_states.pt");
}

void ZeroCheckpoint::write(const fs::path& folder) const {
  for (const auto& [name, shard] : shards_) {
    TorchArchive archive = shard.archive;
    archive.set_root(shard.root);
    write_bytes(folder / run_.tag / name, run_.legacy_container
                                              ? archive.legacy_bytes()
                                              : archive.bytes());
  }
  for (const auto& [name, bytes] : swap_files_) {
    write_bytes(folder / run_.tag / name, bytes);
  }
  write_bytes(folder / "latest", run_.tag);
}

ZeroRun sample_run(Writer writer, uint32_t ranks) {
  ZeroRun run;
  run.writer = writer;
  run.ranks = ranks;
  run.groups = {{{"embed.weight", {11, 6}}, {"up.weight", {5, 6}}},
                {{"gain", {1}}, {"up.bias", {5}}, {"norm.weight", {7}}}};
  run.frozen = {{"adapter.weight", {5, 5}}, {"adapter.bias", {5}}};
  run.aliases = {{"head.weight", "embed.weight"}};
  run.buffers = {
      {"seen", DType::I64, {}, std::string("\x01\0\0\x01\0\0\0\0", 8)},
      {"mask", DType::Bool, {3}, std::string("\x01\0\x01", 3)},
      {"table", DType::F32, {2, 3}, encode(DType::F32, values_of("table", 6))}};
  if (writer == Writer::OldStage1) run.states.clear();
  return run;
}

}  // namespace zckpt::test
