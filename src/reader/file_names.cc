// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/file_names.h"

#include "base/text.h"

namespace zckpt {
namespace {

// Takes `literal` off the front of `text`.
bool take(std::string_view& text, std::string_view literal) {
  if (!text.starts_with(literal)) return false;
  text.remove_prefix(literal.size());
  return true;
}

// Takes decimal digits off the front of `text`. Ranks are numbers, however
// many digits they are padded to: sorting them as text is how other tools mix
// up ranks 2 and 10.
std::optional<uint32_t> take_number(std::string_view& text) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
    ++digits;
  }
  const auto value = parse_uint(text.substr(0, digits));
  if (!value || *value > UINT32_MAX) return std::nullopt;
  text.remove_prefix(digits);
  return static_cast<uint32_t>(*value);
}

// "mp_rank_MM" off the front.
bool take_mp_rank(std::string_view& text, ShardName& name) {
  if (!take(text, "mp_rank_")) return false;
  const auto number = take_number(text);
  if (number) name.mp_rank = *number;
  return number.has_value();
}

std::optional<ShardName> zero_shard(std::string_view text) {
  ShardName name;
  for (const std::string_view prefix : {"bf16_", "fp16_"}) {
    if (take(text, prefix)) name.prefix = prefix;
  }
  if (take(text, "zero_pp_rank_")) {
    name.rank = take_number(text);
    if (!name.rank || !take(text, "_")) return std::nullopt;
  }
  if (!take_mp_rank(text, name)) return std::nullopt;
  if (text == "_model_states.pt" && name.prefix.empty()) {
    name.kind = ShardKind::Model;
  } else if (name.rank &&
             (text == "_optim_states.pt" || text == "optim_states.pt")) {
    name.kind = ShardKind::Optim;  // no underscore before 0.3.14
  } else {
    return std::nullopt;
  }
  return name;
}

std::optional<ShardName> expert_or_layer(std::string_view text) {
  ShardName name;
  if (take(text, "expp_rank_")) {
    name.kind = ShardKind::ExpertOptim;
    name.expert = take_number(text);
    if (name.expert && take(text, "_") && take_mp_rank(text, name) &&
        text == "_optim_states.pt") {
      return name;
    }
    return std::nullopt;
  }
  if (take(text, "layer_")) {
    name.layer = take_number(text);
    if (!name.layer) return std::nullopt;
    if (take(text, "-model_states.pt") && text.empty()) {
      name.kind = ShardKind::PipelineLayer;
      return name;
    }
    if (take(text, "-model_")) {
      const auto tensor_rank = take_number(text);
      if (!tensor_rank || text != "-model_states.pt") return std::nullopt;
      name.kind = ShardKind::PipelineLayer;
      name.mp_rank = *tensor_rank;
      return name;
    }
    if (!take(text, "_")) return std::nullopt;
  }
  if (!take(text, "expert_")) return std::nullopt;
  name.kind = ShardKind::Expert;
  name.expert = take_number(text);
  if (name.expert && take(text, "_") && take_mp_rank(text, name) &&
      text == "_model_states.pt") {
    return name;
  }
  return std::nullopt;
}

}  // namespace

ShardName classify(std::string_view file_name) {
  if (const auto name = zero_shard(file_name)) return *name;
  if (const auto name = expert_or_layer(file_name)) return *name;
  // DeepSpeed's multi-writer engine appends -RANK.WRITERS (format.md 7.6).
  const size_t dash = file_name.rfind(".pt-");
  if (dash != std::string_view::npos) {
    const std::string_view whole = file_name.substr(0, dash + 3);
    std::string_view suffix = file_name.substr(dash + 4);
    auto name = zero_shard(whole);
    if (!name) name = expert_or_layer(whole);
    if (name && take_number(suffix) && take(suffix, ".") &&
        take_number(suffix) && suffix.empty()) {
      name->kind = ShardKind::FastPart;
      return *name;
    }
  }
  return {};
}

std::optional<uint64_t> number_after(std::string_view name,
                                     std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return parse_uint(name.substr(prefix.size()));
}

}  // namespace zckpt
