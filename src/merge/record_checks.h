// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "reader/sources.h"
#include "reader/torch_file.h"
#include "zckpt/merge.h"

namespace zckpt {

// A run of bytes of one source whose CRC some reader still has to compute.
struct ByteRange {
  uint32_t source = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// RecordChecks checks the CRC of every record that is read whole, whatever
// order its bytes are read in and by whom: ranges are claimed once, their CRCs
// are combined, and a record that is complete is compared, once.
// Errors:  Corrupt with file, storage and offset where a CRC differs.
// Threads: enter(), claim() and missing() from one thread; add() from any.
// Memory:  the records of the source entered last, those begun, one bit for
//          each record of every source entered, and short directories.
class RecordChecks {
 public:
  explicit RecordChecks(const SourceSet& sources) : sources_(sources) {}

  // Turns to `source`: its records become known. CRCs are per rank and record,
  // so only short directories are kept; others are read again.
  void enter(uint32_t source);

  // The record at `offset` of the source entered last is read for its own
  // sake. Records that a read merely passes over are none of ours.
  void want(uint64_t offset);

  // Of [begin, end) of the source entered last, the parts that belong to
  // wanted records and that nobody claimed: the caller computes their CRCs.
  void claim(uint64_t begin, uint64_t end, std::vector<ByteRange>& out);

  // The CRC of a claimed range.
  void add(const ByteRange& range, uint32_t crc);

  // Ranges that are missing from records of which little is missing (or, with
  // `all`, from every record begun), as claimed: padding behind the last
  // tensor, gaps.
  std::vector<ByteRange> missing(bool all);

  uint64_t checked() const { return checked_; }
  uint64_t unchecked() const { return unchecked_; }

 private:
  struct Run {
    uint64_t end = 0;
    uint32_t crc = 0;
    bool known = false;  // claimed only, until add() brings the CRC
  };
  struct Begun {
    StorageRecord record;
    size_t index = 0;              // in records_ while its source is entered
    std::map<uint64_t, Run> runs;  // by begin, disjoint
  };
  using Key = std::pair<uint32_t, uint64_t>;  // source, record offset

  std::optional<size_t> record_at(uint64_t offset) const;
  void compare(uint32_t source, const Begun& begun) const;
  static void join(std::map<uint64_t, Run>& runs);

  const SourceSet& sources_;
  uint32_t source_ = UINT32_MAX;
  std::vector<StorageRecord> records_;  // of source_, by offset
  std::vector<bool> wanted_;            // of records_
  std::unordered_map<uint32_t, std::vector<StorageRecord>> kept_;
  std::mutex mutex_;  // guards: begun_, complete_, checked_, unchecked_
  std::map<Key, Begun> begun_;
  // Per source, by place in records_: compared already. A record may be read
  // again for a later tensor.
  std::unordered_map<uint32_t, std::vector<bool>> complete_;
  uint64_t checked_ = 0;
  uint64_t unchecked_ = 0;
};

// Reads the records that hold `tensors` of `checkpoint`, whole, and compares
// their CRCs: for what is read by other ways than execute().
// Errors: Corrupt as RecordChecks; Io; Interrupted.
void check_records_of(const Checkpoint& checkpoint,
                      const std::vector<uint32_t>& tensors,
                      const StopToken* stop, MergeResult& result);

}  // namespace zckpt
