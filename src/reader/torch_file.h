// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "format/pickle.h"

namespace zckpt {

// One storage of a torch file: a run of bytes at a known place.
struct StorageRecord {
  std::string key;
  // Bytes from the start of the file; 0 for an empty storage, whose place is
  // not looked up: there is nothing to read.
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  uint32_t crc = 0;
  bool has_crc = false;  // false: legacy container, or not computed
};

// TorchFile is the index of one file that torch.save wrote: the object as an
// inert pickle tree, and where each storage's bytes lie. Reads the zip
// container (torch >= 1.6) and the legacy one (format.md 7.1, 7.2); payloads
// are never read.
// Errors:  those of ZipDirectory and read_pickle, with the file's name and the
//          offset in the file; Corrupt where data.pkl is absent; Unsupported
//          for big-endian files and for files of another form, which it names.
// Threads: immutable once opened.
// Memory:  O(entries) and the pickle's tree.
class TorchFile {
 public:
  static TorchFile open(const ByteSource& source);

  const Pickle& pickle() const { return *pickle_; }
  Value root() const { return pickle_->root_value(); }
  std::shared_ptr<const Pickle> shared_pickle() const { return pickle_; }

  bool is_legacy() const { return legacy_; }
  // The archive's own folder name, e.g.
  // "zero_pp_rank_0_mp_rank_00_model_states" or "archive" (format.md 7.1);
  // empty for legacy files.
  const std::string& prefix() const { return prefix_; }

  // Storages in file order. Zero-size storages are listed too.
  const std::vector<StorageRecord>& storages() const { return storages_; }
  // Index into storages() by key, or nothing: the record is missing.
  std::optional<uint32_t> find_storage(std::string_view key) const;

  // Size of the pickle(s) and of the whole file, for accounting.
  uint64_t pickle_bytes() const { return pickle_bytes_; }
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  friend TorchFile open_legacy_file(const ByteSource& source);
  static TorchFile open_zip(const ByteSource& source);
  void index_keys(const ByteSource& source);

  std::shared_ptr<const Pickle> pickle_;
  std::string prefix_;
  std::vector<StorageRecord> storages_;
  std::vector<uint32_t> by_key_;  // indices, sorted by length and key
  bool legacy_ = false;
  uint64_t pickle_bytes_ = 0;
  uint64_t file_bytes_ = 0;
};

// The storages of a torch zip in file order, without reading its pickle; none
// for any other file, which has no CRCs to check.
std::vector<StorageRecord> read_storage_records(const ByteSource& source);

// Calls read_pickle for bytes that begin at `offset` of `source`, so that
// errors name the file and the offset in it.
std::shared_ptr<const Pickle> read_pickle_at(const ByteSource& source,
                                             uint64_t offset,
                                             std::string bytes);

}  // namespace zckpt
