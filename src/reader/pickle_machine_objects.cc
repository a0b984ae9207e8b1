// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reader/pickle_machine.h"
#include "reader/pickle_text.h"

namespace zckpt {

// Could be anything once it is called or looked up: callable, a tuple, a list.
bool PickleMachine::is_opaque(NodeId id) const {
  switch (kind(id)) {
    case NodeKind::Global:
    case NodeKind::Call:
    case NodeKind::Persistent: return true;
    default: return false;
  }
}

void PickleMachine::op_empty_tuple() {
  push(singleton(empty_tuple_, NodeKind::Tuple, 0));
}

void PickleMachine::op_dict() {
  const size_t mark = take_mark();
  if (from(mark).size() % 2 != 0)
    corrupt("pickle dict has a key without value");
  const NodeId id = pickle_.add_items(NodeKind::Dict, from(mark));
  drop_from(mark);
  push(id);
}

void PickleMachine::extend(NodeId target, UpdateKind update,
                           std::span<const NodeId> items) {
  if (update == UpdateKind::SetItems && items.size() % 2 != 0) {
    corrupt("pickle dict has a key without value");
  }
  const NodeKind builtin = update == UpdateKind::Append     ? NodeKind::List
                           : update == UpdateKind::SetItems ? NodeKind::Dict
                                                            : NodeKind::Set;
  if (kind(target) == builtin) {
    pickle_.append_items(target, items);
  } else if (is_opaque(target)) {
    if (!items.empty()) pickle_.append_update(target, update, items);
  } else {
    corrupt("pickle adds items to an object that takes none");
  }
}

NodeId PickleMachine::add_line() {
  const std::string_view line = read_line();
  if (!is_pickle_utf8(line)) corrupt("pickle has a name that is not UTF-8");
  return pickle_.add_text_view(NodeKind::Str, line);
}

NodeId PickleMachine::add_global(NodeId module, NodeId name) {
  const std::array<NodeId, 2> items = {module, name};
  return pickle_.add_items(NodeKind::Global, items);
}

void PickleMachine::op_global() {
  const NodeId module = add_line();
  const NodeId name = add_line();
  push(add_global(module, name));
}

void PickleMachine::op_stack_global() {
  const NodeId name = pop();
  const NodeId module = pop();
  if (kind(module) != NodeKind::Str || kind(name) != NodeKind::Str) {
    corrupt("pickle global whose names are no strings");
  }
  push(add_global(module, name));
}

void PickleMachine::op_pers_id() {
  const std::string_view line = read_line();
  const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  if (!std::all_of(line.begin(), line.end(), is_ascii)) {
    corrupt("pickle persistent id is not ASCII");
  }
  const std::array<NodeId, 1> items = {
      pickle_.add_text_view(NodeKind::Str, line)};
  push(pickle_.add_items(NodeKind::Persistent, items));
}

void PickleMachine::op_bin_pers_id() {
  const std::array<NodeId, 1> items = {pop()};
  push(pickle_.add_items(NodeKind::Persistent, items));
}

void PickleMachine::push_call(CallKind call,
                              std::initializer_list<NodeId> items) {
  const std::span<const NodeId> span(items.begin(), items.size());
  if (!is_opaque(span[0])) corrupt("pickle calls what is not callable");
  // A subclass of tuple, such as torch.Size, is opaque.
  if (!may_be(span[1], NodeKind::Tuple)) {
    corrupt("pickle call whose arguments are no tuple");
  }
  if (span.size() > 2 && !may_be(span[2], NodeKind::Dict)) {
    corrupt("pickle call whose keyword arguments are no dict");
  }
  push(pickle_.add_call(call, span));
}

void PickleMachine::op_reduce() {
  const NodeId arguments = pop();
  push_call(CallKind::Reduce, {pop(), arguments});
}

void PickleMachine::op_new_obj() {
  const NodeId arguments = pop();
  push_call(CallKind::NewObj, {pop(), arguments});
}

void PickleMachine::op_new_obj_ex() {
  const NodeId keywords = pop();
  const NodeId arguments = pop();
  push_call(CallKind::NewObjEx, {pop(), arguments, keywords});
}

// Python calls cls.__new__(cls) where there are no arguments, unless the class
// has a __getinitargs__: only such a class, made for Python 2, would tell.
void PickleMachine::instantiate(NodeId callable, size_t first_argument,
                                size_t mark) {
  const std::span<const NodeId> arguments = from(first_argument);
  const CallKind call = arguments.empty() ? CallKind::NewObj : CallKind::Reduce;
  const NodeId tuple = arguments.empty()
                           ? singleton(empty_tuple_, NodeKind::Tuple, 0)
                           : pickle_.add_items(NodeKind::Tuple, arguments);
  drop_from(mark);
  push_call(call, {callable, tuple});
}

void PickleMachine::op_inst() {
  const NodeId module = add_line();
  const NodeId callable = add_global(module, add_line());
  const size_t mark = take_mark();
  instantiate(callable, mark, mark);
}

void PickleMachine::op_obj() {
  const size_t mark = take_mark();
  if (mark == stack_.size()) corrupt("pickle OBJ without a class");
  instantiate(stack_[mark], mark + 1, mark);
}

void PickleMachine::op_build() {
  const std::array<NodeId, 1> state = {pop()};
  if (!is_opaque(top())) corrupt("pickle BUILD of an object without state");
  pickle_.append_update(top(), UpdateKind::Build, state);
}

// The pickler ends an object that has a state setter of its own with the
// setter's call and a POP. The call belongs to its first argument then.
void PickleMachine::keep_effect(NodeId call) {
  const NodeId arguments = pickle_.items(call)[1];
  if (kind(arguments) != NodeKind::Tuple) return;
  const std::span<const NodeId> items = pickle_.items(arguments);
  if (items.empty() || kind(items[0]) != NodeKind::Call) return;
  const std::array<NodeId, 1> effect = {call};
  pickle_.append_update(items[0], UpdateKind::Effect, effect);
}

void PickleMachine::add_object_handlers(std::array<Handler, 256>& handlers) {
  using M = PickleMachine;
  const auto set = [&handlers](Opcode opcode, Handler handler) {
    handlers[static_cast<size_t>(opcode)] = handler;
  };
  set(Opcode::EmptyTuple, &M::op_empty_tuple);
  set(Opcode::Tuple1, &M::op_tuple<1>);
  set(Opcode::Tuple2, &M::op_tuple<2>);
  set(Opcode::Tuple3, &M::op_tuple<3>);
  set(Opcode::Tuple, &M::op_marked<NodeKind::Tuple>);
  set(Opcode::EmptyList, &M::op_empty<NodeKind::List>);
  set(Opcode::List, &M::op_marked<NodeKind::List>);
  set(Opcode::EmptyDict, &M::op_empty<NodeKind::Dict>);
  set(Opcode::Dict, &M::op_dict);
  set(Opcode::EmptySet, &M::op_empty<NodeKind::Set>);
  set(Opcode::FrozenSet, &M::op_marked<NodeKind::FrozenSet>);
  set(Opcode::Append, &M::op_extend<UpdateKind::Append, 1>);
  set(Opcode::Appends, &M::op_extend_marked<UpdateKind::Append>);
  set(Opcode::SetItem, &M::op_extend<UpdateKind::SetItems, 2>);
  set(Opcode::SetItems, &M::op_extend_marked<UpdateKind::SetItems>);
  set(Opcode::AddItems, &M::op_extend_marked<UpdateKind::AddItems>);
  set(Opcode::Global, &M::op_global);
  set(Opcode::StackGlobal, &M::op_stack_global);
  set(Opcode::Inst, &M::op_inst);
  set(Opcode::Obj, &M::op_obj);
  set(Opcode::PersId, &M::op_pers_id);
  set(Opcode::BinPersId, &M::op_bin_pers_id);
  set(Opcode::Reduce, &M::op_reduce);
  set(Opcode::NewObj, &M::op_new_obj);
  set(Opcode::NewObjEx, &M::op_new_obj_ex);
  set(Opcode::Build, &M::op_build);
}

}  // namespace zckpt
