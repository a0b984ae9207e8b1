// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/text.h"
#include "reader/layout.h"
#include "reader/safetensors_file.h"

// A folder of Hugging Face weights: model.safetensors or pytorch_model.bin, or
// several files with an index, as transformers names them.

namespace zckpt {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kIndexCap = uint64_t{1} << 28;

// In the order in which transformers looks.
constexpr std::array<const char*, 4> kNames{
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json"};

// An index is somebody else's text: a file name in it must be a plain name
// with the index's own extension (huggingface_hub refuses the same).
void check_file_name(const std::string& name, const std::string& extension,
                     const std::string& index) {
  if (name.empty() || name.find('/') != std::string::npos ||
      name.find('\\') != std::string::npos ||
      name.find(':') != std::string::npos ||
      name.find('\0') != std::string::npos || !name.ends_with(extension)) {
    throw Error(ErrorCode::Corrupt,
                "the index names a file that is no plain *" + extension +
                    " name: " + escape(name),
                {.file = index});
  }
}

class WeightsFolder {
 public:
  WeightsFolder(std::string folder, SourceSet& sources)
      : folder_(std::move(folder)), sources_(sources) {}

  Contents read() {
    if (exists(kNames[0])) {
      add_safetensors(kNames[0]);
    } else if (exists(kNames[1])) {
      read_index(kNames[1], ".safetensors");
    } else if (exists(kNames[2])) {
      add_bin(kNames[2]);
    } else {
      read_index(kNames[3], ".bin");
    }
    return finish();
  }

  Contents read_file(const std::string& name) {
    name.ends_with(".safetensors") ? add_safetensors(name) : add_bin(name);
    return finish();
  }

 private:
  Contents finish() {
    for (const auto& [alias, kept] : mentioned_) note_alias(alias, kept);
    for (const Tensor& tensor : contents_.tensors()) {
      contents_.module_order.push_back(tensor.name);
    }
    for (const auto& [alias, kept] : contents_.aliases) {
      contents_.module_order.push_back(alias);
    }
    return std::move(contents_);
  }

  bool exists(const std::string& name) const {
    std::error_code ignored;
    return fs::exists(fs::path(folder_) / name, ignored);
  }
  std::string path(const std::string& name) const {
    return (fs::path(folder_) / name).string();
  }

  void read_index(const std::string& index, const std::string& extension) {
    const json root = json::parse(read_text_file(path(index), kIndexCap),
                                  nullptr, /*allow_exceptions=*/false);
    if (!root.is_object() || !root.contains("weight_map") ||
        !root["weight_map"].is_object()) {
      throw Error(ErrorCode::Corrupt, "expected an object with a weight_map",
                  {.file = index});
    }
    std::map<std::string, size_t> expected;  // tensors per file
    std::map<std::string, std::string> file_of;
    for (const auto& [name, file] : root["weight_map"].items()) {
      if (!file.is_string()) {
        throw Error(ErrorCode::Corrupt, "a file name is no string",
                    {.file = index, .tensor = name});
      }
      check_file_name(file, extension, index);
      ++expected[file];
      file_of[name] = file;
    }
    for (const auto& [file, count] : expected) {
      const size_t before = name_count();
      extension == ".bin" ? add_bin(file) : add_safetensors(file);
      const size_t found = name_count() - before;
      if (found != count) {
        throw Error(ErrorCode::Corrupt,
                    "the index expects " + count_of(count, "tensor") +
                        " here, found " + std::to_string(found),
                    {.file = file});
      }
    }
    std::set<std::string> tied;  // within one .bin file
    for (const auto& [alias, kept] : contents_.aliases) tied.insert(alias);
    for (const auto& [name, file] : file_of) {
      if (!contents_.find(name) && !tied.contains(name)) {
        throw Error(ErrorCode::Corrupt,
                    "the index lists this tensor in " + escape(file) +
                        ", which does not hold it",
                    {.file = index, .tensor = name});
      }
    }
    for (const Tensor& tensor : contents_.tensors()) {
      if (!file_of.contains(tensor.name)) {
        throw Error(ErrorCode::Corrupt, "the index does not list this tensor",
                    {.file = index, .tensor = tensor.name});
      }
    }
    if (root.contains("metadata") && root["metadata"].is_object()) {
      for (const auto& [key, value] : root["metadata"].items()) {
        if (value.is_string()) {
          mentioned_.emplace_back(key, value.get<std::string>());
        }
      }
    }
  }

  // Tied names of one .bin file are aliases here, but two names of the index.
  size_t name_count() const {
    return contents_.tensors().size() + contents_.aliases.size();
  }

  void note_alias(const std::string& alias, const std::string& kept) {
    if (contents_.find(kept) && !contents_.find(alias)) {
      contents_.aliases.emplace_back(alias, kept);
    }
  }

  void add_safetensors(const std::string& name) {
    const FileSource source(path(name));
    SafetensorsFile file;
    try {
      file = read_safetensors_header(source);
    } catch (Error& error) {
      throw error.in_file(name);
    }
    const uint32_t id = sources_.add(path(name), source.size(), source.stamp());
    for (SafetensorsEntry& entry : file.entries) {
      TensorView view{.dtype = entry.dtype,
                      .shape = entry.shape,
                      .stride = {},
                      .offset = entry.offset,
                      .storage_offset = entry.offset,
                      .numel = entry.size_bytes / size_of(entry.dtype)};
      view.stride.assign(entry.shape.size(), 1);
      for (size_t d = entry.shape.size(); d-- > 1;) {
        view.stride[d - 1] = view.stride[d] * entry.shape[d];
      }
      add(entry.name, id, view);
    }
    mentioned_.insert(mentioned_.end(), file.metadata.begin(),
                      file.metadata.end());
  }

  void add_bin(const std::string& name) {
    const FileSource source(path(name));
    const uint32_t id = sources_.add(path(name), source.size(), source.stamp());
    try {
      const TorchFile file = TorchFile::open(source);
      const Value root = file.root();
      if (!root.is_mapping()) {
        throw Error(ErrorCode::Corrupt, "expected a dict of tensors");
      }
      std::map<std::tuple<uint64_t, std::vector<uint64_t>,
                          std::vector<uint64_t>, DType>,
               std::string>
          places;
      for (size_t i = 0; i < root.size(); ++i) {
        const auto key = root.key(i).string();
        const auto view =
            key ? view_of(file, root.value(i)) : std::optional<TensorView>();
        if (!view) {
          contents_.notes.push_back(
              "entry " + (key ? escape(*key) : std::to_string(i)) + " of " +
              name + " is no named tensor and is left out");
          continue;
        }
        const auto [known, fresh] = places.try_emplace(
            std::tuple(view->offset, view->shape, view->stride, view->dtype),
            std::string(*key));
        if (!fresh && view->numel != 0) {
          contents_.aliases.emplace_back(std::string(*key), known->second);
          continue;
        }
        add(std::string(*key), id, *view);
      }
    } catch (Error& error) {
      throw error.in_file(name);
    }
  }

  void add(const std::string& name, uint32_t source, const TensorView& view) {
    contents_.add({.name = name,
                   .role = Role::Model,
                   .dtype = view.dtype,
                   .shape = view.shape,
                   .numel = view.numel},
                  place_view(source, view));
  }

  // Pairs that metadata mention; settled once all names are known.
  std::vector<std::pair<std::string, std::string>> mentioned_;
  std::string folder_;
  SourceSet& sources_;
  Contents contents_;
};

}  // namespace

bool has_weights(const std::string& folder) {
  return std::any_of(kNames.begin(), kNames.end(), [&](const char* name) {
    std::error_code ignored;
    return fs::is_regular_file(fs::path(folder) / name, ignored);
  });
}

Contents read_weights_folder(const std::string& folder, SourceSet& sources) {
  return WeightsFolder(folder, sources).read();
}

Contents read_weights_file(const std::string& folder, const std::string& name,
                           SourceSet& sources) {
  return WeightsFolder(folder, sources).read_file(name);
}

}  // namespace zckpt
