// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "support/stored_weights.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string bytes_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot open " + path.string());
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

uint64_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, uint64_t> sizes{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"I16", 2}, {"F16", 2}, {"BF16", 2},
      {"I32", 4},  {"F32", 4}, {"I64", 8}, {"F64", 8}, {"U64", 8}};
  return sizes.at(dtype);
}

}  // namespace

StoredWeights read_stored_file(const std::string& path) {
  const std::string text = bytes_of(path);
  require(text.size() >= 8, path + ": shorter than its length field");
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) {
    length = length << 8U | static_cast<unsigned char>(text[i]);
  }
  require(length <= text.size() - 8, path + ": header past the end");
  require(length % 8 == 0, path + ": header not padded");
  const auto data = static_cast<size_t>(8 + length);
  const Json header = Json::parse(text.substr(8, static_cast<size_t>(length)));
  StoredWeights weights;
  std::vector<std::pair<uint64_t, uint64_t>> covered;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      weights.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    StoredTensor tensor{.dtype = entry.at("dtype"), .shape = entry.at("shape")};
    uint64_t size = element_bytes(tensor.dtype);
    for (const uint64_t extent : tensor.shape) size *= extent;
    const uint64_t begin = entry.at("data_offsets").at(0);
    const uint64_t end = entry.at("data_offsets").at(1);
    require(begin <= end && end <= text.size() - data && end - begin == size,
            path + ": offsets of " + name);
    covered.emplace_back(begin, end);
    tensor.bytes = text.substr(static_cast<size_t>(data + begin),
                               static_cast<size_t>(size));
    weights.file_of[name] = fs::path(path).filename().string();
    weights.tensors[name] = std::move(tensor);
  }
  // In file order, without gaps: what the reference writer guarantees.
  uint64_t next = 0;
  for (const auto& [begin, end] : covered) {
    require(begin == next, path + ": a gap, or another order than the data's");
    next = end;
  }
  require(next == text.size() - data, path + ": data nobody names");
  return weights;
}

StoredWeights read_stored_folder(const std::string& path) {
  const fs::path folder(path);
  const fs::path index_path = folder / "model.safetensors.index.json";
  std::set<std::string> present;
  for (const auto& entry : fs::directory_iterator(folder)) {
    present.insert(entry.path().filename().string());
  }
  if (!fs::exists(index_path)) {
    require(present == std::set<std::string>{"model.safetensors"},
            path + ": more or less than model.safetensors");
    return read_stored_file((folder / "model.safetensors").string());
  }
  const Json index = Json::parse(bytes_of(index_path));
  StoredWeights weights;
  std::set<std::string> named{"model.safetensors.index.json"};
  for (const auto& [name, file] : index.at("weight_map").items()) {
    named.insert(file.get<std::string>());
  }
  require(named == present, path + ": files differ from the index");
  named.erase("model.safetensors.index.json");
  for (const std::string& file : named) {
    StoredWeights part = read_stored_file((folder / file).string());
    require(
        part.metadata == std::map<std::string, std::string>{{"format", "pt"}},
        file + ": metadata of a shard");
    for (auto& [name, tensor] : part.tensors) {
      require(index["weight_map"].at(name) == file, name + ": another shard");
      require(weights.tensors.emplace(name, std::move(tensor)).second,
              name + ": in two shards");
      weights.file_of[name] = file;
    }
  }
  require(weights.tensors.size() == index["weight_map"].size(),
          path + ": the index names more than there is");
  for (const auto& [key, value] : index.at("metadata").items()) {
    if (key == "total_size") {
      weights.total_size = value;
    } else if (key == "total_parameters") {
      weights.total_parameters = value;
    } else {
      weights.metadata[key] = value;
    }
  }
  return weights;
}

std::string stored_file(const std::map<std::string, StoredTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {
        {"dtype", tensor.dtype},
        {"shape", tensor.shape},
        {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(text.size() >> (8 * i));
  }
  return length + text + data;
}

}  // namespace zckpt::test
