// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "zckpt/checkpoint.h"

namespace zckpt {

// SourceSet numbers the files of a checkpoint and opens them on demand, at
// most `max_open` at a time (the one unused for longest is closed first). What
// the index says holds for the files as they were then: one that was replaced
// or written to since is an error, also if it looks the same.
// Errors:  Conflict for a file that changed, Io.
// Threads: open() and check_unchanged() may run concurrently; add() only while
//          building.
class SourceSet {
 public:
  explicit SourceSet(std::string folder, size_t max_open = 64);

  // Adds the file at `path`; its name becomes relative to the folder. `stamp`
  // is that of the file that was read for the index; none: the first one that
  // is opened counts.
  uint32_t add(const std::string& path, uint64_t size_bytes,
               const std::optional<FileStamp>& stamp = std::nullopt);

  const std::vector<Source>& list() const { return sources_; }
  const std::string& path(uint32_t source) const { return paths_[source]; }
  // The file stays open while the caller holds it.
  std::shared_ptr<const FileSource> open(uint32_t source) const;
  // Refuses if a file that is open now was written to: what was read of it may
  // be of two saves.
  void check_unchanged() const;
  std::optional<FileStamp> stamp(uint32_t source) const;

 private:
  struct Entry {
    std::shared_ptr<const FileSource> file;
    std::list<uint32_t>::iterator use;
  };

  std::string folder_;
  size_t max_open_;
  std::vector<Source> sources_;
  std::vector<std::string> paths_;
  // Where relative paths begin, whatever becomes the working folder later.
  std::string origin_;
  mutable std::mutex mutex_;  // guards all below
  mutable std::vector<std::optional<FileStamp>> stamps_;
  mutable std::list<uint32_t> uses_;  // most recent first
  mutable std::unordered_map<uint32_t, Entry> open_;
};

}  // namespace zckpt
