// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zckpt/lora.h"
#include "zckpt/merge.h"

namespace zckpt {

struct AdapterChoice {
  std::string path;   // a folder that PEFT saved
  double weight = 1;  // its deltas are multiplied with this
};

struct ExportOptions {
  // A folder of Hugging Face weights: what the checkpoint lacks comes from
  // there. Empty: the folder that the adapter's config names, if there is one.
  std::string base;
  std::vector<AdapterChoice> adapters;  // in the order of merging
  // For a checkpoint of a LoRA run, as ExtractOptions.
  std::string adapter_name;
  std::string adapter_config;
  std::optional<double> lora_alpha;
  LoraMath math = LoraMath::Exact;
  bool auto_dtype = true;  // the config's dtype instead of write.dtype
  // Where and how to write; names, aliases and order are the model's own.
  MergeOptions write = {.dtype = std::nullopt,
                        .memory_bytes = uint64_t{64} << 20};
};

struct SideFile {
  std::string name;
  std::string from;  // the folder it was copied from
};

struct ConfigChange {
  std::string key;     // "dtype", "text_config.vocab_size", ...
  std::string before;  // as JSON; empty where the key was not there
  std::string after;
};

struct MergedAdapter {
  std::string label;  // its folder, or the name of the live one
  double weight = 1;
  uint64_t tensors = 0;  // all used
};

struct ExportResult {
  MergeResult written;
  std::string base;         // the folder that base weights came from, if any
  std::string config_from;  // the folder of config.json
  std::vector<SideFile> side_files;
  std::vector<ConfigChange> config_changes;
  std::vector<MergedAdapter> adapters;
  std::vector<LoraReport> lora;  // by weight
  std::vector<std::string> notes;
};

// Writes a folder that transformers loads: weights under hub names with LoRA
// merged, config.json, tokenizer and side files. `path` is a ZeRO checkpoint,
// of a full fine-tune or of a LoRA run, or a folder of Hugging Face weights.
// Errors:  those of merge(); Invalid where a base, a config or an adapter's
//          config is not there, with the command that would do; Unsupported for
//          quantised models and for adapters that are not merged; Corrupt where
//          adapter, base, config and tokenizer contradict each other.
// Threads, memory: as merge(); besides, 8 bytes per output with DoRA.
ExportResult export_hf(const std::string& path, const ExportOptions& options);

}  // namespace zckpt
