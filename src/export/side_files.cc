// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/side_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kConfigCap = uint64_t{1} << 26;

// What a tokenizer's words are in. One of them makes it whole.
constexpr const char* kVocabularies[] = {
    "tokenizer.json",  "vocab.json",   "vocab.txt",
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "spm.model",       "tekken.json",  "qwen.tiktoken",
    "tiktoken.model",  "source.spm"};
constexpr const char* kTokenizerFiles[] = {"tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "merges.txt",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "normalizer.json",
                                           "bpe.codes",
                                           "target.spm"};
constexpr const char* kOtherFiles[] = {"generation_config.json",
                                       "preprocessor_config.json",
                                       "processor_config.json",
                                       "video_preprocessor_config.json",
                                       "image_processor_config.json",
                                       "value_head.safetensors",
                                       "value_head.bin"};

bool has(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  return !folder.empty() &&
         fs::is_regular_file(fs::path(folder) / name, ignored);
}

template <typename Names>
std::vector<std::string> present(const std::string& folder,
                                 const Names& names) {
  std::vector<std::string> found;
  for (const char* name : names) {
    if (has(folder, name)) found.emplace_back(name);
  }
  return found;
}

// Finds the highest id in tokenizer.json without keeping what is in it: such a
// file has tens of megabytes.
class HighestId final : public nlohmann::json_sax<json> {
 public:
  uint64_t size() const { return size_; }

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override {
    return scalar();
  }
  bool string(string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool number_unsigned(number_unsigned_t value) override {
    // {"model": {"vocab": {word: id}}}, {"added_tokens": [{"id": id}]}, or a
    // plain {word: id}.
    const bool is_id =
        (path_.size() == 3 && path_[0] == "model" && path_[1] == "vocab") ||
        (path_.size() == 3 && path_[0] == "added_tokens" && path_[2] == "id") ||
        path_.size() == 1;
    if (is_id && value < UINT32_MAX) size_ = std::max(size_, value + 1);
    return scalar();
  }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override {
    // {"model": {"vocab": [[word, score], ...]}}
    if (path_.size() == 4 && path_[0] == "model" && path_[1] == "vocab") {
      size_ = std::max(size_, ++listed_);
    }
    return leave();
  }
  bool key(string_t& name) override {
    if (!path_.empty()) path_.back() = name.substr(0, kKept);
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  static constexpr size_t kKept = 16;  // of a key; longer ones are words

  bool scalar() { return true; }
  bool enter() {
    path_.emplace_back();
    return path_.size() < 64;
  }
  bool leave() {
    path_.pop_back();
    return true;
  }

  std::vector<std::string> path_;
  uint64_t size_ = 0;
  uint64_t listed_ = 0;
};

uint64_t highest_id(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  HighestId handler;
  if (!json::sax_parse(in, &handler)) {
    throw Error(ErrorCode::Corrupt, "expected JSON of a tokenizer",
                {.file = file});
  }
  return handler.size();
}

void add_code(const std::string& folder, std::vector<SideFile>& files) {
  std::error_code ignored;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    // Scripts that DeepSpeed leaves in checkpoints.
    if (!name.ends_with(".py") || name == "zero_to_fp32.py" ||
        name == "zero_to_torch.py" || !entry.is_regular_file(ignored)) {
      continue;
    }
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const bool known =
        std::any_of(files.begin(), files.end(),
                    [&](const SideFile& file) { return file.name == name; });
    if (!known) files.push_back({name, folder});
  }
}

// The nearest folder with a whole tokenizer: a vocabulary, and the config that
// says how it is used; without one of those, the nearest vocabulary.
std::string choose_tokenizer(const std::vector<std::string>& folders,
                             std::vector<std::string>& notes) {
  std::string half;
  for (const std::string& folder : folders) {
    const bool words = !present(folder, kVocabularies).empty();
    const auto rest = present(folder, kTokenizerFiles);
    if (words && has(folder, "tokenizer_config.json")) {
      if (!half.empty()) {
        notes.push_back("the tokenizer in " + escape(half) +
                        " has no tokenizer_config.json and is left out");
      }
      return folder;
    }
    if (words && half.empty()) half = folder;
    if (!words && !rest.empty()) {
      notes.push_back("the tokenizer in " + escape(folder) +
                      " has no vocabulary (" + escape(rest.front()) +
                      " alone) and is left out");
    }
  }
  if (half.empty())
    notes.push_back("no tokenizer was found: the folder has none");
  return half;
}

bool asks_for_code(const std::string& tokenizer) {
  if (!has(tokenizer, "tokenizer_config.json")) return false;
  const json config = json::parse(
      read_text_file((fs::path(tokenizer) / "tokenizer_config.json").string(),
                     kConfigCap),
      nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("auto_map");
}

}  // namespace

std::string config_folder(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    if (has(folder, "config.json")) return folder;
  }
  return "";
}

std::vector<SideFile> choose_side_files(const std::vector<std::string>& folders,
                                        bool remote_code,
                                        std::vector<std::string>& notes) {
  std::vector<SideFile> files;
  const std::string tokenizer = choose_tokenizer(folders, notes);
  for (const std::string& name : present(tokenizer, kVocabularies)) {
    files.push_back({name, tokenizer});
  }
  for (const std::string& name : present(tokenizer, kTokenizerFiles)) {
    files.push_back({name, tokenizer});
  }
  for (const char* name : kOtherFiles) {
    for (const std::string& folder : folders) {
      if (!has(folder, name)) continue;
      files.push_back({name, folder});
      break;
    }
  }
  // Code is asked for by config.json or by the tokenizer's config, and may lie
  // with the base although a config is nearer.
  if (remote_code || asks_for_code(tokenizer)) {
    for (const std::string& folder : folders) add_code(folder, files);
  }
  return files;
}

std::optional<uint64_t> tokenizer_size(const std::string& folder) {
  const auto path = [&](const char* name) {
    return (fs::path(folder) / name).string();
  };
  std::optional<uint64_t> size;
  for (const char* name : {"tokenizer.json", "vocab.json"}) {
    if (!has(folder, name)) continue;
    size = highest_id(path(name));
    break;
  }
  if (has(folder, "added_tokens.json")) {
    size = std::max(size.value_or(0), highest_id(path("added_tokens.json")));
  }
  return size;
}

}  // namespace zckpt
