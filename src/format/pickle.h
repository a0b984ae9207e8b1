// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zckpt {

// The inert tree that a pickle describes. Nothing is ever called: a GLOBAL is
// a pair of names, and what pickle would call is a Call node that keeps the
// callable, the arguments and every later update in order. The tree is
// lossless: shared objects are one node reached twice, cycles are possible,
// and PickleWriter can emit it again with the same meaning.

using NodeId = uint32_t;

enum class NodeKind : uint8_t {
  None,
  Bool,        // integer
  Int,         // integer, fits 64 bits
  Long,        // text: little-endian two's complement bytes
  Float,       // real
  Str,         // text: UTF-8 (lone surrogates allowed)
  Bytes,       // text
  ByteArray,   // text
  Tuple,       // items
  List,        // items
  Dict,        // items: key, value, key, value, ...
  Set,         // items
  FrozenSet,   // items
  Global,      // items: module, name (both Str)
  Call,        // items: callable, argument tuple[, keyword dict]
  Persistent,  // items: the persistent id
};

// How a Call was written. NewObj is cls.__new__(cls, *args).
enum class CallKind : uint8_t { Reduce, NewObj, NewObjEx };

// What was done to an object after it was made, in order.
enum class UpdateKind : uint8_t {
  Build,     // one item: the state
  Append,    // items
  SetItems,  // items: key, value, ...
  AddItems,  // items
  Effect,    // one item: a Call with the object as its first argument, made
             // for what it does to the object and then dropped
};

// A growable run inside the tree's item pool.
struct ItemRange {
  uint32_t begin = 0;
  uint32_t size = 0;
  uint32_t capacity = 0;
};

struct Update {
  UpdateKind kind = UpdateKind::Build;
  ItemRange items;
  uint32_t next = 0;  // 1-based index of the next update of the object; 0: none
};

struct TextStart {
  const char* data;
};

struct Node {
  NodeKind kind = NodeKind::None;
  CallKind call = CallKind::Reduce;
  uint32_t first_update = 0;  // 1-based; 0: none
  uint32_t last_update = 0;
  ItemRange items;
  union {
    int64_t integer = 0;
    double real;
    TextStart text;
  };
  uint64_t text_size = 0;
};

class Value;

// Pickle owns the tree and the bytes that its strings point into.
// Threads: immutable once read; const methods may run concurrently.
// Memory:  O(opcodes) beside the pickle's own bytes.
class Pickle {
 public:
  explicit Pickle(std::string bytes) : bytes_(std::move(bytes)) {}
  Pickle(Pickle&&) = delete;  // nodes point into bytes_

  std::string_view bytes() const { return bytes_; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  size_t node_count() const { return nodes_.size(); }
  std::span<const NodeId> items(const ItemRange& range) const {
    return {pool_.data() + range.begin, range.size};
  }
  std::span<const NodeId> items(NodeId id) const {
    return items(nodes_[id].items);
  }
  std::string_view text(NodeId id) const {
    return {nodes_[id].text.data, static_cast<size_t>(nodes_[id].text_size)};
  }
  const Update& update(uint32_t one_based) const {
    return updates_[one_based - 1];
  }
  NodeId root() const { return root_; }
  // What PROTO said; 2 without one. Below 3, unpicklers take module names for
  // Python 2's and rename them.
  int protocol() const { return protocol_; }
  Value root_value() const;

  // Building, for the reader and for tests. Strings are copied by add_text
  // and borrowed from bytes() by add_text_view.
  void reserve(size_t nodes);
  NodeId add(NodeKind kind);
  NodeId add_integer(NodeKind kind, int64_t value);
  NodeId add_real(double value);
  NodeId add_text(NodeKind kind, std::string text);
  NodeId add_text_view(NodeKind kind, std::string_view text);
  NodeId add_items(NodeKind kind, std::span<const NodeId> items);
  NodeId add_call(CallKind call, std::span<const NodeId> items);
  void append_items(NodeId id, std::span<const NodeId> items);
  // Consecutive Append, SetItems or AddItems updates become one.
  void append_update(NodeId id, UpdateKind kind, std::span<const NodeId> items);
  void set_root(NodeId id) { root_ = id; }
  void set_protocol(int protocol) { protocol_ = protocol; }

 private:
  void extend(ItemRange& range, std::span<const NodeId> items);

  std::string bytes_;
  std::vector<Node> nodes_;
  std::vector<NodeId> pool_;
  std::vector<Update> updates_;
  std::deque<std::string> texts_;
  NodeId root_ = 0;
  int protocol_ = 2;
};

// Value is a node seen through its tree: the way to ask questions of a
// pickle. Questions about the wrong kind are answered by an empty optional or
// a size of 0, never by a throw: the pickle is somebody else's.
class Value {
 public:
  Value(const Pickle& pickle, NodeId id) : pickle_(&pickle), id_(id) {}

  const Pickle& pickle() const { return *pickle_; }
  NodeId id() const { return id_; }
  NodeKind kind() const { return node().kind; }
  bool is_none() const { return kind() == NodeKind::None; }

  std::optional<int64_t> integer() const;          // Int or Bool
  std::optional<double> number() const;            // Int, Bool or Float
  std::optional<bool> boolean() const;             // Bool
  std::optional<std::string_view> string() const;  // Str

  // List, tuple, set; torch.Size (a Call of one tuple) counts as its tuple.
  bool is_sequence() const;
  size_t size() const;         // of a sequence, or entries of a mapping
  Value item(size_t i) const;  // REQUIRES: is_sequence(), i < size()

  // Dict, or a Call of collections.OrderedDict, defaultdict or Counter.
  bool is_mapping() const;
  Value key(size_t i) const;  // REQUIRES: is_mapping(), i < size()
  Value value(size_t i) const;
  // The value of the last entry with this string or integer as its key.
  std::optional<Value> find(std::string_view key) const;
  std::optional<Value> find(int64_t key) const;

  // Of a Global: "module name" parts.
  bool is_global(std::string_view module, std::string_view name) const;
  std::string_view global_module() const;  // "" for other kinds
  std::string_view global_name() const;

  bool is_call() const { return kind() == NodeKind::Call; }
  bool is_call_of(std::string_view module, std::string_view name) const;
  Value callable() const;          // REQUIRES: is_call()
  size_t argument_count() const;   // 0 unless a Call with a tuple
  Value argument(size_t i) const;  // REQUIRES: i < argument_count()
  // The state given by the last BUILD of a Call; attributes of an object.
  std::optional<Value> state() const;

 private:
  const Node& node() const { return pickle_->node(id_); }
  std::span<const NodeId> sequence() const;
  std::span<const NodeId> mapping() const;

  const Pickle* pickle_;
  NodeId id_;
};

}  // namespace zckpt
