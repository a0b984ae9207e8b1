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

void check_reserved(const std::vector<TensorSlot>& slots) {
  for (const TensorSlot& slot : slots) {
    if (slot.name != kMetadataName) continue;
    throw Error(ErrorCode::Unsupported,
                "safetensors cannot hold a tensor of this name",
                {.tensor = slot.name});
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
void append_slot(std::string& json, const TensorSlot& slot, uint64_t begin) {
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
    std::vector<TensorSlot>& slots,
    const std::vector<std::pair<std::string, std::string>>& metadata,
    uint64_t* data_bytes) {
  check_names(slots, "safetensors");
  check_reserved(slots);
  std::ranges::sort(slots, [](const TensorSlot& a, const TensorSlot& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  std::string json = "{";
  if (!metadata.empty()) append_metadata(json, metadata);
  uint64_t end = 0;
  for (TensorSlot& slot : slots) {
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
  for (TensorSlot& slot : slots) slot.offset += data_start;
  *data_bytes = end;
  return with_length(json);
}

}  // namespace zckpt
