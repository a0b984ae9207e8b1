// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/config_file.h"

#include <algorithm>
#include <utility>

#include "zckpt/error.h"

namespace zckpt {
namespace {

// What models of several parts call the part that has the vocabulary.
constexpr const char* kTextParts[] = {"text_config", "llm_config",
                                      "language_config"};

std::optional<DType> parse_dtype(std::string name) {
  constexpr std::string_view kTorch = "torch.";
  if (name.starts_with(kTorch)) name.erase(0, kTorch.size());
  if (name == "float32") return DType::F32;
  if (name == "bfloat16") return DType::BF16;
  if (name == "float16") return DType::F16;
  return std::nullopt;
}

// Python's json reads and writes three words that are no JSON.
constexpr std::string_view kConstants[] = {"-Infinity", "Infinity", "NaN"};
constexpr std::string_view kMark = "zckpt:constant:";

// Such words outside of strings as strings.
std::string hide_constants(const std::string& text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      out += c;
      out += text[++i];
      continue;
    }
    if (c == '"') in_string = !in_string;
    bool hidden = false;
    for (const std::string_view word : kConstants) {
      if (in_string || text.compare(i, word.size(), word) != 0) continue;
      out += '"' + std::string(kMark) + std::string(word) + '"';
      i += word.size() - 1;
      hidden = true;
      break;
    }
    if (!hidden) out += c;
  }
  return out;
}

std::string show_constants(std::string text) {
  for (const std::string_view word : kConstants) {
    const std::string hidden =
        '"' + std::string(kMark) + std::string(word) + '"';
    for (size_t at = text.find(hidden); at != std::string::npos;
         at = text.find(hidden, at)) {
      text.replace(at, hidden.size(), word);
    }
  }
  return text;
}

}  // namespace

ConfigFile::ConfigFile(std::string text, std::string file)
    : text_(std::move(text)), file_(std::move(file)) {
  root_ = Json::parse(hide_constants(text_), nullptr,
                      /*allow_exceptions=*/false);
  if (!root_.is_object()) {
    throw Error(ErrorCode::Corrupt, "expected a JSON object", {.file = file_});
  }
}

// In the object, else in the text model's part.
const ConfigFile::Json* ConfigFile::find(const char* key) const {
  const auto in = [&](const Json& part) -> const Json* {
    const auto it = part.find(key);
    return it == part.end() || it->is_null() ? nullptr : &*it;
  };
  if (const Json* value = in(root_)) return value;
  for (const char* name : kTextParts) {
    const auto part = root_.find(name);
    if (part == root_.end() || !part->is_object()) continue;
    if (const Json* value = in(*part)) return value;
  }
  return nullptr;
}

std::string ConfigFile::model_type() const {
  const auto it = root_.find("model_type");
  return it != root_.end() && it->is_string() ? it->get<std::string>() : "";
}

std::vector<std::string> ConfigFile::architectures() const {
  std::vector<std::string> names;
  const auto it = root_.find("architectures");
  if (it == root_.end() || !it->is_array()) return names;
  for (const Json& name : *it) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

std::optional<DType> ConfigFile::dtype() const {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const Json* value = find(key);
    if (value != nullptr && value->is_string()) {
      return parse_dtype(value->get<std::string>());
    }
  }
  return std::nullopt;
}

std::optional<bool> ConfigFile::tie_word_embeddings() const {
  const Json* value = find("tie_word_embeddings");
  if (value == nullptr || !value->is_boolean()) return std::nullopt;
  return value->get<bool>();
}

std::optional<uint64_t> ConfigFile::vocab_size() const {
  const Json* value = find("vocab_size");
  if (value == nullptr || !value->is_number_unsigned()) return std::nullopt;
  return value->get<uint64_t>();
}

bool ConfigFile::is_quantized() const {
  return find("quantization_config") != nullptr;
}

bool ConfigFile::has_remote_code() const {
  const auto it = root_.find("auto_map");
  return it != root_.end() && !it->is_null();
}

bool ConfigFile::is_encoder_decoder() const {
  const auto it = root_.find("is_encoder_decoder");
  return it != root_.end() && it->is_boolean() && it->get<bool>();
}

bool ConfigFile::has_language_head() const {
  const auto names = architectures();
  if (names.empty()) return tie_word_embeddings().value_or(false);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel") ||
           name.ends_with("ForConditionalGeneration");
  });
}

bool ConfigFile::has_some_head() const {
  const auto names = architectures();
  return names.empty() || has_language_head() ||
         std::any_of(names.begin(), names.end(), [](const std::string& name) {
           return name.ends_with("ForMaskedLM") ||
                  name.ends_with("ForPreTraining");
         });
}

bool ConfigFile::is_or_contains(
    const std::vector<std::string_view>& model_types) const {
  const auto is = [&](const Json& part) {
    const auto it = part.find("model_type");
    return it != part.end() && it->is_string() &&
           std::find(model_types.begin(), model_types.end(),
                     it->get<std::string>()) != model_types.end();
  };
  return is(root_) ||
         std::any_of(root_.begin(), root_.end(), [&](const Json& part) {
           return part.is_object() && is(part);
         });
}

template <typename Function>
void ConfigFile::each_part(Function function) {
  function(root_, std::string());
  for (auto& [name, part] : root_.items()) {
    if (name.ends_with("_config") && part.is_object() &&
        name != "quantization_config") {
      function(part, name + ".");
    }
  }
}

void ConfigFile::set(Json& part, const std::string& prefix, const char* key,
                     Json value) {
  const auto it = part.find(key);
  const bool is_new = it == part.end();
  if (!is_new && *it == value) return;
  changes_.push_back({.key = prefix + key,
                      .before = is_new ? "" : it->dump(),
                      .after = value.dump()});
  part[key] = std::move(value);
}

void ConfigFile::set_dtype(DType dtype) {
  bool said = false;
  each_part([&](Json& part, const std::string& prefix) {
    for (const char* key : {"torch_dtype", "dtype"}) {
      const auto it = part.find(key);
      if (it == part.end() || !(it->is_string() || it->is_null())) continue;
      set(part, prefix, key, std::string(torch_name(dtype)));
      said = said || prefix.empty();
    }
  });
  if (!said) set(root_, "", "torch_dtype", std::string(torch_name(dtype)));
}

void ConfigFile::set_tie_word_embeddings(bool tied) {
  set(root_, "", "tie_word_embeddings", tied);
  // transformers 4 reads that of the text model where there is one.
  for (const char* name : kTextParts) {
    const auto part = root_.find(name);
    if (part == root_.end() || !part->is_object()) continue;
    set(*part, std::string(name) + ".", "tie_word_embeddings", tied);
  }
}

void ConfigFile::set_vocab_size(uint64_t size) {
  bool said = false;
  if (root_.contains("vocab_size")) {
    set(root_, "", "vocab_size", size);
    said = true;
  }
  for (const char* name : kTextParts) {
    const auto part = root_.find(name);
    if (part == root_.end() || !part->contains("vocab_size")) continue;
    set(*part, std::string(name) + ".", "vocab_size", size);
    said = true;
  }
  if (!said) set(root_, "", "vocab_size", size);
}

void ConfigFile::set_architectures(const std::vector<std::string>& names) {
  set(root_, "", "architectures", names);
}

std::string ConfigFile::text() const {
  if (changes_.empty()) return text_;
  return show_constants(root_.dump(2, ' ', /*ensure_ascii=*/true)) + "\n";
}

}  // namespace zckpt
