// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zckpt/merge.h"

namespace zckpt {

// How a merged weight is computed.
enum class LoraMath {
  Exact,  // as if in float64 from the base at hand, rounded once to the output
  Peft,   // as merge_and_unload on a CPU: in float32, rounded to the base's
          // dtype after each adapter, then cast
};

// What kind of weight factors are for, hence what their product is added to
// (conventions of peft/tuners/lora/layer.py).
enum class LoraKind : uint8_t {
  Linear,     // out x in += B A
  Conv1D,     // in x out += (B A) transposed (fan_in_fan_out)
  Embedding,  // vocabulary x dim += (B A) transposed
  Bias,       // out += lora_B.bias (lora_bias)
};

// What one adapter does to one weight. Tensors are numbers in the checkpoint
// that the plan is for.
struct LoraTerm {
  LoraKind kind = LoraKind::Linear;
  uint32_t a = 0;                     // rank x in; none for a bias
  uint32_t b = 0;                     // out x rank; out for a bias
  std::optional<uint32_t> magnitude;  // DoRA: one value per output
  uint64_t rank = 1;
  // alpha / rank, or alpha / sqrt(rank) with rsLoRA, times the weight given.
  double scale = 1;
};

// All that is done to one weight.
struct LoraChange {
  std::string name;         // of the weight in the output
  DType base = DType::F32;  // of the base weight: what peft rounds to
  uint64_t rows = 0;
  uint64_t cols = 0;
  std::vector<PlannedRun> runs;  // the base weight
  std::vector<LoraTerm> terms;   // in the order of the adapters
};

struct LoraPlan {
  LoraMath math = LoraMath::Exact;
  std::vector<LoraChange> changes;  // PlannedTensor::change counts these
};

// What merging did to one weight.
struct LoraReport {
  std::string name;
  uint64_t rank = 0;     // of all adapters together
  double max_delta = 0;  // of |merged - base|, before it is rounded
  double mean_delta = 0;
  uint64_t overflowed = 0;  // became infinite in the output's dtype
  uint64_t nonfinite = 0;  // NaN or infinite before that; no part of the deltas
};

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
