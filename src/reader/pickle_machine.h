// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/pickle.h"
#include "format/pickle_opcodes.h"
#include "reader/pickle_reader.h"
#include "zckpt/error.h"

namespace zckpt {

// PickleMachine is pickle's stack machine, building the inert tree.
// Errors: as read_pickle, but for the depth.
// Memory: O(opcodes); no opcode allocates by a number that it merely states.
class PickleMachine {
 public:
  // Reads `pickle.bytes()` into `pickle`; both must outlive *this.
  PickleMachine(Pickle& pickle, const PickleLimits& limits);

  // Runs up to and including STOP and returns the offset behind it.
  uint64_t run();
  // Throws Corrupt unless STOP was the last byte.
  void expect_end();

 private:
  using Handler = void (PickleMachine::*)();
  static std::array<Handler, 256> make_handlers();
  static void add_value_handlers(std::array<Handler, 256>& handlers);
  static void add_object_handlers(std::array<Handler, 256>& handlers);

  [[noreturn]] void fail(ErrorCode code, const std::string& message) const {
    throw Error(code, message, {.offset = op_offset_});
  }
  [[noreturn]] void corrupt(const std::string& message) const {
    fail(ErrorCode::Corrupt, message);
  }

  // The bytes behind the opcode.
  std::string_view take(uint64_t size);
  uint64_t read_uint(size_t width);  // little-endian
  std::string_view read_line();      // without its newline

  // The stack above the last mark, as an unpickler sees it.
  void push(NodeId id) { stack_.push_back(id); }
  NodeId pop();
  NodeId top() const;
  // Removes the last mark. Items from the returned index on were above it;
  // they stay until drop_from().
  size_t take_mark();
  std::span<const NodeId> from(size_t index) const {
    return std::span<const NodeId>(stack_).subspan(index);
  }
  void drop_from(size_t index) { stack_.resize(index); }
  NodeId below(size_t mark) const;

  NodeId singleton(NodeId& id, NodeKind kind, int64_t value);
  void push_text(NodeKind kind, uint64_t size);
  void push_python2_text(std::string_view text, bool owned);
  void push_long(std::string_view bytes, bool owned);
  NodeId add_line();
  NodeId add_global(NodeId module, NodeId name);
  void put(uint64_t index);
  void get(uint64_t index);
  uint64_t read_memo_line();
  void push_call(CallKind kind, std::initializer_list<NodeId> items);
  void instantiate(NodeId callable, size_t first_argument, size_t mark);
  void extend(NodeId target, UpdateKind update, std::span<const NodeId> items);
  void keep_effect(NodeId call);
  NodeKind kind(NodeId id) const { return pickle_.node(id).kind; }
  bool is_opaque(NodeId id) const;
  bool may_be(NodeId id, NodeKind expected) const {
    return kind(id) == expected || is_opaque(id);
  }

  // Handlers, for one or several opcodes each.
  template <size_t kWidth>
  void op_uint() {
    push(pickle_.add_integer(NodeKind::Int,
                             static_cast<int64_t>(read_uint(kWidth))));
  }
  template <NodeKind kKind, size_t kWidth>
  void op_text() {
    push_text(kKind, read_uint(kWidth));
  }
  template <size_t kWidth>
  void op_python2_text() {
    push_python2_text(take(read_uint(kWidth)), false);
  }
  template <size_t kWidth>
  void op_long() {
    push_long(take(read_uint(kWidth)), false);
  }
  template <size_t kWidth>
  void op_put() {
    put(read_uint(kWidth));
  }
  template <size_t kWidth>
  void op_get() {
    get(read_uint(kWidth));
  }
  template <NodeKind kKind>
  void op_empty() {
    push(pickle_.add(kKind));
  }
  template <NodeKind kKind>
  void op_marked() {
    const size_t mark = take_mark();
    const NodeId id = pickle_.add_items(kKind, from(mark));
    drop_from(mark);
    push(id);
  }
  template <size_t kCount>
  void op_tuple() {
    std::array<NodeId, kCount> items;
    for (size_t i = kCount; i-- > 0;) items[i] = pop();
    push(pickle_.add_items(NodeKind::Tuple, items));
  }
  template <UpdateKind kUpdate, size_t kCount>
  void op_extend() {
    std::array<NodeId, kCount> items;
    for (size_t i = kCount; i-- > 0;) items[i] = pop();
    extend(top(), kUpdate, items);
  }
  template <UpdateKind kUpdate>
  void op_extend_marked() {
    const size_t mark = take_mark();
    extend(below(mark), kUpdate, from(mark));
    drop_from(mark);
  }
  template <int64_t kValue>
  void op_bool() {
    push(singleton(bools_[kValue], NodeKind::Bool, kValue));
  }
  void op_proto();
  void op_frame();
  void op_stop();
  void op_mark();
  void op_pop();
  void op_pop_mark();
  void op_dup();
  void op_none();
  void op_int32();
  void op_int_line();
  void op_long_line();
  void op_float_line();
  void op_float();
  void op_string_line();
  void op_unicode_line();
  void op_empty_tuple();
  void op_dict();
  void op_put_line();
  void op_get_line();
  void op_memoize();
  void op_global();
  void op_stack_global();
  void op_pers_id();
  void op_bin_pers_id();
  void op_reduce();
  void op_new_obj();
  void op_new_obj_ex();
  void op_inst();
  void op_obj();
  void op_build();
  void op_unsupported();

  Pickle& pickle_;
  std::string_view bytes_;
  const PickleLimits& limits_;
  uint64_t position_ = 0;
  uint64_t op_offset_ = 0;
  uint64_t opcodes_ = 0;
  Opcode previous_ = Opcode::Mark;
  bool stopped_ = false;

  std::vector<NodeId> stack_;
  std::vector<size_t> marks_;
  size_t floor_ = 0;  // the last mark: nothing below it can be popped

  // Indices that are dense enough are in a vector; a file may state any.
  std::vector<NodeId> memo_;
  std::map<uint64_t, NodeId> sparse_memo_;
  uint64_t memo_count_ = 0;

  NodeId none_ = UINT32_MAX;
  NodeId empty_tuple_ = UINT32_MAX;
  std::array<NodeId, 2> bools_ = {UINT32_MAX, UINT32_MAX};
};

}  // namespace zckpt
