// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zckpt {

// What a file in a tag folder is, by its name (format.md 1.2).
enum class ShardKind : uint8_t {
  Model,          // [zero_pp_rank_D_]mp_rank_MM_model_states.pt
  Optim,          // [bf16_|fp16_]zero_pp_rank_D_mp_rank_MM[_]optim_states.pt
  Expert,         // [layer_L_]expert_E_mp_rank_MM_model_states.pt
  ExpertOptim,    // expp_rank_E_mp_rank_MM_optim_states.pt
  PipelineLayer,  // layer_LL[-model_TT]-model_states.pt
  FastPart,       // any of these followed by .pt-RANK.WRITERS
  Other,
};

struct ShardName {
  ShardKind kind = ShardKind::Other;
  std::optional<uint32_t> rank;  // data-parallel; none in mp_rank_MM files
  uint32_t mp_rank = 0;
  std::string_view prefix;  // "", "bf16_" or "fp16_"
  std::optional<uint32_t> layer;
  std::optional<uint32_t> expert;

  friend bool operator==(const ShardName&, const ShardName&) = default;
};

ShardName classify(std::string_view file_name);

// N of "<prefix>N" where N is decimal digits only, e.g. checkpoint-500.
std::optional<uint64_t> number_after(std::string_view name,
                                     std::string_view prefix);

}  // namespace zckpt
