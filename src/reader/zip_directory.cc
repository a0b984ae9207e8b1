// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/zip_directory.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "base/crc32.h"
#include "base/text.h"
#include "format/zip.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// About 12 million entries: far above any checkpoint, far below what hurts.
constexpr uint64_t kMaxDirectoryBytes = uint64_t{1} << 30;
// What one read may cover to serve several local headers.
constexpr uint64_t kWindowBytes = 64 << 10;
// Enough for the end records of an archive without a comment.
constexpr uint64_t kShortTail = 128;
constexpr uint16_t kEncrypted =
    zip::kFlagEncrypted | zip::kFlagPatch | zip::kFlagMasked;

[[noreturn]] void fail(const ByteSource& source, ErrorCode code,
                       uint64_t offset, const std::string& message) {
  throw Error(code, message, {.file = source.name(), .offset = offset});
}

// What the end records say of the directory.
struct End {
  uint64_t offset = 0;  // of the first end record: the directory ends there
  uint64_t directory_offset = 0;
  uint64_t directory_size = 0;
  uint64_t count = 0;
};

// The last `size` bytes of the source.
struct Tail {
  uint64_t offset = 0;
  std::vector<std::byte> bytes;
};

Tail read_tail(const ByteSource& source, uint64_t size) {
  Tail tail;
  size = std::min(size, source.size());
  tail.offset = source.size() - size;
  tail.bytes.resize(static_cast<size_t>(size));
  source.read_at(tail.offset, tail.bytes);
  return tail;
}

// Position in `tail` of the last end record whose comment ends the file.
std::optional<size_t> find_end(std::span<const std::byte> tail) {
  if (tail.size() < zip::kEndSize) return std::nullopt;
  for (size_t at = tail.size() - zip::kEndSize + 1; at-- > 0;) {
    if (zip::load<uint32_t>(tail, at) != zip::kEnd) continue;
    const size_t comment = tail.size() - at - zip::kEndSize;
    if (zip::load<uint16_t>(tail, at + 20) == comment) return at;
  }
  return std::nullopt;
}

// Fills `tail` with the file's end and returns where in it the end record is.
std::optional<size_t> find_end(const ByteSource& source, Tail& tail) {
  tail = read_tail(source, kShortTail);
  std::optional<size_t> at = find_end(tail.bytes);
  if (at || tail.offset == 0) return at;
  tail = read_tail(source,
                   zip::kMaxComment + zip::kEndSize + zip::kZip64LocatorSize);
  return find_end(tail.bytes);
}

bool agrees(uint64_t narrow, uint64_t sentinel, uint64_t wide) {
  return narrow == sentinel || narrow == wide;
}

// Replaces what `end` says by the zip64 record that the locator names.
void read_zip64(const ByteSource& source, uint64_t locator_offset,
                std::span<const std::byte> locator, End& end) {
  if (zip::load<uint32_t>(locator, 4) != 0 ||
      zip::load<uint32_t>(locator, 16) != 1) {
    fail(source, ErrorCode::Unsupported, locator_offset,
         "zip archive split over several files");
  }
  const uint64_t offset = zip::load<uint64_t>(locator, 8);
  if (offset > locator_offset || locator_offset - offset < zip::kZip64EndSize) {
    fail(source, ErrorCode::Corrupt, locator_offset,
         "zip64 locator points to " + std::to_string(offset) +
             ", where no end record fits");
  }
  std::vector<std::byte> record(zip::kZip64EndSize);
  source.read_at(offset, record);
  if (zip::load<uint32_t>(record, 0) != zip::kZip64End) {
    fail(source, ErrorCode::Corrupt, offset, "expected a zip64 end record");
  }
  if (zip::load<uint64_t>(record, 4) !=
      locator_offset - offset - zip::kZip64EndLead) {
    fail(source, ErrorCode::Corrupt, offset,
         "zip64 end record does not reach up to its locator");
  }
  if (zip::load<uint32_t>(record, 16) != 0 ||
      zip::load<uint32_t>(record, 20) != 0) {
    fail(source, ErrorCode::Unsupported, offset,
         "zip archive split over several files");
  }
  const End wide{.offset = offset,
                 .directory_offset = zip::load<uint64_t>(record, 48),
                 .directory_size = zip::load<uint64_t>(record, 40),
                 .count = zip::load<uint64_t>(record, 32)};
  if (zip::load<uint64_t>(record, 24) != wide.count) {
    fail(source, ErrorCode::Corrupt, offset,
         "zip64 end record counts entries twice, with different results");
  }
  if (!agrees(end.count, zip::kSee64In16, wide.count) ||
      !agrees(end.directory_size, zip::kSee64In32, wide.directory_size) ||
      !agrees(end.directory_offset, zip::kSee64In32, wide.directory_offset)) {
    fail(source, ErrorCode::Corrupt, offset,
         "the two end records contradict each other");
  }
  end = wide;
}

End read_end(const ByteSource& source) {
  Tail tail;
  const std::optional<size_t> at = find_end(source, tail);
  if (!at) {
    fail(source, ErrorCode::Corrupt, source.size(),
         "the zip archive has no end record: the file is truncated (its size "
         "is " +
             std::to_string(source.size()) + " bytes)");
  }
  const auto record = std::span(tail.bytes).subspan(*at, zip::kEndSize);
  End end{.offset = tail.offset + *at,
          .directory_offset = zip::load<uint32_t>(record, 16),
          .directory_size = zip::load<uint32_t>(record, 12),
          .count = zip::load<uint16_t>(record, 10)};
  if (zip::load<uint16_t>(record, 4) != 0 ||
      zip::load<uint16_t>(record, 6) != 0) {
    fail(source, ErrorCode::Unsupported, end.offset,
         "zip archive split over several files");
  }
  if (zip::load<uint16_t>(record, 8) != end.count) {
    fail(source, ErrorCode::Corrupt, end.offset,
         "end record counts entries twice, with different results");
  }
  if (end.offset >= zip::kZip64LocatorSize) {
    std::vector<std::byte> locator(zip::kZip64LocatorSize);
    const uint64_t offset = end.offset - zip::kZip64LocatorSize;
    if (offset >= tail.offset) {
      std::copy_n(
          tail.bytes.begin() + static_cast<ptrdiff_t>(offset - tail.offset),
          locator.size(), locator.begin());
    } else {
      source.read_at(offset, locator);
    }
    if (zip::load<uint32_t>(locator, 0) == zip::kZip64Locator) {
      read_zip64(source, offset, locator, end);
    }
  }
  return end;
}

// The gate before anything is allocated.
void check_end(const ByteSource& source, const End& end) {
  // Equality, not order: a reader that trusts the position and one that
  // trusts the offset must see the same directory.
  if (end.directory_offset > end.offset ||
      end.directory_size != end.offset - end.directory_offset) {
    fail(source, ErrorCode::Corrupt, end.offset,
         "the zip directory (" + std::to_string(end.directory_size) +
             " bytes at " + std::to_string(end.directory_offset) +
             ") does not end where the end record begins");
  }
  if (end.directory_size > kMaxDirectoryBytes) {
    fail(source, ErrorCode::Limit, end.directory_offset,
         "zip directory of " + format_bytes(end.directory_size) +
             " exceeds the limit of " + format_bytes(kMaxDirectoryBytes));
  }
  if (end.count > end.directory_size / zip::kCentralEntrySize) {
    fail(source, ErrorCode::Corrupt, end.offset,
         std::to_string(end.count) +
             " entries do not fit into a directory of " +
             std::to_string(end.directory_size) + " bytes");
  }
}

// Takes from a zip64 extra field the values that the entry itself could not
// hold. False where the field is malformed or absent though needed.
bool read_extra(std::span<const std::byte> extra, uint64_t& size,
                uint64_t& stored_size, uint64_t& offset) {
  bool pending = size == zip::kSee64In32 || stored_size == zip::kSee64In32 ||
                 offset == zip::kSee64In32;
  while (extra.size() >= 4) {
    const uint16_t tag = zip::load<uint16_t>(extra, 0);
    const uint16_t length = zip::load<uint16_t>(extra, 2);
    extra = extra.subspan(4);
    if (length > extra.size()) return false;
    if (tag == zip::kZip64Extra && pending) {
      pending = false;
      std::span<const std::byte> field = extra.first(length);
      for (uint64_t* value : {&size, &stored_size, &offset}) {
        if (*value != zip::kSee64In32) continue;
        if (field.size() < 8) return false;
        *value = zip::load<uint64_t>(field, 0);
        field = field.subspan(8);
      }
    }
    extra = extra.subspan(length);
  }
  return extra.empty() && !pending;
}

// One entry of the directory at `place`, from its three parts.
ZipEntry decode_entry(const ByteSource& source, uint64_t place,
                      std::span<const std::byte> fixed,
                      std::span<const std::byte> name,
                      std::span<const std::byte> extra) {
  ZipEntry entry;
  entry.name = {reinterpret_cast<const char*>(name.data()), name.size()};
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    fail(source, code, place, "zip entry " + escape(entry.name) + what);
  };
  const uint16_t flags = zip::load<uint16_t>(fixed, 8);
  entry.has_descriptor = (flags & zip::kFlagDescriptor) != 0;
  if ((flags & kEncrypted) != 0) {
    refuse(ErrorCode::Unsupported, " is encrypted");
  }
  if (zip::load<uint16_t>(fixed, 10) != zip::kStored) {
    refuse(ErrorCode::Unsupported,
           " is compressed, which torch.save never does");
  }
  if (zip::load<uint16_t>(fixed, 34) != 0) {
    refuse(ErrorCode::Unsupported, " lies in another file of a split archive");
  }
  entry.crc = zip::load<uint32_t>(fixed, 16);
  uint64_t stored_size = zip::load<uint32_t>(fixed, 20);
  entry.size = zip::load<uint32_t>(fixed, 24);
  entry.header_offset = zip::load<uint32_t>(fixed, 42);
  if (!read_extra(extra, entry.size, stored_size, entry.header_offset)) {
    refuse(ErrorCode::Corrupt, " has a malformed extra field");
  }
  if (stored_size != entry.size) {
    refuse(ErrorCode::Corrupt, " is stored, yet its two sizes differ: " +
                                   std::to_string(stored_size) + " and " +
                                   std::to_string(entry.size));
  }
  return entry;
}

// Shorter names first: the keys of storages, ascending numbers, then are in
// order already.
bool name_less(std::string_view a, std::string_view b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace

ZipDirectory::ZipDirectory(const ByteSource& source) : source_(&source) {
  const End end = read_end(source);
  check_end(source, end);
  directory_offset_ = end.directory_offset;
  directory_.resize(static_cast<size_t>(end.directory_size));
  source.read_at(directory_offset_, directory_);
  read_entries(directory_, end.count);
  if (!std::is_sorted(entries_.begin(), entries_.end(),
                      [](const ZipEntry& a, const ZipEntry& b) {
                        return a.header_offset < b.header_offset;
                      })) {
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const ZipEntry& a, const ZipEntry& b) {
                       return a.header_offset < b.header_offset;
                     });
  }
  check_ranges();
  index_names();
}

void ZipDirectory::read_entries(std::span<const std::byte> directory,
                                uint64_t count) {
  entries_.reserve(static_cast<size_t>(count));
  size_t at = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t place = directory_offset_ + at;
    if (directory.size() - at < zip::kCentralEntrySize ||
        zip::load<uint32_t>(directory, at) != zip::kCentralEntry) {
      fail(*source_, ErrorCode::Corrupt, place,
           "expected entry " + std::to_string(i) + " of " +
               std::to_string(count) + " of the zip directory");
    }
    const auto fixed = directory.subspan(at, zip::kCentralEntrySize);
    const size_t name_size = zip::load<uint16_t>(fixed, 28);
    const size_t extra_size = zip::load<uint16_t>(fixed, 30);
    const size_t comment_size = zip::load<uint16_t>(fixed, 32);
    at += zip::kCentralEntrySize;
    if (directory.size() - at < name_size + extra_size + comment_size) {
      fail(*source_, ErrorCode::Corrupt, place,
           "zip entry reaches past the end of the directory");
    }
    const auto name = directory.subspan(at, name_size);
    const auto extra = directory.subspan(at + name_size, extra_size);
    at += name_size + extra_size + comment_size;
    entries_.push_back(decode_entry(*source_, place, fixed, name, extra));
  }
  if (at != directory.size()) {
    fail(*source_, ErrorCode::Corrupt, directory_offset_ + at,
         "bytes between the last zip entry and the end record");
  }
}

uint64_t ZipDirectory::end_of(size_t index) const {
  return index + 1 < entries_.size() ? entries_[index + 1].header_offset
                                     : directory_offset_;
}

// Every entry must fit between its own header and the next one: no byte
// belongs to two entries. The extra field of the local header, of unknown
// length here, is accounted for by payload_offset().
void ZipDirectory::check_ranges() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const ZipEntry& entry = entries_[i];
    const uint64_t end = end_of(i);
    const uint64_t head = zip::kLocalHeaderSize + entry.name.size();
    if (entry.header_offset > end || end - entry.header_offset < head ||
        end - entry.header_offset - head < entry.size) {
      fail(*source_, ErrorCode::Corrupt, entry.header_offset,
           "zip entry " + escape(entry.name) + " of " +
               std::to_string(entry.size) +
               " bytes reaches into what follows at " + std::to_string(end));
    }
  }
}

void ZipDirectory::index_names() {
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), uint32_t{0});
  std::sort(by_name_.begin(), by_name_.end(), [&](uint32_t a, uint32_t b) {
    const std::string_view x = entries_[a].name;
    const std::string_view y = entries_[b].name;
    return x != y ? name_less(x, y) : a < b;
  });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const ZipEntry& entry = entries_[by_name_[i]];
    if (entry.name == entries_[by_name_[i - 1]].name) {
      fail(*source_, ErrorCode::Corrupt, entry.header_offset,
           "zip entry " + escape(entry.name) + " occurs twice");
    }
  }
}

const ZipEntry* ZipDirectory::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view wanted) {
                                     return name_less(entries_[i].name, wanted);
                                   });
  if (it == by_name_.end() || entries_[*it].name != name) return nullptr;
  return &entries_[*it];
}

// A wrong length in the local header shifts the payload, and nothing but the
// CRC, if there is one, would tell. So the payload must end exactly where it
// has to. torch writes a descriptor with 64-bit sizes where the sizes or the
// offset need them; where that rule fails the descriptor itself is looked at.
void ZipDirectory::check_gap(size_t index, uint64_t payload_offset) const {
  const ZipEntry& entry = entries_[index];
  const bool wide =
      entry.size >= zip::kSee64In32 || entry.header_offset >= zip::kSee64In32;
  const uint64_t end = payload_offset + entry.size;
  const uint64_t gap = end_of(index) - end;
  const uint64_t expected = !entry.has_descriptor ? 0
                            : wide                ? zip::kDataDescriptor64Size
                                                  : zip::kDataDescriptorSize;
  if (gap == expected) return;
  if (entry.has_descriptor &&
      (gap == zip::kDataDescriptorSize || gap == zip::kDataDescriptor64Size)) {
    std::array<std::byte, 8> head{};
    source_->read_at(end, head);
    if (zip::load<uint32_t>(head, 0) == zip::kDataDescriptor &&
        (entry.crc == 0 || zip::load<uint32_t>(head, 4) == entry.crc)) {
      return;
    }
  }
  fail(*source_, ErrorCode::Corrupt, entry.header_offset,
       "the payload of zip entry " + escape(entry.name) + " ends at " +
           std::to_string(end) + ", " + std::to_string(gap) +
           " bytes before what follows; expected " + std::to_string(expected));
}

// The fixed part and the name of a local header, through `window`.
std::span<const std::byte> ZipDirectory::local_header(size_t index,
                                                      ZipWindow& window) const {
  const ZipEntry& entry = entries_[index];
  const auto header_end = [](const ZipEntry& e) {
    return e.header_offset + zip::kLocalHeaderSize + e.name.size();
  };
  const uint64_t begin = entry.header_offset;
  const uint64_t end = header_end(entry);
  if (begin < window.offset || begin - window.offset > window.bytes.size() ||
      window.bytes.size() - (begin - window.offset) < end - begin) {
    // Reads up to the last header within reach, and no payload beyond it:
    // before a large payload that is this header alone.
    uint64_t last = end;
    for (size_t i = index + 1; i < entries_.size(); ++i) {
      if (header_end(entries_[i]) - begin > kWindowBytes) break;
      last = header_end(entries_[i]);
    }
    window.offset = begin;
    window.bytes.resize(static_cast<size_t>(last - begin));
    source_->read_at(begin, window.bytes);
  }
  return std::span<const std::byte>(window.bytes)
      .subspan(static_cast<size_t>(begin - window.offset),
               static_cast<size_t>(end - begin));
}

uint64_t ZipDirectory::payload_offset(const ZipEntry& entry,
                                      ZipWindow* window) const {
  const size_t index = static_cast<size_t>(
      std::lower_bound(entries_.begin(), entries_.end(), entry.header_offset,
                       [](const ZipEntry& e, uint64_t offset) {
                         return e.header_offset < offset;
                       }) -
      entries_.begin());
  if (index == entries_.size() ||
      entries_[index].header_offset != entry.header_offset) {
    throw Error(ErrorCode::Internal, "zip entry of another directory");
  }
  ZipWindow own;
  if (window == nullptr) {
    // No neighbours wanted: nothing but this header.
    own.offset = entry.header_offset;
    own.bytes.resize(zip::kLocalHeaderSize + entry.name.size());
    source_->read_at(own.offset, own.bytes);
    window = &own;
  }
  const std::span<const std::byte> header = local_header(index, *window);
  if (zip::load<uint32_t>(header, 0) != zip::kLocalHeader) {
    fail(*source_, ErrorCode::Corrupt, entry.header_offset,
         "expected the header of zip entry " + escape(entry.name));
  }
  const auto name = header.subspan(zip::kLocalHeaderSize);
  const std::string_view found(reinterpret_cast<const char*>(name.data()),
                               name.size());
  if (zip::load<uint16_t>(header, 26) != entry.name.size() ||
      found != entry.name) {
    fail(*source_, ErrorCode::Corrupt, entry.header_offset,
         "expected the header of zip entry " + escape(entry.name) +
             ", found that of another one");
  }
  if ((zip::load<uint16_t>(header, 6) & kEncrypted) != 0 ||
      zip::load<uint16_t>(header, 8) != zip::kStored) {
    fail(*source_, ErrorCode::Corrupt, entry.header_offset,
         "the header of zip entry " + escape(entry.name) +
             " contradicts the directory: compressed or encrypted");
  }
  const uint64_t offset =
      entry.header_offset + header.size() + zip::load<uint16_t>(header, 28);
  const uint64_t end = end_of(index);
  if (offset > end || end - offset < entry.size) {
    fail(*source_, ErrorCode::Corrupt, entry.header_offset,
         "zip entry " + escape(entry.name) + " of " +
             std::to_string(entry.size) +
             " bytes reaches into what follows at " + std::to_string(end));
  }
  if (entry.size != 0) check_gap(index, offset);
  return offset;
}

std::string ZipDirectory::read(const ZipEntry& entry,
                               uint64_t cap_bytes) const {
  if (entry.size > cap_bytes) {
    fail(*source_, ErrorCode::Limit, entry.header_offset,
         "zip entry " + escape(entry.name) + " of " + format_bytes(entry.size) +
             " exceeds the limit of " + format_bytes(cap_bytes));
  }
  const uint64_t offset = payload_offset(entry);
  std::string bytes(static_cast<size_t>(entry.size), '\0');
  source_->read_at(offset, std::as_writable_bytes(std::span(bytes)));
  if (entry.crc != 0) {
    const uint32_t crc = crc32_update(0, std::as_bytes(std::span(bytes)));
    if (crc != entry.crc) {
      fail(*source_, ErrorCode::Corrupt, offset,
           "the bytes of zip entry " + escape(entry.name) +
               " do not have the CRC that the directory states");
    }
  }
  return bytes;
}

bool has_zip_end(const ByteSource& source) {
  Tail tail;
  return find_end(source, tail).has_value();
}

}  // namespace zckpt
