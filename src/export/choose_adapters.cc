// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/choose_adapters.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/text.h"
#include "merge/record_checks.h"
#include "reader/checkpoint_data.h"
#include "reader/discovery.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

void check_payload(const MergeOptions& options, Adapter& adapter,
                   MergeResult& written) {
  check_values(adapter, options.open.stop);
  if (options.check == Check::None) return;
  std::vector<uint32_t> tensors;
  for (const AdapterTensor& tensor : adapter.tensors) {
    tensors.push_back(tensor.tensor);
  }
  check_records_of(adapter.checkpoint, tensors, options.open.stop, written);
}

bool same_factors(const Adapter& a, const Adapter& b) {
  const auto scales = [](const Adapter& adapter) {
    std::map<std::string, double> found;
    for (const AdapterTensor& tensor : adapter.tensors) {
      if (tensor.part != AdapterPart::A) continue;
      found[tensor.target] = adapter.config.scale_of(tensor.target);
    }
    return found;
  };
  return scales(a) == scales(b);
}

// Such an adapter belongs on what is left of the base model once its first
// factors are taken away. A checkpoint has that; a folder has not, unless the
// first factors are given too, with the opposite weight.
void refuse_changed_bases(const std::vector<Adapter>& adapters) {
  for (const Adapter& adapter : adapters) {
    if (adapter.is_live || !adapter.config.changes_base()) continue;
    const bool balanced = std::any_of(
        adapters.begin(), adapters.end(), [&](const Adapter& other) {
          return &other != &adapter && other.weight == -adapter.weight &&
                 same_factors(adapter, other);
        });
    if (balanced) continue;
    throw Error(ErrorCode::Unsupported,
                "the run changed its base model at the start "
                "(init_lora_weights: " +
                    escape(adapter.config.init) +
                    "), and this adapter is right on that one only. Export "
                    "the checkpoint of the run, convert the adapter with "
                    "PEFT (path_initial_model_for_weight_conversion), or "
                    "take the initial adapter away again: --adapter " +
                    escape(adapter.label) + " --adapter INITIAL:-1",
                {.file = adapter.config_file});
  }
}

// transformers loads an adapter that lies beside the weights with them.
void refuse_second_adapter(const std::string& path, const Checkpoint& main,
                           const ExportOptions& options) {
  std::error_code ignored;
  const fs::path folder = main.facts().folder;
  if (!fs::exists(folder / kAdapterConfigName, ignored)) return;
  for (const AdapterChoice& choice : options.adapters) {
    if (fs::equivalent(choice.path, folder, ignored)) return;
  }
  throw Error(ErrorCode::Invalid,
              "this folder holds an adapter too, which loaders apply to its "
              "weights: merge it with --adapter " +
                  escape(path) + ", or move it away",
              {.file = (folder / kAdapterConfigName).string()});
}

}  // namespace

// An adapter alone is no model; the command for it is another one.
void refuse_adapter_alone(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(fs::path(path) / kAdapterConfigName, ignored) ||
      open_weights_beside(path) != nullptr) {
    return;
  }
  try {
    find_checkpoints(path, {});
  } catch (const Error&) {
    const Adapter adapter = open_adapter(path, "");
    const std::string& base = adapter.config.base_model;
    throw Error(
        ErrorCode::Invalid,
        "this is an adapter alone; merge it into its base model: zckpt "
        "export-hf DIR --adapter " +
            escape(path) + " -o OUT" +
            (base.empty() ? "" : " (DIR: a folder with " + escape(base) + ")"));
  }
}

std::vector<Adapter> choose_adapters(const std::string& path,
                                     const Checkpoint& main,
                                     const ExportOptions& options,
                                     MergeResult& written) {
  const bool is_weights = main.facts().framework == "weights";
  if (is_weights) refuse_second_adapter(path, main, options);
  std::vector<Adapter> adapters;
  const bool live = has_live_adapter(main);
  const bool asked = !options.adapter_name.empty() ||
                     !options.adapter_config.empty() || options.lora_alpha;
  if (live && !options.adapters.empty()) {
    throw Error(ErrorCode::Invalid,
                "this checkpoint holds its adapter itself: leave --adapter "
                "out, or give the base model as PATH");
  }
  if (!live && asked) {
    throw Error(ErrorCode::Invalid,
                "--adapter-name, --adapter-config and --lora-alpha are for "
                "checkpoints of LoRA runs, and this one holds no adapter");
  }
  if (live) {
    adapters.push_back(live_adapter(
        main,
        {options.adapter_name, options.adapter_config, options.lora_alpha}));
  }
  for (const AdapterChoice& choice : options.adapters) {
    adapters.push_back(
        open_adapter(choice.path, is_weights ? path : options.base));
    adapters.back().weight = choice.weight;
  }
  for (Adapter& adapter : adapters) {
    if (!options.write.dry_run) {
      check_payload(options.write, adapter, written);
    }
  }
  refuse_changed_bases(adapters);
  return adapters;
}

}  // namespace zckpt
