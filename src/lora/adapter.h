// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora/adapter_config.h"
#include "lora/live_adapter.h"
#include "lora/live_names.h"
#include "zckpt/checkpoint.h"
#include "zckpt/observer.h"

namespace zckpt {

// One tensor of an adapter and what it is for.
struct AdapterTensor {
  AdapterPart part = AdapterPart::A;
  bool is_embedding = false;
  // The module it belongs to, as the base model calls it; for a Replacement the
  // weight that it replaces.
  std::string target;
  // A Replacement of the base itself (a resized vocabulary), which both sides
  // of a tie share; others replace the weight of one module.
  bool of_base = false;
  uint32_t tensor = 0;  // number in Adapter::checkpoint
};

// An adapter that is to be merged, wherever it came from.
struct Adapter {
  std::string label;  // for messages: a folder, or the adapter's name
  Checkpoint checkpoint;
  AdapterConfig config;
  std::string config_file;
  double weight = 1;
  bool is_live = false;  // of the checkpoint itself, base and all
  std::vector<AdapterTensor> tensors;
  std::vector<std::string> notes;

  const Tensor& stored(const AdapterTensor& tensor) const {
    return checkpoint.tensors()[tensor.tensor];
  }
};

// The adapter that PEFT saved in `folder`.
// Errors: Invalid where it is none; Corrupt, Unsupported with file and tensor
//         for what cannot be merged: no tensors, empty ones, names that are no
//         adapter's, methods and options that are not known.
// `base_folder` is for messages.
Adapter open_adapter(const std::string& folder, const std::string& base_folder);

// The live adapter of a checkpoint. Errors: those of find_live_adapter;
// Unsupported as open_adapter.
Adapter live_adapter(const Checkpoint& checkpoint,
                     const LiveAdapterOptions& options);

// Reads all values of the adapter: Corrupt where one is NaN or infinite. Adds a
// note where it has no effect.
void check_values(Adapter& adapter, const StopToken* stop);

}  // namespace zckpt
