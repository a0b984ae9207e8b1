// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "format/pickle.h"

#include <algorithm>
#include <utility>

#include "zckpt/error.h"

namespace zckpt {
namespace {

uint32_t to_index(size_t value) {
  // The reader's caps keep real trees far below this.
  if (value > UINT32_MAX) {
    throw Error(ErrorCode::Limit, "pickle has more than 2^32 objects");
  }
  return static_cast<uint32_t>(value);
}

}  // namespace

Value Pickle::root_value() const { return {*this, root_}; }

void Pickle::reserve(size_t nodes) {
  nodes_.reserve(nodes);
  pool_.reserve(nodes);
}

NodeId Pickle::add(NodeKind kind) {
  const NodeId id = to_index(nodes_.size());
  nodes_.emplace_back();
  nodes_.back().kind = kind;
  return id;
}

NodeId Pickle::add_integer(NodeKind kind, int64_t value) {
  const NodeId id = add(kind);
  nodes_[id].integer = value;
  return id;
}

NodeId Pickle::add_real(double value) {
  const NodeId id = add(NodeKind::Float);
  nodes_[id].real = value;
  return id;
}

NodeId Pickle::add_text(NodeKind kind, std::string text) {
  return add_text_view(kind, texts_.emplace_back(std::move(text)));
}

NodeId Pickle::add_text_view(NodeKind kind, std::string_view text) {
  const NodeId id = add(kind);
  nodes_[id].text.data = text.data();
  nodes_[id].text_size = text.size();
  return id;
}

NodeId Pickle::add_items(NodeKind kind, std::span<const NodeId> items) {
  const NodeId id = add(kind);
  extend(nodes_[id].items, items);
  return id;
}

NodeId Pickle::add_call(CallKind call, std::span<const NodeId> items) {
  const NodeId id = add_items(NodeKind::Call, items);
  nodes_[id].call = call;
  return id;
}

void Pickle::append_items(NodeId id, std::span<const NodeId> items) {
  extend(nodes_[id].items, items);
}

void Pickle::append_update(NodeId id, UpdateKind kind,
                           std::span<const NodeId> items) {
  const uint32_t last = nodes_[id].last_update;
  if (last == 0 || kind == UpdateKind::Build ||
      updates_[last - 1].kind != kind) {
    updates_.emplace_back();
    updates_.back().kind = kind;
    const uint32_t added = to_index(updates_.size());
    if (last == 0) {
      nodes_[id].first_update = added;
    } else {
      updates_[last - 1].next = added;
    }
    nodes_[id].last_update = added;
  }
  extend(updates_[nodes_[id].last_update - 1].items, items);
}

void Pickle::extend(ItemRange& range, std::span<const NodeId> items) {
  if (items.empty()) return;
  const uint32_t added = to_index(items.size());
  if (range.capacity - range.size < added) {
    const bool at_end = range.begin + range.capacity == pool_.size();
    if (range.capacity != 0 && !at_end) {
      // Moves to the end with room to double, so that many small batches into
      // several lists in turn stay linear.
      const size_t begin = pool_.size();
      const size_t capacity = (size_t{range.size} + added) * 2;
      to_index(begin + capacity);
      pool_.resize(begin + capacity);
      std::copy_n(pool_.begin() + range.begin, range.size,
                  pool_.begin() + static_cast<ptrdiff_t>(begin));
      range.begin = to_index(begin);
      range.capacity = to_index(capacity);
    } else {
      if (range.capacity == 0) range.begin = to_index(pool_.size());
      range.capacity = range.size + added;
      pool_.resize(to_index(size_t{range.begin} + range.capacity));
    }
  }
  std::copy(items.begin(), items.end(),
            pool_.begin() + range.begin + range.size);
  range.size += added;
}

std::optional<int64_t> Value::integer() const {
  if (kind() != NodeKind::Int && kind() != NodeKind::Bool) return std::nullopt;
  return node().integer;
}

std::optional<double> Value::number() const {
  if (kind() == NodeKind::Float) return node().real;
  if (const auto i = integer()) return static_cast<double>(*i);
  return std::nullopt;
}

std::optional<bool> Value::boolean() const {
  if (kind() != NodeKind::Bool) return std::nullopt;
  return node().integer != 0;
}

std::optional<std::string_view> Value::string() const {
  if (kind() != NodeKind::Str) return std::nullopt;
  return pickle_->text(id_);
}

std::span<const NodeId> Value::sequence() const {
  switch (kind()) {
    case NodeKind::Tuple:
    case NodeKind::List:
    case NodeKind::Set:
    case NodeKind::FrozenSet: return pickle_->items(id_);
    case NodeKind::Call:
      if ((is_call_of("torch", "Size") || is_call_of("builtins", "set") ||
           is_call_of("__builtin__", "set")) &&
          argument_count() == 1 && !argument(0).is_call()) {
        return argument(0).sequence();
      }
      return {};
    default: return {};
  }
}

bool Value::is_sequence() const {
  switch (kind()) {
    case NodeKind::Tuple:
    case NodeKind::List:
    case NodeKind::Set:
    case NodeKind::FrozenSet: return true;
    default:
      return is_call_of("torch", "Size") || is_call_of("builtins", "set") ||
             is_call_of("__builtin__", "set");
  }
}

std::span<const NodeId> Value::mapping() const {
  if (kind() == NodeKind::Dict) return pickle_->items(id_);
  if (!is_mapping()) return {};
  for (uint32_t u = node().first_update; u != 0; u = pickle_->update(u).next) {
    if (pickle_->update(u).kind == UpdateKind::SetItems) {
      return pickle_->items(pickle_->update(u).items);
    }
  }
  return {};
}

bool Value::is_mapping() const {
  return kind() == NodeKind::Dict || is_call_of("collections", "OrderedDict") ||
         is_call_of("collections", "defaultdict") ||
         is_call_of("collections", "Counter");
}

size_t Value::size() const {
  return is_mapping() ? mapping().size() / 2 : sequence().size();
}

Value Value::item(size_t i) const { return {*pickle_, sequence()[i]}; }
Value Value::key(size_t i) const { return {*pickle_, mapping()[2 * i]}; }
Value Value::value(size_t i) const { return {*pickle_, mapping()[2 * i + 1]}; }

std::optional<Value> Value::find(std::string_view name) const {
  const auto entries = mapping();
  for (size_t i = entries.size() / 2; i-- > 0;) {
    const Value k(*pickle_, entries[2 * i]);
    if (k.string() == name) return Value(*pickle_, entries[2 * i + 1]);
  }
  return std::nullopt;
}

std::optional<Value> Value::find(int64_t number) const {
  const auto entries = mapping();
  for (size_t i = entries.size() / 2; i-- > 0;) {
    const Value k(*pickle_, entries[2 * i]);
    if (k.integer() == number) return Value(*pickle_, entries[2 * i + 1]);
  }
  return std::nullopt;
}

std::string_view Value::global_module() const {
  if (kind() != NodeKind::Global) return {};
  return pickle_->text(pickle_->items(id_)[0]);
}

std::string_view Value::global_name() const {
  if (kind() != NodeKind::Global) return {};
  return pickle_->text(pickle_->items(id_)[1]);
}

bool Value::is_global(std::string_view module, std::string_view name) const {
  return kind() == NodeKind::Global && global_name() == name &&
         global_module() == module;
}

bool Value::is_call_of(std::string_view module, std::string_view name) const {
  return is_call() && callable().is_global(module, name);
}

Value Value::callable() const { return {*pickle_, pickle_->items(id_)[0]}; }

size_t Value::argument_count() const {
  if (!is_call()) return 0;
  const Value arguments(*pickle_, pickle_->items(id_)[1]);
  return arguments.kind() == NodeKind::Tuple ? arguments.size() : 0;
}

Value Value::argument(size_t i) const {
  return Value(*pickle_, pickle_->items(id_)[1]).item(i);
}

std::optional<Value> Value::state() const {
  std::optional<Value> state;
  for (uint32_t u = node().first_update; u != 0; u = pickle_->update(u).next) {
    if (pickle_->update(u).kind == UpdateKind::Build) {
      state = Value(*pickle_, pickle_->items(pickle_->update(u).items)[0]);
    }
  }
  return state;
}

}  // namespace zckpt
