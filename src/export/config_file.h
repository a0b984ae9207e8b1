// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "zckpt/dtype.h"
#include "zckpt/export.h"

namespace zckpt {

// config.json, with the order of its keys. A config that nothing changes is
// written byte for byte.
// Errors: Corrupt, with the file, where it is no JSON object.
class ConfigFile {
 public:
  ConfigFile(std::string text, std::string file);

  const std::string& file() const { return file_; }
  std::string model_type() const;  // empty: not said
  std::vector<std::string> architectures() const;
  std::optional<DType> dtype() const;
  std::optional<bool> tie_word_embeddings() const;
  std::optional<uint64_t> vocab_size() const;
  bool is_quantized() const;
  // Names Python files to be run.
  bool has_remote_code() const;
  bool is_encoder_decoder() const;
  // Predicts the next token with an output head over the vocabulary, as the
  // name of its class says, or, without one, that something is tied.
  bool has_language_head() const;
  // Has a head over the vocabulary of any kind, as far as its class's name
  // tells; a classifier has none.
  bool has_some_head() const;
  // model_type of the config and of the parts in it.
  bool is_or_contains(const std::vector<std::string_view>& model_types) const;

  // Sets every key that says it, in the text model's part as well; adds one
  // where there is none.
  void set_dtype(DType dtype);
  void set_tie_word_embeddings(bool tied);
  void set_vocab_size(uint64_t size);
  void set_architectures(const std::vector<std::string>& names);

  std::string text() const;
  const std::vector<ConfigChange>& changes() const { return changes_; }

 private:
  using Json = nlohmann::ordered_json;
  // The object itself, and those of its parts that are configs of models.
  template <typename Function>
  void each_part(Function function);
  const Json* find(const char* key) const;
  void set(Json& part, const std::string& prefix, const char* key, Json value);

  std::string text_;
  std::string file_;
  Json root_;
  std::vector<ConfigChange> changes_;
};

}  // namespace zckpt
