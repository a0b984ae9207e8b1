// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/legacy_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/text.h"
#include "reader/torch_tensor.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 30;
constexpr size_t kWindowBytes = 64 << 10;
constexpr int64_t kProtocolVersion = 1001;
// 0x1950a86a20f9469cfc6c as the argument of LONG1.
constexpr std::string_view kMagic =
    "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr size_t kFrameBytes = 9;

[[noreturn]] void fail(const ByteSource& source, ErrorCode code,
                       uint64_t offset, const std::string& message) {
  throw Error(code, message, {.file = source.name(), .offset = offset});
}

// What follows an opcode, as far as finding the next one goes.
enum class Argument : uint8_t {
  Unknown,  // no opcode of protocols 0 to 5
  None,
  Bytes1,
  Bytes2,
  Bytes4,
  Bytes8,
  Line,
  Lines2,
  Length1,  // a length of 1, 4 or 8 bytes and what it counts
  Length4,
  Length8,
};

constexpr std::array<Argument, 256> make_arguments() {
  std::array<Argument, 256> table{};
  const auto set = [&](Argument argument, std::string_view opcodes) {
    for (const char c : opcodes) table[static_cast<uint8_t>(c)] = argument;
  };
  set(Argument::None,
      "(.012NQRabd}el]ostu)\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94"
      "\x97\x98");
  set(Argument::Bytes1, "Khq\x80\x82");
  set(Argument::Bytes2, "M\x83");
  set(Argument::Bytes4, "Jjr\x84");
  set(Argument::Bytes8, "G\x95");
  set(Argument::Line, "FILPSVgp");
  set(Argument::Lines2, "ci");
  set(Argument::Length1, "CU\x8a\x8c");
  set(Argument::Length4, "BTX\x8b");
  set(Argument::Length8, "\x8d\x8e\x96");
  return table;
}

constexpr std::array<Argument, 256> kArguments = make_arguments();

// PickleScanner walks over the opcodes of pickles that follow each other in a
// file, to find where each ends: nothing else says it.
class PickleScanner {
 public:
  explicit PickleScanner(const ByteSource& source) : source_(source) {}

  // The offset after the STOP of the pickle that begins at `begin`.
  uint64_t end_of(uint64_t begin) {
    limit_ = std::min(source_.size() - begin, kMaxPickleBytes) + begin;
    for (at_ = begin;;) {
      const uint64_t place = at_;
      const uint8_t opcode = next();
      if (opcode == '.') return at_;
      skip(kArguments[opcode], place);
    }
  }

 private:
  void skip(Argument argument, uint64_t place) {
    switch (argument) {
      case Argument::None: return;
      case Argument::Bytes1: return advance(1);
      case Argument::Bytes2: return advance(2);
      case Argument::Bytes4: return advance(4);
      case Argument::Bytes8: return advance(8);
      case Argument::Line: return skip_line();
      case Argument::Lines2: skip_line(); return skip_line();
      case Argument::Length1: return advance(number(1));
      case Argument::Length4: return advance(number(4));
      case Argument::Length8: return advance(number(8));
      case Argument::Unknown: break;
    }
    fail(source_, ErrorCode::Corrupt, place, "expected a pickle opcode");
  }

  void advance(uint64_t count) {
    if (count > limit_ - at_) cut_off();
    at_ += count;
  }

  void skip_line() {
    while (next() != '\n') {
    }
  }

  uint64_t number(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= uint64_t{next()} << (8 * i);
    return value;
  }

  uint8_t next() {
    if (at_ >= limit_) cut_off();
    if (at_ < window_begin_ || at_ - window_begin_ >= window_size_) {
      window_begin_ = at_;
      window_size_ =
          static_cast<size_t>(std::min<uint64_t>(window_.size(), limit_ - at_));
      source_.read_at(at_, std::span(window_).first(window_size_));
    }
    return static_cast<uint8_t>(
        window_[static_cast<size_t>(at_++ - window_begin_)]);
  }

  [[noreturn]] void cut_off() const {
    if (limit_ < source_.size()) {
      fail(source_, ErrorCode::Limit, at_,
           "a pickle of more than " + format_bytes(kMaxPickleBytes));
    }
    fail(source_, ErrorCode::Corrupt, source_.size(),
         "the file ends inside a pickle: it is truncated (its size is " +
             std::to_string(source_.size()) + " bytes)");
  }

  const ByteSource& source_;
  uint64_t at_ = 0;
  uint64_t limit_ = 0;
  uint64_t window_begin_ = 0;
  size_t window_size_ = 0;
  std::array<std::byte, kWindowBytes> window_;
};

// Reads the five pickles in turn.
class Cursor {
 public:
  explicit Cursor(const ByteSource& source)
      : source_(source), scanner_(source) {}

  uint64_t offset() const { return offset_; }

  std::shared_ptr<const Pickle> next() {
    const uint64_t end = scanner_.end_of(offset_);
    std::string bytes(static_cast<size_t>(end - offset_), '\0');
    source_.read_at(offset_, std::as_writable_bytes(std::span(bytes)));
    std::shared_ptr<const Pickle> pickle =
        read_pickle_at(source_, offset_, std::move(bytes));
    offset_ = end;
    return pickle;
  }

 private:
  const ByteSource& source_;
  PickleScanner scanner_;
  uint64_t offset_ = 0;
};

// Magic number, protocol version and the machine that wrote the file.
void read_preamble(const ByteSource& source, Cursor& cursor) {
  cursor.next();  // the magic number, by which the file was recognised
  uint64_t place = cursor.offset();
  const std::shared_ptr<const Pickle> version = cursor.next();
  if (version->root_value().integer() != kProtocolVersion) {
    fail(source, ErrorCode::Unsupported, place,
         "expected protocol version 1001 of torch.save");
  }
  place = cursor.offset();
  const std::shared_ptr<const Pickle> system = cursor.next();
  const std::optional<Value> little =
      system->root_value().find("little_endian");
  if (!little || !little->boolean()) {
    fail(source, ErrorCode::Corrupt, place,
         "expected the byte order of the machine that wrote the file");
  }
  if (!*little->boolean()) {
    fail(source, ErrorCode::Unsupported, place,
         "written on a big-endian machine");
  }
}

// Every storage that the object refers to, by key.
std::map<std::string_view, StorageReference> find_references(
    const ByteSource& source, const Pickle& object, uint64_t object_offset) {
  std::map<std::string_view, StorageReference> references;
  for (NodeId id = 0; id < object.node_count(); ++id) {
    if (object.node(id).kind != NodeKind::Persistent) continue;
    std::optional<StorageReference> storage;
    try {
      storage = as_storage(Value(object, id));
    } catch (const Error& e) {
      fail(source, e.code(), object_offset, e.message());
    }
    if (!storage) continue;
    if (storage->is_view) {
      fail(source, ErrorCode::Unsupported, object_offset,
           "storage " + escape(storage->key) +
               " is a view of another one, as torch before 0.4 wrote them");
    }
    const auto [it, added] = references.emplace(storage->key, *storage);
    if (!added && (it->second.numel != storage->numel ||
                   it->second.storage_class->element_bytes !=
                       storage->storage_class->element_bytes)) {
      fail(source, ErrorCode::Corrupt, object_offset,
           "storage " + escape(storage->key) + " has two sizes");
    }
  }
  return references;
}

StorageRecord read_record(const ByteSource& source, uint64_t offset,
                          const StorageReference& reference) {
  const std::string label = "storage " + escape(reference.key);
  int64_t count = 0;
  const uint64_t left = source.size() - offset;
  if (left < sizeof(count)) {
    fail(source, ErrorCode::Corrupt, source.size(),
         "the file ends before " + label + ": it is truncated (its size is " +
             std::to_string(source.size()) + " bytes)");
  }
  source.read_at(offset, std::as_writable_bytes(std::span(&count, 1)));
  if (count < 0 || static_cast<uint64_t>(count) != reference.numel) {
    fail(source, ErrorCode::Corrupt, offset,
         "expected the " + std::to_string(reference.numel) + " elements of " +
             label + ", found " + std::to_string(count));
  }
  StorageRecord record;
  record.key = reference.key;
  const uint64_t room = left - sizeof(count);
  const uint64_t element = reference.storage_class->element_bytes;
  if (reference.numel > room / element) {
    fail(source, ErrorCode::Corrupt, source.size(),
         "the file ends inside " + label + " of " +
             std::to_string(reference.numel) + " elements at " +
             std::to_string(offset) + ": it is truncated (its size is " +
             std::to_string(source.size()) + " bytes)");
  }
  record.size_bytes = reference.numel * element;
  record.offset = offset + sizeof(count);
  return record;
}

}  // namespace

bool is_legacy_file(const ByteSource& source) {
  // PROTO, for protocols 4 and 5 a FRAME, then the magic number.
  std::array<char, 2 + kFrameBytes + kMagic.size()> head{};
  const size_t size =
      static_cast<size_t>(std::min<uint64_t>(head.size(), source.size()));
  source.read_at(0, std::as_writable_bytes(std::span(head).first(size)));
  std::string_view rest(head.data(), size);
  if (!rest.starts_with('\x80')) return false;
  rest.remove_prefix(std::min<size_t>(rest.size(), 2));
  if (rest.starts_with('\x95')) {
    rest.remove_prefix(std::min(rest.size(), kFrameBytes));
  }
  return rest.starts_with(kMagic);
}

TorchFile open_legacy_file(const ByteSource& source) {
  TorchFile file;
  file.legacy_ = true;
  file.file_bytes_ = source.size();
  Cursor cursor(source);
  read_preamble(source, cursor);
  const uint64_t object_offset = cursor.offset();
  file.pickle_ = cursor.next();
  const auto references = find_references(source, *file.pickle_, object_offset);

  const uint64_t keys_offset = cursor.offset();
  const std::shared_ptr<const Pickle> keys = cursor.next();
  const Value list = keys->root_value();
  if (list.kind() != NodeKind::List) {
    fail(source, ErrorCode::Corrupt, keys_offset,
         "expected the list of storage keys");
  }
  uint64_t at = cursor.offset();
  file.pickle_bytes_ = at;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto it = references.find(list.item(i).string().value_or(""));
    if (it == references.end()) {
      fail(
          source, ErrorCode::Corrupt, keys_offset,
          "storage " + std::to_string(i) +
              " of the list of keys belongs to no tensor: its size is unknown");
    }
    file.storages_.push_back(read_record(source, at, it->second));
    at = file.storages_.back().offset + file.storages_.back().size_bytes;
  }
  if (at != source.size()) {
    fail(source, ErrorCode::Corrupt, at,
         std::to_string(source.size() - at) + " bytes after the last storage");
  }
  file.index_keys(source);
  return file;
}

}  // namespace zckpt
