// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/pickle_writer.h"

#include <algorithm>
#include <bit>
#include <span>
#include <string_view>
#include <vector>

#include "format/pickle_opcodes.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// Python's, so that an unpickler's stack stays small.
constexpr uint32_t kBatch = 1000;

// How often an object may be visited in all, per reference to one. 1 is what
// trees without cyclic tuples take.
constexpr uint64_t kVisitsPerReference = 4;
constexpr uint64_t kMinVisits = 10'000;

// GLOBAL ends names at a newline and is ASCII in protocol 2.
bool fits_line(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return c != '\n' && static_cast<uint8_t>(c) < 0x80;
  });
}

class PickleWriter {
 public:
  explicit PickleWriter(const Pickle& pickle)
      : pickle_(pickle),
        state_(pickle.node_count(), 0),
        memo_(pickle.node_count(), kNotInMemo) {}

  std::string write();

 private:
  // Bits of state_.
  static constexpr uint8_t kSeen = 1;    // counting references
  static constexpr uint8_t kShared = 2;  // needs a memo entry
  static constexpr uint8_t kOpen = 4;    // being written, does not exist yet
  static constexpr uint8_t kEffect = 8;  // a call that is dropped when done
  static constexpr uint32_t kNotInMemo = UINT32_MAX;

  // An object whose items or updates are being written.
  struct Frame {
    NodeId id = 0;
    uint32_t update = 0;  // 0: the items
    uint32_t position = 0;
  };

  // What is done with a frame's current items.
  struct Run {
    std::span<const NodeId> items;
    UpdateKind update = UpdateKind::Build;
    bool make = false;   // the items make the object rather than update it
    uint32_t batch = 0;  // 0: all items at once
  };

  void write_once();
  void count_references();
  std::span<const NodeId> own_items(NodeId id) const;
  bool is_line_global(NodeId id) const;

  bool visit(NodeId id);
  bool visit_atom(NodeId id);
  void prepare_inner_copy(NodeId id);
  void enter(NodeId id);
  void advance();
  Run current_run(const Frame& frame) const;
  void open_batch(const Frame& frame, const Run& run);
  void close_batch(const Frame& frame, const Run& run);
  void finish_run(Frame& frame, const Run& run);
  void make_opcode(NodeId id);
  void drop_parts(NodeId id);
  void memoise(NodeId id);

  void put_opcode(Opcode opcode) { out_.push_back(static_cast<char>(opcode)); }
  void put_uint(uint64_t value, int width);
  void put_integer(int64_t value);
  void put_long(std::string_view bytes);
  void put_float(double value);
  void put_sized(Opcode opcode, int width, std::string_view text);
  void put_text(NodeId id);

  const Pickle& pickle_;
  std::string out_;
  std::vector<uint8_t> state_;
  std::vector<uint32_t> memo_;
  uint32_t memo_count_ = 0;
  std::vector<Frame> frames_;
  uint64_t references_ = 0;
  uint64_t visits_ = 0;
  bool memoise_all_ = false;  // as Python does, not only what is shared
  bool restart_ = false;
};

std::string PickleWriter::write() {
  count_references();
  write_once();
  if (restart_) {
    // Trees with tuples in cycles are rare enough to find out on the way.
    memoise_all_ = true;
    restart_ = false;
    write_once();
  }
  return std::move(out_);
}

void PickleWriter::write_once() {
  out_.clear();
  out_.reserve(pickle_.bytes().size());
  frames_.clear();
  visits_ = 0;
  memo_count_ = 0;
  std::fill(memo_.begin(), memo_.end(), kNotInMemo);
  for (uint8_t& state : state_) state &= static_cast<uint8_t>(~kOpen);
  put_opcode(Opcode::Proto);
  put_uint(static_cast<uint64_t>(std::max(2, pickle_.protocol())), 1);
  visit(pickle_.root());
  while (!frames_.empty() && !restart_) advance();
  put_opcode(Opcode::Stop);
}

// The items that are written as objects.
std::span<const NodeId> PickleWriter::own_items(NodeId id) const {
  if (is_line_global(id)) return {};
  return pickle_.items(id);
}

bool PickleWriter::is_line_global(NodeId id) const {
  if (pickle_.node(id).kind != NodeKind::Global) return false;
  const std::span<const NodeId> names = pickle_.items(id);
  return fits_line(pickle_.text(names[0])) && fits_line(pickle_.text(names[1]));
}

void PickleWriter::count_references() {
  std::vector<NodeId> pending = {pickle_.root()};
  const auto refer = [&](std::span<const NodeId> items) {
    references_ += items.size();
    for (const NodeId id : items) {
      if ((state_[id] & kSeen) != 0) {
        state_[id] |= kShared;
      } else {
        state_[id] |= kSeen;
        pending.push_back(id);
      }
    }
  };
  state_[pickle_.root()] |= kSeen;
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    refer(own_items(id));
    uint32_t update = pickle_.node(id).first_update;
    for (; update != 0; update = pickle_.update(update).next) {
      const auto items = pickle_.items(pickle_.update(update).items);
      refer(items);
      if (pickle_.update(update).kind == UpdateKind::Effect) {
        state_[items[0]] |= kEffect;
      }
    }
  }
}

// True where the object needs a frame, which is on top then.
bool PickleWriter::visit(NodeId id) {
  if (++visits_ > kMinVisits && visits_ / kVisitsPerReference > references_) {
    throw Error(ErrorCode::Unsupported,
                "pickle has tuples in cycles that cannot be written in "
                "proportion to their size");
  }
  if (memo_[id] != kNotInMemo) {
    const bool small = memo_[id] < 256;
    put_opcode(small ? Opcode::BinGet : Opcode::LongBinGet);
    put_uint(memo_[id], small ? 1 : 4);
    return false;
  }
  if (visit_atom(id)) return false;
  if ((state_[id] & kOpen) != 0) prepare_inner_copy(id);
  enter(id);
  return true;
}

// `id` is about to be written inside of itself. That ends at what is in the
// memo already. The innermost object on the way has to end it; but a list,
// dict or set further out that nothing else refers to is better written again,
// complete: a call may be about to read it (frozenset([node]) does).
void PickleWriter::prepare_inner_copy(NodeId id) {
  restart_ = !memoise_all_;
  bool ended = false;
  for (size_t i = frames_.size(); i-- > 0 && frames_[i].id != id;) {
    const NodeId outer = frames_[i].id;
    if (memo_[outer] == kNotInMemo) continue;
    const NodeKind kind = pickle_.node(outer).kind;
    const bool container = kind == NodeKind::List || kind == NodeKind::Dict ||
                           kind == NodeKind::Set;
    if (ended && container && (state_[outer] & kShared) == 0) {
      memo_[outer] = kNotInMemo;
    }
    ended = true;
  }
}

bool PickleWriter::visit_atom(NodeId id) {
  const Node& node = pickle_.node(id);
  switch (node.kind) {
    // Not larger than a reference to them.
    case NodeKind::None: put_opcode(Opcode::None); return true;
    case NodeKind::Bool:
      put_opcode(node.integer != 0 ? Opcode::NewTrue : Opcode::NewFalse);
      return true;
    case NodeKind::Int: put_integer(node.integer); return true;
    case NodeKind::Tuple:
      if (node.items.size != 0) return false;
      put_opcode(Opcode::EmptyTuple);
      return true;
    case NodeKind::Float: put_float(node.real); break;
    case NodeKind::Long: put_long(pickle_.text(id)); break;
    case NodeKind::Str:
    case NodeKind::Bytes:
    case NodeKind::ByteArray: put_text(id); break;
    default: return false;
  }
  memoise(id);
  return true;
}

void PickleWriter::enter(NodeId id) {
  switch (pickle_.node(id).kind) {
    // These exist before their items do, so that items can refer to them.
    case NodeKind::List:
      put_opcode(Opcode::EmptyList);
      memoise(id);
      break;
    case NodeKind::Dict:
      put_opcode(Opcode::EmptyDict);
      memoise(id);
      break;
    case NodeKind::Set:
      put_opcode(Opcode::EmptySet);
      memoise(id);
      break;
    case NodeKind::Tuple:
      if (pickle_.node(id).items.size > 3) put_opcode(Opcode::Mark);
      state_[id] |= kOpen;
      break;
    case NodeKind::FrozenSet:
      put_opcode(Opcode::Mark);
      state_[id] |= kOpen;
      break;
    default: state_[id] |= kOpen; break;
  }
  frames_.push_back({.id = id});
}

PickleWriter::Run PickleWriter::current_run(const Frame& frame) const {
  if (frame.update != 0) {
    const Update& update = pickle_.update(frame.update);
    return {pickle_.items(update.items), update.kind, false,
            update.kind == UpdateKind::SetItems ? 2 * kBatch : kBatch};
  }
  const std::span<const NodeId> items = own_items(frame.id);
  switch (pickle_.node(frame.id).kind) {
    case NodeKind::List: return {items, UpdateKind::Append, false, kBatch};
    case NodeKind::Dict:
      return {items, UpdateKind::SetItems, false, 2 * kBatch};
    case NodeKind::Set: return {items, UpdateKind::AddItems, false, kBatch};
    default: return {items, UpdateKind::Build, true, 0};
  }
}

// Writes items of the top frame until one needs a frame of its own, or the
// run of items ends.
void PickleWriter::advance() {
  const size_t top = frames_.size() - 1;
  const Run run = current_run(frames_[top]);
  for (;;) {
    Frame& frame = frames_[top];
    const bool at_end = frame.position == run.items.size();
    const bool at_batch = run.batch != 0 && frame.position % run.batch == 0;
    if (frame.position != 0 && (at_end || at_batch)) close_batch(frame, run);
    if (at_end) {
      finish_run(frame, run);
      return;
    }
    if (at_batch) open_batch(frame, run);
    if (visit(run.items[frame.position++])) return;
  }
}

void PickleWriter::open_batch(const Frame& frame, const Run& run) {
  const size_t left = run.items.size() - frame.position;
  const bool single = (run.update == UpdateKind::Append && left == 1) ||
                      (run.update == UpdateKind::SetItems && left == 2) ||
                      run.update == UpdateKind::Build ||
                      run.update == UpdateKind::Effect;
  if (!single) put_opcode(Opcode::Mark);
}

void PickleWriter::close_batch(const Frame& frame, const Run& run) {
  if (run.make) return;
  const uint32_t written = (frame.position - 1) % run.batch + 1;
  switch (run.update) {
    case UpdateKind::Append:
      put_opcode(written == 1 ? Opcode::Append : Opcode::Appends);
      break;
    case UpdateKind::SetItems:
      put_opcode(written == 2 ? Opcode::SetItem : Opcode::SetItems);
      break;
    case UpdateKind::AddItems: put_opcode(Opcode::AddItems); break;
    case UpdateKind::Build: put_opcode(Opcode::Build); break;
    case UpdateKind::Effect: put_opcode(Opcode::Pop); break;
  }
}

void PickleWriter::finish_run(Frame& frame, const Run& run) {
  const Node& node = pickle_.node(frame.id);
  if (run.make) {
    state_[frame.id] &= static_cast<uint8_t>(~kOpen);
    if (memo_[frame.id] != kNotInMemo) {
      // The copy inside has everything, updates too.
      drop_parts(frame.id);
      frames_.pop_back();
      return;
    }
    make_opcode(frame.id);
    memoise(frame.id);
  }
  frame.update =
      frame.update == 0 ? node.first_update : pickle_.update(frame.update).next;
  frame.position = 0;
  if (frame.update == 0) frames_.pop_back();
}

// Makes the object of the parts on the stack.
void PickleWriter::make_opcode(NodeId id) {
  const Node& node = pickle_.node(id);
  switch (node.kind) {
    case NodeKind::Tuple:
      put_opcode(node.items.size == 1   ? Opcode::Tuple1
                 : node.items.size == 2 ? Opcode::Tuple2
                 : node.items.size == 3 ? Opcode::Tuple3
                                        : Opcode::Tuple);
      break;
    case NodeKind::FrozenSet: put_opcode(Opcode::FrozenSet); break;
    case NodeKind::Persistent: put_opcode(Opcode::BinPersId); break;
    case NodeKind::Call:
      put_opcode(node.call == CallKind::Reduce   ? Opcode::Reduce
                 : node.call == CallKind::NewObj ? Opcode::NewObj
                                                 : Opcode::NewObjEx);
      break;
    case NodeKind::Global:
      if (!is_line_global(id)) {
        put_opcode(Opcode::StackGlobal);
        break;
      }
      put_opcode(Opcode::Global);
      for (const NodeId name : pickle_.items(id)) {
        out_ += pickle_.text(name);
        out_ += '\n';
      }
      break;
    default: break;  // atoms, and containers that exist already
  }
}

// Drops the parts on the stack and takes the object from the memo.
void PickleWriter::drop_parts(NodeId id) {
  const Node& node = pickle_.node(id);
  if (node.kind == NodeKind::FrozenSet ||
      (node.kind == NodeKind::Tuple && node.items.size > 3)) {
    put_opcode(Opcode::PopMark);
  } else {
    for (uint32_t i = 0; i < node.items.size; ++i) put_opcode(Opcode::Pop);
  }
  visit(id);
}

void PickleWriter::memoise(NodeId id) {
  if ((state_[id] & kShared) == 0 && !memoise_all_) return;
  // The reader knows an effect by the POP right behind the call.
  if ((state_[id] & kEffect) != 0) return;
  memo_[id] = memo_count_++;
  const bool small = memo_[id] < 256;
  put_opcode(small ? Opcode::BinPut : Opcode::LongBinPut);
  put_uint(memo_[id], small ? 1 : 4);
}

void PickleWriter::put_uint(uint64_t value, int width) {
  for (int i = 0; i < width; ++i) {
    out_.push_back(static_cast<char>(static_cast<uint8_t>(value)));
    value >>= 8;
  }
}

void PickleWriter::put_integer(int64_t value) {
  if (value >= 0 && value <= UINT8_MAX) {
    put_opcode(Opcode::BinInt1);
    put_uint(static_cast<uint64_t>(value), 1);
  } else if (value >= 0 && value <= UINT16_MAX) {
    put_opcode(Opcode::BinInt2);
    put_uint(static_cast<uint64_t>(value), 2);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    put_opcode(Opcode::BinInt);
    put_uint(static_cast<uint64_t>(value), 4);
  } else {
    int width = 8;
    while (value >> (8 * width - 9) == 0 || value >> (8 * width - 9) == -1) {
      --width;
    }
    put_opcode(Opcode::Long1);
    put_uint(static_cast<uint64_t>(width), 1);
    put_uint(static_cast<uint64_t>(value), width);
  }
}

void PickleWriter::put_long(std::string_view bytes) {
  if (bytes.size() <= UINT8_MAX) {
    put_sized(Opcode::Long1, 1, bytes);
  } else {
    put_sized(Opcode::Long4, 4, bytes);
  }
}

void PickleWriter::put_float(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  put_opcode(Opcode::BinFloat);
  for (int shift = 56; shift >= 0; shift -= 8) put_uint(bits >> shift, 1);
}

void PickleWriter::put_sized(Opcode opcode, int width, std::string_view text) {
  put_opcode(opcode);
  put_uint(text.size(), width);
  out_ += text;
}

void PickleWriter::put_text(NodeId id) {
  const std::string_view text = pickle_.text(id);
  switch (pickle_.node(id).kind) {
    case NodeKind::ByteArray: put_sized(Opcode::ByteArray8, 8, text); break;
    case NodeKind::Bytes:
      if (text.size() <= UINT8_MAX) {
        put_sized(Opcode::ShortBinBytes, 1, text);
      } else if (text.size() <= UINT32_MAX) {
        put_sized(Opcode::BinBytes, 4, text);
      } else {
        put_sized(Opcode::BinBytes8, 8, text);
      }
      break;
    default:
      if (text.size() <= UINT32_MAX) {
        put_sized(Opcode::BinUnicode, 4, text);
      } else {
        put_sized(Opcode::BinUnicode8, 8, text);
      }
      break;
  }
}

}  // namespace

std::string write_pickle(const Pickle& pickle) {
  return PickleWriter(pickle).write();
}

}  // namespace zckpt
