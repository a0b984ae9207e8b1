// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/pickle_machine.h"

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace zckpt {
namespace {

constexpr NodeId kNoNode = UINT32_MAX;

// What real pickles take, and a bound on what is set aside for that guess.
constexpr size_t kBytesPerNode = 8;
constexpr size_t kMaxReserve = size_t{1} << 17;

}  // namespace

PickleMachine::PickleMachine(Pickle& pickle, const PickleLimits& limits)
    : pickle_(pickle), bytes_(pickle.bytes()), limits_(limits) {
  pickle_.reserve(std::min(bytes_.size() / kBytesPerNode, kMaxReserve));
}

uint64_t PickleMachine::run() {
  static const std::array<Handler, 256> kHandlers = make_handlers();
  while (!stopped_) {
    op_offset_ = position_;
    if (position_ == bytes_.size()) corrupt("pickle ends without STOP");
    if (++opcodes_ > limits_.max_opcodes) {
      fail(ErrorCode::Limit, "pickle has more than " +
                                 std::to_string(limits_.max_opcodes) +
                                 " opcodes");
    }
    const uint8_t opcode = static_cast<uint8_t>(bytes_[position_++]);
    const Handler handler = kHandlers[opcode];
    if (handler == nullptr) {
      corrupt("no pickle opcode: " + std::to_string(opcode));
    }
    (this->*handler)();
    if (stack_.size() + marks_.size() > limits_.max_stack) {
      fail(ErrorCode::Limit, "pickle stack holds more than " +
                                 std::to_string(limits_.max_stack) + " items");
    }
    if (pickle_.node_count() > limits_.max_nodes) {
      fail(ErrorCode::Limit, "pickle has more than " +
                                 std::to_string(limits_.max_nodes) +
                                 " objects");
    }
    // A frame may begin between any two opcodes that belong together.
    if (opcode != static_cast<uint8_t>(Opcode::Frame)) {
      previous_ = static_cast<Opcode>(opcode);
    }
  }
  return position_;
}

void PickleMachine::expect_end() {
  op_offset_ = position_;
  if (position_ != bytes_.size()) corrupt("bytes after the pickle's STOP");
}

std::string_view PickleMachine::take(uint64_t size) {
  if (size > bytes_.size() - position_) {
    corrupt("pickle opcode runs past the end: needs " + std::to_string(size) +
            " bytes, " + std::to_string(bytes_.size() - position_) + " remain");
  }
  const std::string_view taken =
      bytes_.substr(position_, static_cast<size_t>(size));
  position_ += size;
  return taken;
}

uint64_t PickleMachine::read_uint(size_t width) {
  const std::string_view raw = take(width);
  uint64_t value = 0;
  for (size_t i = width; i-- > 0;) {
    value = value << 8 | static_cast<uint8_t>(raw[i]);
  }
  return value;
}

std::string_view PickleMachine::read_line() {
  const size_t end = bytes_.find('\n', position_);
  if (end == std::string_view::npos) corrupt("pickle line without an end");
  const std::string_view line = bytes_.substr(position_, end - position_);
  position_ = end + 1;
  return line;
}

NodeId PickleMachine::pop() {
  const NodeId id = top();
  stack_.pop_back();
  return id;
}

NodeId PickleMachine::top() const {
  if (stack_.size() <= floor_) corrupt("pickle stack underflow");
  return stack_.back();
}

size_t PickleMachine::take_mark() {
  if (marks_.empty()) corrupt("pickle opcode needs a mark, there is none");
  const size_t mark = marks_.back();
  marks_.pop_back();
  floor_ = marks_.empty() ? 0 : marks_.back();
  return mark;
}

NodeId PickleMachine::below(size_t mark) const {
  if (mark <= floor_) corrupt("pickle stack underflow below a mark");
  return stack_[mark - 1];
}

void PickleMachine::op_proto() {
  const uint64_t protocol = read_uint(1);
  if (op_offset_ != 0) corrupt("PROTO is not the first opcode of the pickle");
  if (protocol > 5) {
    fail(ErrorCode::Unsupported,
         "pickle protocol " + std::to_string(protocol) + ", 0 to 5 are known");
  }
  pickle_.set_protocol(static_cast<int>(protocol));
}

void PickleMachine::op_frame() {
  // Frames only help streams; opcodes are read across them, as Python does.
  const uint64_t size = read_uint(8);
  if (size > bytes_.size() - position_) {
    corrupt("pickle frame of " + std::to_string(size) +
            " bytes runs past the end");
  }
}

void PickleMachine::op_stop() {
  pickle_.set_root(pop());
  // Python ignores the rest; here it would be lost without a word.
  if (!stack_.empty() || !marks_.empty()) {
    corrupt("pickle leaves items on the stack at STOP");
  }
  stopped_ = true;
}

void PickleMachine::op_mark() {
  marks_.push_back(stack_.size());
  floor_ = stack_.size();
}

void PickleMachine::op_pop() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    take_mark();
    return;
  }
  const NodeId id = pop();
  if (previous_ == Opcode::Reduce) keep_effect(id);
}

void PickleMachine::op_pop_mark() { drop_from(take_mark()); }

void PickleMachine::op_dup() { push(top()); }

void PickleMachine::put(uint64_t index) {
  const NodeId id = top();
  // The vector stays in proportion to what was really put.
  if (index >= memo_.size() && index <= 2 * memo_count_ + 1024) {
    memo_.resize(static_cast<size_t>(index) + 1, kNoNode);
  }
  NodeId& slot = index < memo_.size()
                     ? memo_[static_cast<size_t>(index)]
                     : sparse_memo_.try_emplace(index, kNoNode).first->second;
  if (slot == kNoNode && ++memo_count_ > limits_.max_memo) {
    fail(ErrorCode::Limit, "pickle memo holds more than " +
                               std::to_string(limits_.max_memo) + " objects");
  }
  slot = id;
}

void PickleMachine::get(uint64_t index) {
  NodeId id = kNoNode;
  if (index < memo_.size()) id = memo_[static_cast<size_t>(index)];
  if (id == kNoNode && !sparse_memo_.empty()) {
    const auto found = sparse_memo_.find(index);
    if (found != sparse_memo_.end()) id = found->second;
  }
  if (id == kNoNode) {
    corrupt("pickle memo has no object " + std::to_string(index));
  }
  push(id);
}

uint64_t PickleMachine::read_memo_line() {
  const std::optional<uint64_t> index = parse_uint(read_line());
  if (!index) corrupt("pickle memo index is no number");
  return *index;
}

void PickleMachine::op_put_line() { put(read_memo_line()); }
void PickleMachine::op_get_line() { get(read_memo_line()); }
void PickleMachine::op_memoize() { put(memo_count_); }

void PickleMachine::op_unsupported() {
  fail(ErrorCode::Unsupported,
       "pickle needs a copyreg extension or an out-of-band buffer");
}

std::array<PickleMachine::Handler, 256> PickleMachine::make_handlers() {
  using M = PickleMachine;
  std::array<Handler, 256> handlers = {};
  const auto set = [&handlers](Opcode opcode, Handler handler) {
    handlers[static_cast<size_t>(opcode)] = handler;
  };
  set(Opcode::Proto, &M::op_proto);
  set(Opcode::Frame, &M::op_frame);
  set(Opcode::Stop, &M::op_stop);
  set(Opcode::Mark, &M::op_mark);
  set(Opcode::Pop, &M::op_pop);
  set(Opcode::PopMark, &M::op_pop_mark);
  set(Opcode::Dup, &M::op_dup);
  set(Opcode::Put, &M::op_put_line);
  set(Opcode::BinPut, &M::op_put<1>);
  set(Opcode::LongBinPut, &M::op_put<4>);
  set(Opcode::Memoize, &M::op_memoize);
  set(Opcode::Get, &M::op_get_line);
  set(Opcode::BinGet, &M::op_get<1>);
  set(Opcode::LongBinGet, &M::op_get<4>);
  for (const Opcode opcode : {Opcode::Ext1, Opcode::Ext2, Opcode::Ext4,
                              Opcode::NextBuffer, Opcode::ReadonlyBuffer}) {
    set(opcode, &M::op_unsupported);
  }
  add_value_handlers(handlers);
  add_object_handlers(handlers);
  return handlers;
}

}  // namespace zckpt
