// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/safetensors_header.h"

#include <algorithm>
#include <tuple>

#include "base/arithmetic.h"
#include "base/text.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// What readers accept, the length field left out.
constexpr size_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = 8;
constexpr std::string_view kMetadataName = "__metadata__";

uint64_t bytes_of(const SafetensorsSlot& slot) {
  uint64_t bytes = size_of(slot.dtype);
  for (const uint64_t dimension : slot.shape) {
    bytes = checked_mul(bytes, dimension, "the size of a tensor");
  }
  return bytes;
}

// json_quote would put U+FFFD into the name, in silence.
bool is_text(const std::string& name) {
  const std::string_view replacement = "\xef\xbf\xbd";
  const auto count = [&](std::string_view text) {
    size_t found = 0;
    for (size_t at = text.find(replacement); at != std::string_view::npos;
         at = text.find(replacement, at + replacement.size())) {
      ++found;
    }
    return found;
  };
  return count(json_quote(name, false)) == count(name);
}

void check_names(const std::vector<SafetensorsSlot>& slots) {
  std::vector<std::string_view> names;
  names.reserve(slots.size());
  for (const SafetensorsSlot& slot : slots) names.emplace_back(slot.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) {
    throw Error(ErrorCode::Internal, "two tensors of one name in one file",
                {.tensor = std::string(*twice)});
  }
  if (std::ranges::binary_search(names, kMetadataName)) {
    throw Error(ErrorCode::Unsupported,
                "safetensors cannot hold a tensor of this name",
                {.tensor = std::string(kMetadataName)});
  }
  for (const SafetensorsSlot& slot : slots) {
    if (!is_text(slot.name)) {
      throw Error(ErrorCode::Unsupported,
                  "safetensors cannot hold a name that is not UTF-8",
                  {.tensor = slot.name});
    }
  }
}

void append_metadata(
    std::string& json,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  json += "\"__metadata__\":{";
  for (size_t i = 0; i < metadata.size(); ++i) {
    if (i != 0) json += ',';
    json += json_quote(metadata[i].first, false);
    json += ':';
    json += json_quote(metadata[i].second, false);
  }
  json += '}';
}

// `begin` counts from the first byte of data.
void append_slot(std::string& json, const SafetensorsSlot& slot,
                 uint64_t begin) {
  json += json_quote(slot.name, false);
  json += ":{\"dtype\":\"";
  json += safetensors_name(slot.dtype);
  json += "\",\"shape\":[";
  for (size_t i = 0; i < slot.shape.size(); ++i) {
    if (i != 0) json += ',';
    json += std::to_string(slot.shape[i]);
  }
  json += "],\"data_offsets\":[" + std::to_string(begin) + ',' +
          std::to_string(begin + slot.size_bytes) + "]}";
}

std::string with_length(const std::string& json) {
  std::string head;
  head.reserve(kLengthBytes + json.size());
  uint64_t length = json.size();
  for (size_t i = 0; i < kLengthBytes; ++i, length >>= 8) {
    head += static_cast<char>(length & 0xffU);
  }
  return head + json;
}

}  // namespace

std::string layout_safetensors(
    std::vector<SafetensorsSlot>& slots,
    const std::vector<std::pair<std::string, std::string>>& metadata,
    uint64_t* data_bytes) {
  check_names(slots);
  std::ranges::sort(
      slots, [](const SafetensorsSlot& a, const SafetensorsSlot& b) {
        return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
      });
  std::string json = "{";
  if (!metadata.empty()) append_metadata(json, metadata);
  uint64_t end = 0;
  for (SafetensorsSlot& slot : slots) {
    slot.offset = end;
    slot.size_bytes = bytes_of(slot);
    end = checked_add(end, slot.size_bytes, "the size of a file");
    if (json.size() > 1) json += ',';
    append_slot(json, slot, slot.offset);
  }
  json += '}';
  json.resize(align_up(json.size(), kLengthBytes), ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw Error(ErrorCode::Limit,
                "the header would take " + format_bytes(json.size()) +
                    ", and readers accept " + format_bytes(kMaxHeaderBytes) +
                    "; write smaller shards");
  }
  const uint64_t data_start = kLengthBytes + json.size();
  checked_add(data_start, end, "the size of a file");
  for (SafetensorsSlot& slot : slots) slot.offset += data_start;
  *data_bytes = end;
  return with_length(json);
}

}  // namespace zckpt
