// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/live_names.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace zckpt {
namespace {

struct Marker {
  std::string_view component;
  AdapterPart part;
  bool is_embedding;
};

// Each kind of tensor by the component that names it; the adapter's name
// follows. A new method's kinds are rows here.
constexpr std::array<Marker, 7> kMarkers{{
    {"lora_A", AdapterPart::A, false},
    {"lora_B", AdapterPart::B, false},
    {"lora_embedding_A", AdapterPart::A, true},
    {"lora_embedding_B", AdapterPart::B, true},
    {"lora_magnitude_vector", AdapterPart::Magnitude, false},
    {"modules_to_save", AdapterPart::SavedModule, false},
    {"trainable_tokens_delta", AdapterPart::Tokens, false},
}};

// Null for a component that names no kind.
const Marker* find_marker(std::string_view component) {
  const auto found = std::find_if(
      kMarkers.begin(), kMarkers.end(),
      [&](const Marker& marker) { return marker.component == component; });
  return found == kMarkers.end() ? nullptr : &*found;
}

// What engines and compilers put before a model's own names.
constexpr std::array<std::string_view, 4> kWrappers{
    "module.", "_forward_module.", "_orig_mod.", "_checkpoint_wrapped_module."};

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string join(std::span<const std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    if (!text.empty()) text += '.';
    text += part;
  }
  return text;
}

}  // namespace

std::string_view strip_wrappers(std::string_view name) {
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view wrapper : kWrappers) {
      if (!name.starts_with(wrapper)) continue;
      name.remove_prefix(wrapper.size());
      found = true;
    }
  }
  return name;
}

std::string_view peft_name(std::string_view name) {
  for (;;) {
    name = strip_wrappers(name);
    if (name.starts_with(kPeftPrefix)) return name;
    // Lightning's module keeps the model under a name of its own.
    if (!name.starts_with("model.")) return {};
    name.remove_prefix(6);
  }
}

std::optional<LiveName> parse_live_name(std::string_view name) {
  name = peft_name(name);
  if (name.empty()) return std::nullopt;
  const std::vector<std::string_view> parts =
      split(name.substr(kPeftPrefix.size()));
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const Marker* const marker = find_marker(parts[i]);
    if (marker == nullptr) continue;
    const auto before = std::span(parts).first(i);
    const auto after = std::span(parts).subspan(i + 2);
    LiveName live{.part = marker->part,
                  .adapter = std::string(parts[i + 1]),
                  .module = join(before),
                  .file_name = std::string(kPeftPrefix),
                  .is_embedding = marker->is_embedding};
    std::vector<std::string_view> kept(before.begin(), before.end());
    switch (live.part) {
      case AdapterPart::SavedModule: break;
      case AdapterPart::Tokens:  // X.token_adapter.trainable_tokens_delta
        if (live.module.ends_with(".token_adapter")) {
          live.module.resize(live.module.size() - 14);
        }
        [[fallthrough]];
      default: kept.push_back(parts[i]);
    }
    const bool is_bias = after.size() == 1 && after[0] == "bias";
    if (live.part == AdapterPart::B && is_bias) {
      live.part = AdapterPart::BiasOfB;
    }
    // Embedding factors and magnitudes are saved without ".weight".
    if (live.part != AdapterPart::Magnitude) {
      kept.insert(kept.end(), after.begin(), after.end());
    }
    live.file_name += join(kept);
    return live;
  }
  return std::nullopt;
}

std::optional<FileName> parse_file_name(std::string_view name) {
  if (!name.starts_with(kPeftPrefix)) return std::nullopt;
  const std::vector<std::string_view> parts =
      split(name.substr(kPeftPrefix.size()));
  std::vector<std::string_view> weight;
  FileName file;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "original_module") {
      return FileName{.part = AdapterPart::Ignored, .target = {}};
    }
    if (parts[i] == "base_layer" || parts[i] == "token_adapter") continue;
    const Marker* const marker = find_marker(parts[i]);
    if (marker == nullptr) {
      weight.push_back(parts[i]);
      continue;
    }
    auto after = std::span(parts).subspan(i + 1);
    if (marker->part == AdapterPart::SavedModule) {
      // A live name; only the name that PEFT gives by itself is told apart
      // from a parameter's.
      file.is_saved_module = true;
      if (after.size() > 1 && after[0] == "default") ++i;
      continue;
    }
    const bool has_end =
        !after.empty() && (after.back() == "weight" || after.back() == "bias");
    if (after.size() > (has_end ? 2U : 1U)) return std::nullopt;
    file.part = marker->part;
    file.is_embedding = marker->is_embedding;
    if (has_end && after.back() == "bias") {
      if (file.part != AdapterPart::B) return std::nullopt;
      file.part = AdapterPart::BiasOfB;
    }
    break;
  }
  file.target = join(weight);
  if (file.target.empty()) return std::nullopt;
  return file;
}

std::string base_name(std::string_view name) {
  const std::string_view peft = peft_name(name);
  if (peft.empty()) return std::string(strip_wrappers(name));
  std::vector<std::string_view> kept;
  for (const std::string_view part : split(peft.substr(kPeftPrefix.size()))) {
    if (part == "base_layer" || part == "original_module" ||
        part == "token_adapter") {
      continue;
    }
    kept.push_back(part);
  }
  return join(kept);
}

}  // namespace zckpt
