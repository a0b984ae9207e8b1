// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zckpt/merge.h"

namespace zckpt {

struct ExtractOptions {
  std::string adapter_name;    // empty: the only one there is
  std::string adapter_config;  // a file; empty: the checkpoint's own
  // Where there is no config: what one that is made says. A checkpoint does
  // not tell it.
  std::optional<double> lora_alpha;
  // Where and how to write. Names, aliases and order are the adapter's own;
  // `dtype` none (the default here) keeps what is stored: fp32 masters.
  MergeOptions write = {.dtype = std::nullopt};
};

struct ExtractResult {
  MergeResult written;
  std::string adapter_name;
  std::string config_from;  // the file that was copied; empty: made
  uint64_t modules = 0;     // with factors A and B
  std::vector<std::string> notes;
};

// Writes the PEFT adapter that a checkpoint of a LoRA run holds under live
// names ("...lora_A.default.weight") as PEFT would have saved it:
// adapter_model.safetensors and adapter_config.json, which is copied byte for
// byte. Values are the optimizer's masters.
// Errors:  those of merge(); Invalid where no adapter, several, or no config is
//          there; Unsupported for other methods than LoRA and for trained
//          weights that an adapter file has no place for; Corrupt where config
//          and tensors contradict each other.
// Threads, memory: as merge().
ExtractResult extract_lora(const std::string& path,
                           const ExtractOptions& options);

}  // namespace zckpt
