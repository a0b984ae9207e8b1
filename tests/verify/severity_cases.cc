// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/severity_cases.h"

#include "verify/resumable.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

constexpr auto kError = Severity::Error;
constexpr auto kWarning = Severity::Warning;
constexpr auto kNote = Severity::Note;

std::string optim_name(uint32_t rank) {
  return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt";
}

fs::path optim_path(const fs::path& tag, uint32_t rank) {
  return tag / ("bf16_" + optim_name(rank));
}

void no_frozen(ZeroRun& run) { run.frozen.clear(); }

}  // namespace

std::vector<Case> cases() {
  const auto file_case = [](const std::string& code, auto change) {
    return Case{.code = code,
                .file = optim_name(1),
                .rank = 1,
                .on_disk = [change](const auto&, const auto& tag, auto&) {
                  change(optim_path(tag, 1));
                }};
  };
  const auto trainer_case = [](const std::string& code, Severity resume,
                               Severity merge, const std::string& file,
                               auto change) {
    return Case{.code = code,
                .writer = Writer::Stage3,
                .resume = resume,
                .merge = merge,
                .file = file,
                .on_disk = [change](const auto& folder, const auto&,
                                    auto&) { change(folder); },
                .trainer = true};
  };
  return {
      {.code = "latest-missing",
       .merge = kWarning,
       .file = "latest",
       .on_disk = [](const auto& folder, const auto&,
                     auto&) { fs::remove(folder / "latest"); }},
      {.code = "latest-dangling",
       .merge = kWarning,
       .file = "latest",
       .on_disk = [](const auto& folder, const auto&,
                     auto&) { write_bytes(folder / "latest", "gone"); }},
      {.code = "model-shard-missing",
       .writer = Writer::Stage3,
       .merge = kWarning,
       .file = "zero_pp_rank_1_mp_rank_00_model_states.pt",
       .rank = 1,
       .on_disk =
           [](const auto&, const auto& tag, auto&) {
             fs::remove(tag / "zero_pp_rank_1_mp_rank_00_model_states.pt");
           },
       .run = no_frozen},
      {.code = "optim-shard-missing",
       .file = optim_name(1),
       .rank = 1,
       .on_disk = [](const auto&, const auto& tag,
                     auto&) { fs::remove(optim_path(tag, 1)); }},
      {.code = "shard-surplus",
       .resume = kWarning,
       .merge = kWarning,
       .on_disk =
           [](const auto&, const auto& tag, auto&) {
             fs::copy(optim_path(tag, 1), optim_path(tag, 2));
           }},
      {.code = "shard-elsewhere",
       .resume = kNote,
       .merge = kNote,
       .file = optim_name(1),
       .rank = 1,
       .on_disk =
           [](const auto& folder, const auto& tag, auto&) {
             const fs::path other =
                 folder.parent_path() / "other" / tag.filename();
             fs::create_directories(other);
             fs::rename(optim_path(tag, 1), optim_path(other, 1));
           }},
      {.code = "shard-conflict",
       .on_disk =
           [](const auto& folder, const auto& tag, auto& options) {
             const fs::path other =
                 folder.parent_path() / "other" / tag.filename();
             fs::create_directories(other);
             fs::copy(optim_path(tag, 0), optim_path(other, 1));
             options.open.also = {other.string()};
           }},
      {.code = "prefix-mixed",
       .on_disk =
           [](const auto&, const auto& tag, auto&) {
             fs::rename(optim_path(tag, 1), tag / optim_name(1));
           }},
      {.code = "stage-conflict",
       .file = optim_name(1),
       .rank = 1,
       .in_memory = [](auto& made) { made.inner(1).set("zero_stage", 3); }},
      {.code = "world-size-conflict",
       .file = "mp_rank_00_model_states.pt",
       .in_memory =
           [](auto& made) { made.model().root.set("dp_world_size", 4); }},
      {.code = "foreign-writer",
       .file = "mp_rank_00_model_states.pt",
       .in_memory = [](auto& made) { made.model().root = Py(""); }},
      {.code = "unsupported-layout",
       .in_memory =
           [](auto& made) { made.model().root.set("mp_world_size", 2); }},
      file_case("file-unreadable",
                [](const fs::path& path) {
                  fs::remove(path);
                  fs::create_symlink("gone.pt", path);
                }),
      file_case("file-empty",
                [](const fs::path& path) { truncate_file(path, 0); }),
      file_case("file-truncated",
                [](const fs::path& path) {
                  truncate_file(path, fs::file_size(path) / 2);
                }),
      file_case("file-misnamed",
                [](const fs::path& path) {
                  fs::copy(optim_path(path.parent_path(), 0), path,
                           fs::copy_options::overwrite_existing);
                }),
      file_case("file-duplicate",
                [](const fs::path& path) {
                  fs::copy(optim_path(path.parent_path(), 0), path,
                           fs::copy_options::overwrite_existing);
                }),
      {.code = "container-damaged",
       .file = optim_name(1),
       .rank = 1,
       .in_memory =
           [](auto& made) { made.optim(1).archive.list_twice("data/0"); }},
      {.code = "record-missing",
       .file = optim_name(1),
       .rank = 1,
       .in_memory = [](auto& made) { made.optim(1).archive.drop("data/0"); }},
      {.code = "pickle-invalid",
       .file = optim_name(1),
       .rank = 1,
       .in_memory =
           [](auto& made) { made.optim(1).root.set("odd", Py::raw("\xff")); }},
      {.code = "key-missing",
       .file = optim_name(1),
       .rank = 1,
       .in_memory =
           [](auto& made) {
             made.optim(1).root.erase("optimizer_state_dict");
           }},
      {.code = "pickle-dangerous",
       .merge = kWarning,
       .file = optim_name(1),
       .rank = 1,
       .in_memory =
           [](auto& made) {
             made.optim(1).root.set("x", Py::call("os", "system", {"true"}));
           }},
      {.code = "step-mismatch",
       .writer = Writer::Stage3,
       .file = "zero_pp_rank_2_mp_rank_00_model_states.pt",
       .rank = 2,
       .in_memory =
           [](auto& made) { made.model(2).root.set("global_steps", 2); },
       .run = [](ZeroRun& run) { run.ranks = 3; }},
      {.code = "version-mismatch",
       .resume = kWarning,
       .merge = kWarning,
       .file = optim_name(1),
       .rank = 1,
       .in_memory =
           [](auto& made) { made.optim(1).root.set("ds_version", "0.1"); }},
      {.code = "config-mismatch",
       .resume = kWarning,
       .merge = kWarning,
       .file = optim_name(1),
       .rank = 1,
       .in_memory =
           [](auto& made) {
             made.optim(1).root.set("ds_config", Py::dict({{"a", 1}}));
           }},
      {.code = "shapes-mismatch",
       .writer = Writer::Stage3,
       .file = "model_states.pt",
       .in_memory =
           [](auto& made) {
             made.model(1).root.set("param_shapes", Py::list());
           }},
      {.code = "group-length-mismatch",
       .writer = Writer::Stage3,
       .file = optim_name(2),
       .rank = 2,
       .in_memory =
           [](auto& made) {
             made.inner(2).set("fp32_flat_groups", Py::list());
           },
       .run = [](ZeroRun& run) { run.ranks = 3; }},
      {.code = "partition-short",
       .in_memory =
           [](auto& made) {
             made.model().root.set(
                 "param_shapes",
                 Py::list({Py::ordered_dict({{"a", Py::size({9999})}}),
                           Py::ordered_dict({{"gain", Py::size({13})}})}));
           }},
      {.code = "partition-surplus",
       .in_memory =
           [](auto& made) {
             made.model().root.set(
                 "param_shapes",
                 Py::list({Py::ordered_dict({{"a", Py::size({90})}}),
                           Py::ordered_dict({{"gain", Py::size({13})}})}));
           }},
      {.code = "padding-nonzero",
       .file = "optim_states.pt",
       .in_memory =
           [](auto& made) {
             made.model().root.set(
                 "param_shapes",
                 Py::list({Py::ordered_dict({{"a", Py::size({95})}}),
                           Py::ordered_dict({{"gain", Py::size({13})}})}));
           },
       .run = [](ZeroRun& run) { run.version = "0.15.4"; }},
      {.code = "slice-map-mismatch",
       .resume = kNote,
       .merge = kNote,
       .file = optim_name(0),
       .rank = 0,
       .in_memory =
           [](auto& made) {
             const auto slice = [](int numel) {
               return Py::object("deepspeed.utils.tensor_fragment",
                                 "fragment_address",
                                 {{"numel", numel}, {"start", 0}});
             };
             made.inner(0).set(
                 "param_slice_mappings",
                 Py::list({Py::ordered_dict({{"embed.weight", slice(47)}}),
                           Py::ordered_dict({{"gain", slice(1)}})}));
           }},
      {.code = "pickle-opaque",
       .resume = kNote,
       .merge = kNote,
       .in_memory =
           [](auto& made) {
             made.model().root.set("extra", Py::global("argparse", "Thing"));
           }},
      {.code = "expert-missing",
       .file = "layer_0_expert_0_mp_rank_00_model_states.pt",
       .on_disk =
           [](auto&, auto& tag, auto&) {
             write_bytes(tag / "layer_0_expert_1_mp_rank_00_model_states.pt",
                         "x");
           }},
      {.code = "layer-missing",
       .resume = kWarning,
       .merge = kWarning,
       .file = "layer_01-model_states.pt",
       .on_disk =
           [](auto&, auto& tag, auto&) {
             write_bytes(tag / "layer_00-model_states.pt", "x");
             write_bytes(tag / "layer_02-model_states.pt", "x");
           }},
      {.code = "name-unaccounted",
       .writer = Writer::Stage3,
       .resume = kWarning,
       .in_memory =
           [](auto& made) {
             for (uint32_t rank : {0U, 1U}) {
               auto& shard = made.model(rank);
               shard.root.at("module").set(
                   "extra", shard.archive.tensor(DType::BF16, {0}, ""));
             }
           }},
      {.code = "parameter-duplicate",
       .in_memory =
           [](auto& made) {
             made.model().root.set(
                 "param_shapes",
                 Py::list({Py::ordered_dict({{"gain", Py::size({96})}}),
                           Py::ordered_dict({{"gain", Py::size({13})}})}));
           }},
      {.code = "alias-implausible",
       .resume = kWarning,
       .merge = kWarning,
       .in_memory =
           [](auto& made) {
             made.model().root.at("shared_params").set("up.bias", "gain");
           }},
      {.code = "alias-dangling",
       .writer = Writer::Stage3,
       .resume = kWarning,
       .merge = kWarning,
       .in_memory =
           [](auto& made) {
             for (uint32_t rank : {0U, 1U}) {
               auto& shard = made.model(rank);
               shard.root.at("module").set(
                   "tied", shard.archive.tensor(DType::BF16, {0}, ""));
               shard.root.at("shared_params").set("tied", "gone");
             }
           }},
      {.code = "frozen-missing",
       .resume = kNote,
       .merge = kWarning,
       .run = [](ZeroRun& run) { run.exclude_frozen = true; }},
      {.code = "frozen-unrecoverable",
       .writer = Writer::Stage3,
       .in_memory =
           [](auto& made) {
             for (uint32_t rank : {0U, 1U}) {
               auto& shard = made.model(rank);
               shard.root.at("frozen_param_fragments")
                   .set("adapter.weight",
                        shard.archive.tensor(DType::BF16, {1},
                                             std::string(2, '\0')));
             }
           }},
      {.code = "optimizer-state-absent",
       .writer = Writer::Stage0,
       .merge = kNote,
       .in_memory =
           [](auto& made) { made.model().root.set("optimizer", nullptr); }},
      {.code = "moment-missing",
       .merge = kNote,
       .file = optim_name(1),
       .rank = 1,
       .in_memory =
           [](auto& made) {
             made.inner(1).at("base_optimizer_state").set("state", Py::dict());
           }},
      {.code = "moment-length",
       .merge = kNote,
       .file = optim_name(1),
       .rank = 1,
       .in_memory =
           [](auto& made) {
             auto& archive = made.optim(1).archive;
             const Py three =
                 archive.tensor(DType::F32, {3}, std::string(12, '\0'));
             made.inner(1)
                 .at("base_optimizer_state")
                 .at("state")
                 .set(0, Py::dict({{"exp_avg", three}, {"exp_avg_sq", three}}));
           }},
      {.code = "swap-file-missing",
       .writer = Writer::Stage3,
       .file = optim_name(1),
       .rank = 1,
       .on_disk =
           [](const auto&, const auto& tag, auto&) {
             fs::remove(tag / "offloaded_tensors/rank01/0_0.tensor.swp");
           },
       .run = [](ZeroRun& run) { run.swapped = {0}; }},
      {.code = "swap-resume-broken",
       .writer = Writer::Stage3,
       .merge = kNote,
       .run = [](ZeroRun& run) { run.swapped = {0}; }},
      {.code = "class-needed",
       .resume = kWarning,
       .merge = kNote,
       .in_memory =
           [](auto& made) {
             made.model().root.set("x", Py::call("omegaconf", "f", {}));
           }},
      trainer_case("trainer-state-missing", kError, kNote, "trainer_state.json",
                   [](const fs::path& folder) {
                     fs::remove(folder / "trainer_state.json");
                   }),
      trainer_case("trainer-state-invalid", kError, kNote, "trainer_state.json",
                   [](const fs::path& folder) {
                     write_bytes(folder / "trainer_state.json", "{");
                   }),
      trainer_case("trainer-step-differs", kNote, kNote, "trainer_state.json",
                   [](const fs::path& folder) {
                     write_bytes(folder / "trainer_state.json",
                                 R"({"global_step": 7})");
                   }),
      trainer_case(
          "scheduler-missing", kError, kNote, "scheduler.pt",
          [](const fs::path& folder) { fs::remove(folder / "scheduler.pt"); }),
      trainer_case("rng-missing", kWarning, kNote, "",
                   [](const fs::path& folder) {
                     fs::remove(folder / "rng_state_0.pth");
                   }),
      trainer_case("rng-damaged", kError, kNote, "rng_state_0.pth",
                   [](const fs::path& folder) {
                     truncate_file(folder / "rng_state_0.pth", 9);
                   }),
      trainer_case("placeholder-weight", kWarning, kWarning,
                   "model.safetensors",
                   [](const fs::path& folder) {
                     write_bytes(folder / "model.safetensors",
                                 std::string("\x02\0\0\0\0\0\0\0{}", 10));
                   }),
  };
}

}  // namespace zckpt::test
