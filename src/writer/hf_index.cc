// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/hf_index.h"

#include <cstddef>
#include <map>

#include "base/text.h"

namespace zckpt {
namespace {

// Python sorts keys by code point, which is the byte order of UTF-8.
using JsonObject = std::map<std::string, std::string>;

// `object` maps keys to values that are JSON text already; `indent` is that of
// the brace that opens it.
std::string dump(const JsonObject& object, size_t indent) {
  if (object.empty()) return "{}";
  const std::string margin(indent, ' ');
  std::string text = "{";
  for (const auto& [key, value] : object) {
    text += text.size() == 1 ? "\n" : ",\n";
    text.append(margin).append("  ").append(json_quote(key, true));
    text.append(": ").append(value);
  }
  return text + "\n" + margin + "}";
}

}  // namespace

std::vector<uint32_t> split_into_shards(const std::vector<uint64_t>& sizes,
                                        uint64_t max_shard_bytes,
                                        uint32_t* shard_count) {
  std::vector<uint32_t> shards(sizes.size(), 0);
  std::vector<size_t> open;  // tensors of the shard not yet numbered
  uint64_t open_bytes = 0;
  uint32_t count = 0;
  const auto close = [&] {
    if (open.empty()) return;
    for (const size_t tensor : open) shards[tensor] = count;
    open.clear();
    open_bytes = 0;
    ++count;
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > max_shard_bytes) {
      shards[i] = count++;
      continue;
    }
    if (open_bytes > max_shard_bytes - sizes[i]) close();
    open.push_back(i);
    open_bytes += sizes[i];
  }
  close();
  *shard_count = count;
  return shards;
}

std::string shard_file_name(std::string_view stem, std::string_view extension,
                            uint32_t shard, uint32_t shard_count) {
  std::string name(stem);
  if (shard_count > 1) {
    const auto five_digits = [](uint64_t number) {
      const std::string digits = std::to_string(number);
      return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') +
             digits;
    };
    name += '-' + five_digits(uint64_t{shard} + 1) + "-of-" +
            five_digits(shard_count);
  }
  name += extension;
  return name;
}

std::string hf_index_text(const HfIndex& index) {
  JsonObject metadata{
      {"total_parameters", std::to_string(index.total_parameters)},
      {"total_size", std::to_string(index.total_size)}};
  for (const auto& [alias, kept] : index.aliases) {
    metadata.emplace(alias, json_quote(kept, true));
  }
  JsonObject weight_map;
  for (const auto& [name, file] : index.weight_map) {
    weight_map.emplace(name, json_quote(file, true));
  }
  return dump({{"metadata", dump(metadata, 2)},
               {"weight_map", dump(weight_map, 2)}},
              0) +
         "\n";
}

}  // namespace zckpt
