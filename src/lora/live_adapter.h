// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lora/adapter_config.h"
#include "lora/live_names.h"
#include "zckpt/checkpoint.h"

namespace zckpt {

struct LiveAdapterOptions {
  std::string adapter_name;          // empty: the only one there is
  std::string adapter_config;        // a file; empty: the checkpoint's own
  std::optional<double> lora_alpha;  // where there is no config
};

// A tensor of the adapter that is taken.
struct LivePart {
  LiveName live;
  const Tensor* tensor = nullptr;
};

// The adapter that a checkpoint of a LoRA run holds under live names.
struct LiveAdapter {
  std::string name;
  std::vector<LivePart> parts;
  std::map<std::string, uint64_t> ranks;  // by module with factors
  // Trained, but under no adapter's name.
  std::vector<const Tensor*> others;
  AdapterConfig config;
  std::string config_text;
  std::string config_from;  // the file that was read; empty: made
  std::vector<std::string> notes;

  bool has(AdapterPart part) const;
};

// Whether any tensor has a name of a live PEFT model's adapter.
bool has_live_adapter(const Checkpoint& checkpoint);

// Whether `tensor` is what is written for its name: the best value there is.
bool is_best(const Checkpoint& checkpoint, const Tensor& tensor);

// Collects the adapter and settles its config; reads no payload.
// Errors: Invalid where no adapter, several, or no config is there; Unsupported
//         for what an adapter cannot be taken for; Corrupt where config and
//         tensors contradict each other.
LiveAdapter find_live_adapter(const Checkpoint& checkpoint,
                              const LiveAdapterOptions& options);

}  // namespace zckpt
