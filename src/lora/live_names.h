// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zckpt {

// What a tensor of a live PEFT model is to its adapter.
enum class AdapterPart : uint8_t {
  A,            // lora_A, lora_embedding_A
  B,            // lora_B, lora_embedding_B
  BiasOfB,      // lora_B.bias
  Magnitude,    // DoRA's lora_magnitude_vector
  SavedModule,  // modules_to_save: a whole module that was trained
  Tokens,       // trainable_tokens_delta
  Replacement,  // in a file: a weight of the base model, whole
  Ignored,      // in a file: the untrained copy beside a trained one
};

// A name in a live PEFT model, with or without a wrapper's prefix, hence in a
// checkpoint, taken apart (conventions M7):
// "base_model.model.X.lora_A.default.weight" is part A of the adapter "default"
// on the module "X" and is called "base_model.model.X.lora_A.weight" in an
// adapter file.
struct LiveName {
  AdapterPart part = AdapterPart::A;
  std::string adapter;
  std::string module;     // without base_model.model.
  std::string file_name;  // in adapter_model.safetensors
  bool is_embedding = false;
};

// The factor that begins random; the rest begin as zero, so that a new adapter
// has no effect. It is A, of embeddings B.
constexpr bool begins_random(AdapterPart part, bool is_embedding) {
  return part == (is_embedding ? AdapterPart::B : AdapterPart::A);
}

inline constexpr std::string_view kPeftPrefix = "base_model.model.";

// `name` without what engines and compilers put before it (module., ...).
std::string_view strip_wrappers(std::string_view name);

// `name` from "base_model.model." on, where only wrappers' prefixes (module.,
// _orig_mod., ...) stand before it; else empty.
std::string_view peft_name(std::string_view name);

// Nothing for a name that belongs to no adapter.
std::optional<LiveName> parse_live_name(std::string_view name);

// A name in adapter_model.safetensors, with or without the adapter's name in
// it, taken apart.
struct FileName {
  AdapterPart part = AdapterPart::Replacement;
  std::string target;  // the module; for a Replacement the weight
  bool is_embedding = false;
  bool is_saved_module = false;  // X.modules_to_save.weight
};

// Nothing for a name that has no place in an adapter's file.
std::optional<FileName> parse_file_name(std::string_view name);

// What a tensor of a live PEFT model's base is called without PEFT: prefixes
// of wrappers, "base_model.model.", "base_layer" and "original_module" taken
// out. Names of a model without PEFT lose their wrappers' prefixes only.
std::string base_name(std::string_view name);

}  // namespace zckpt
