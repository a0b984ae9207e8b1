// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace zckpt {

struct ZipEntry {
  std::string_view name;  // full, with the archive's prefix
  uint64_t header_offset = 0;
  uint64_t size = 0;  // of the payload; stored == uncompressed
  uint32_t crc = 0;   // 0 on a non-empty entry: not computed by the writer
  // CRC and sizes follow the payload once more.
  bool has_descriptor = false;
};

// Bytes of the file that payload_offset() has read ahead.
struct ZipWindow {
  uint64_t offset = 0;
  std::vector<std::byte> bytes;
};

// ZipDirectory is the validated table of contents of one zip file, from its
// central directory alone (format.md 7.1: local headers of torch files hold
// zeros).
// Errors:   Corrupt with the offset (no end record: the file is truncated;
//           contradictions, overlaps, duplicate names, an entry that reaches
//           past the file's end), Unsupported (compressed, encrypted or split
//           entries), Limit, Io.
// Threads:  immutable after construction.
// Lifetime: entry names point into *this, also after a move.
// Memory:   O(entries); payloads are never read.
class ZipDirectory {
 public:
  // `source` must outlive *this.
  explicit ZipDirectory(const ByteSource& source);
  ZipDirectory(ZipDirectory&&) = default;
  ZipDirectory& operator=(ZipDirectory&&) = default;

  // In file order.
  std::span<const ZipEntry> entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;
  // Where the payload of `entry`, one of entries(), begins: needs the lengths
  // in its local header, whose signature and name are checked against the
  // directory; the payload must end where the next entry, or a descriptor
  // before it, begins. With a `window`, headers close to each other are read
  // together: pass the same one for a run of entries in file order.
  uint64_t payload_offset(const ZipEntry& entry,
                          ZipWindow* window = nullptr) const;
  // The whole payload of a small entry, CRC checked. Limit above `cap_bytes`.
  std::string read(const ZipEntry& entry, uint64_t cap_bytes) const;

 private:
  void read_entries(std::span<const std::byte> directory, uint64_t count);
  void check_ranges() const;
  void index_names();
  // Where the bytes of entry `index` must end.
  uint64_t end_of(size_t index) const;
  void check_gap(size_t index, uint64_t payload_offset) const;
  std::span<const std::byte> local_header(size_t index,
                                          ZipWindow& window) const;

  const ByteSource* source_;
  std::vector<std::byte> directory_;  // names point into it
  std::vector<ZipEntry> entries_;     // in file order (by header_offset)
  std::vector<uint32_t> by_name_;     // indices, sorted by length and name
  uint64_t directory_offset_ = 0;
};

// False for a zip file whose end is missing: it was cut off.
bool has_zip_end(const ByteSource& source);

}  // namespace zckpt
