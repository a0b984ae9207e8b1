// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/digest.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <unordered_map>

namespace zckpt {
namespace {

class Digester {
 public:
  explicit Digester(const Pickle& pickle) : pickle_(pickle) {}

  // Depth is bounded by the reader's cap on nesting. A node met again, inside
  // a cycle or not, is not walked again.
  uint64_t of(NodeId id) {
    const Node& node = pickle_.node(id);
    switch (node.kind) {
      case NodeKind::None: return 0x9ae16a3b2f90404fU;
      case NodeKind::Bool:
      case NodeKind::Int:
        return mix(kind(node), static_cast<uint64_t>(node.integer));
      case NodeKind::Float:
        return mix(kind(node), std::bit_cast<uint64_t>(node.real));
      case NodeKind::Long:
      case NodeKind::Str:
      case NodeKind::Bytes:
      case NodeKind::ByteArray: {
        const auto text = pickle_.text(id);
        return XXH3_64bits_withSeed(text.data(), text.size(), kind(node));
      }
      default: return of_container(id, node);
    }
  }

 private:
  static uint64_t kind(const Node& node) {
    return static_cast<uint64_t>(node.kind) + 1;
  }
  static uint64_t mix(uint64_t a, uint64_t b) {
    const std::array<uint64_t, 2> pair{a, b};
    return XXH3_64bits(pair.data(), sizeof(pair));
  }

  uint64_t of_container(NodeId id, const Node& node) {
    const auto [seen, fresh] = known_.try_emplace(id, kind(node));
    if (!fresh) return seen->second;
    uint64_t hash = mix(kind(node), static_cast<uint64_t>(node.call));
    for (const NodeId item : pickle_.items(id)) hash = mix(hash, of(item));
    for (uint32_t u = node.first_update; u != 0; u = pickle_.update(u).next) {
      const Update& update = pickle_.update(u);
      hash = mix(hash, static_cast<uint64_t>(update.kind));
      for (const NodeId item : pickle_.items(update.items)) {
        hash = mix(hash, of(item));
      }
    }
    known_[id] = hash;
    return hash;
  }

  const Pickle& pickle_;
  std::unordered_map<NodeId, uint64_t> known_;
};

}  // namespace

uint64_t digest(const Value& value) {
  return Digester(value.pickle()).of(value.id());
}

uint64_t digest(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace zckpt
