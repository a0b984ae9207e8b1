// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace zckpt {

struct ZipEntry {
  std::string name;  // full, with the archive's prefix
  uint64_t header_offset = 0;
  uint64_t size = 0;  // of the payload; stored == uncompressed
  uint32_t crc = 0;   // 0 on a non-empty entry: not computed by the writer
};

// ZipDirectory is the validated table of contents of one zip file, from its
// central directory alone (format.md 7.1: local headers of torch files hold
// zeros).
// Errors:  Corrupt with the offset (no end record: the file is truncated;
//          contradictions, overlaps, duplicate names, an entry that reaches
//          past the file's end), Unsupported (compressed, encrypted or split
//          entries), Limit, Io.
// Threads: immutable after construction.
// Memory:  O(entries); payloads are never read.
class ZipDirectory {
 public:
  // `source` must outlive *this.
  explicit ZipDirectory(const ByteSource& source);

  std::span<const ZipEntry> entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;
  // Where the entry's payload begins: needs the lengths in its local header,
  // whose signature and name are checked against the directory.
  uint64_t payload_offset(const ZipEntry& entry) const;
  // The whole payload of a small entry, CRC checked. Limit above `cap_bytes`.
  std::string read(const ZipEntry& entry, uint64_t cap_bytes) const;

 private:
  const ByteSource* source_;
  std::vector<ZipEntry> entries_;  // in file order (by header_offset)
  std::vector<uint32_t> by_name_;  // indices, sorted by name
  uint64_t directory_offset_ = 0;
};

}  // namespace zckpt
