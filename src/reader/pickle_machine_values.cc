// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <optional>
#include <utility>

#include "reader/pickle_machine.h"
#include "reader/pickle_text.h"

namespace zckpt {
namespace {

// What Python accepts by default (sys.set_int_max_str_digits).
constexpr size_t kMaxDecimalDigits = 4300;

int64_t sign_extend(uint64_t value, size_t bytes) {
  if (bytes == 0) return 0;
  const size_t unused = 64 - 8 * bytes;
  return static_cast<int64_t>(value << unused) >> unused;
}

// Without the leading bytes that only repeat the sign: one form per value.
std::string_view trim_sign(std::string_view bytes) {
  while (bytes.size() > 1) {
    const uint8_t next = static_cast<uint8_t>(bytes[bytes.size() - 2]);
    const uint8_t redundant = next >= 0x80 ? 0xff : 0x00;
    if (static_cast<uint8_t>(bytes.back()) != redundant) break;
    bytes.remove_suffix(1);
  }
  return bytes;
}

}  // namespace

// Atoms that are alike are one node, as they are one object in Python.
NodeId PickleMachine::singleton(NodeId& id, NodeKind kind, int64_t value) {
  if (id == UINT32_MAX) id = pickle_.add_integer(kind, value);
  return id;
}

void PickleMachine::op_none() { push(singleton(none_, NodeKind::None, 0)); }

void PickleMachine::op_int32() {
  push(pickle_.add_integer(NodeKind::Int, sign_extend(read_uint(4), 4)));
}

void PickleMachine::push_long(std::string_view bytes, bool owned) {
  const std::string_view trimmed = trim_sign(bytes);
  if (trimmed.size() > sizeof(int64_t)) {
    push(owned ? pickle_.add_text(NodeKind::Long, std::string(trimmed))
               : pickle_.add_text_view(NodeKind::Long, trimmed));
    return;
  }
  uint64_t value = 0;
  for (size_t i = trimmed.size(); i-- > 0;) {
    value = value << 8 | static_cast<uint8_t>(trimmed[i]);
  }
  push(pickle_.add_integer(NodeKind::Int, sign_extend(value, trimmed.size())));
}

void PickleMachine::op_int_line() {
  const std::string_view line = read_line();
  if (line == "00" || line == "01") {
    const size_t value = line == "01" ? 1 : 0;
    push(singleton(bools_[value], NodeKind::Bool, static_cast<int64_t>(value)));
    return;
  }
  position_ = op_offset_ + 1;
  op_long_line();
}

void PickleMachine::op_long_line() {
  std::string_view line = read_line();
  if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
  if (line.size() > kMaxDecimalDigits) {
    fail(ErrorCode::Limit, "pickle has a decimal integer of " +
                               std::to_string(line.size()) + " digits");
  }
  const std::optional<std::string> bytes = decimal_to_bytes(line);
  if (!bytes) corrupt("pickle has a malformed decimal integer");
  push_long(*bytes, true);
}

void PickleMachine::op_float_line() {
  const std::optional<double> value = parse_float(read_line());
  if (!value) corrupt("pickle has a malformed decimal float");
  push(pickle_.add_real(*value));
}

void PickleMachine::op_float() {
  // The only big-endian value of the format.
  uint64_t bits = 0;
  for (const char c : take(8)) bits = bits << 8 | static_cast<uint8_t>(c);
  push(pickle_.add_real(std::bit_cast<double>(bits)));
}

void PickleMachine::push_text(NodeKind kind, uint64_t size) {
  const std::string_view text = take(size);
  if (kind == NodeKind::Str && !is_pickle_utf8(text)) {
    corrupt("pickle has a string that is not UTF-8");
  }
  push(pickle_.add_text_view(kind, text));
}

// Python 2's str is text or bytes, only its use would tell; torch.load
// decodes it as UTF-8.
void PickleMachine::push_python2_text(std::string_view text, bool owned) {
  const NodeKind kind = is_pickle_utf8(text) ? NodeKind::Str : NodeKind::Bytes;
  push(owned ? pickle_.add_text(kind, std::string(text))
             : pickle_.add_text_view(kind, text));
}

void PickleMachine::op_string_line() {
  const std::optional<std::string> text = unquote_bytes(read_line());
  if (!text) corrupt("pickle has a malformed string literal");
  push_python2_text(*text, true);
}

void PickleMachine::op_unicode_line() {
  std::optional<std::string> text = decode_raw_unicode(read_line());
  if (!text) corrupt("pickle has a malformed unicode literal");
  push(pickle_.add_text(NodeKind::Str, std::move(*text)));
}

void PickleMachine::add_value_handlers(std::array<Handler, 256>& handlers) {
  using M = PickleMachine;
  const auto set = [&handlers](Opcode opcode, Handler handler) {
    handlers[static_cast<size_t>(opcode)] = handler;
  };
  set(Opcode::None, &M::op_none);
  set(Opcode::NewTrue, &M::op_bool<1>);
  set(Opcode::NewFalse, &M::op_bool<0>);
  set(Opcode::Int, &M::op_int_line);
  set(Opcode::BinInt, &M::op_int32);
  set(Opcode::BinInt1, &M::op_uint<1>);
  set(Opcode::BinInt2, &M::op_uint<2>);
  set(Opcode::Long, &M::op_long_line);
  set(Opcode::Long1, &M::op_long<1>);
  set(Opcode::Long4, &M::op_long<4>);
  set(Opcode::Float, &M::op_float_line);
  set(Opcode::BinFloat, &M::op_float);
  set(Opcode::String, &M::op_string_line);
  set(Opcode::BinString, &M::op_python2_text<4>);
  set(Opcode::ShortBinString, &M::op_python2_text<1>);
  set(Opcode::Unicode, &M::op_unicode_line);
  set(Opcode::ShortBinUnicode, &M::op_text<NodeKind::Str, 1>);
  set(Opcode::BinUnicode, &M::op_text<NodeKind::Str, 4>);
  set(Opcode::BinUnicode8, &M::op_text<NodeKind::Str, 8>);
  set(Opcode::ShortBinBytes, &M::op_text<NodeKind::Bytes, 1>);
  set(Opcode::BinBytes, &M::op_text<NodeKind::Bytes, 4>);
  set(Opcode::BinBytes8, &M::op_text<NodeKind::Bytes, 8>);
  set(Opcode::ByteArray8, &M::op_text<NodeKind::ByteArray, 8>);
}

}  // namespace zckpt
