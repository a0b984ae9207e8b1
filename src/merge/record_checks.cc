// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/record_checks.h"

#include <algorithm>
#include <tuple>

#include "base/crc32.h"
#include "base/parallel.h"
#include "base/text.h"
#include "reader/checkpoint_data.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// Reading what is missing of a record is worth it up to this share of it.
constexpr uint64_t kMissingShare = 16;
constexpr uint64_t kMissingBytes = uint64_t{1} << 20;
// Directories of more records are read again when a source is turned to again.
constexpr size_t kKeptRecords = 64;

}  // namespace

void RecordChecks::enter(uint32_t source) {
  if (source == source_) return;
  source_ = source;
  if (const auto kept = kept_.find(source); kept != kept_.end()) {
    records_ = kept->second;
  } else {
    records_ = read_storage_records(*sources_.open(source));
    std::erase_if(records_, [](const auto& r) { return r.size_bytes == 0; });
    std::sort(records_.begin(), records_.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    if (records_.size() <= kKeptRecords) kept_[source] = records_;
  }
  wanted_.assign(records_.size(), false);
}

std::optional<size_t> RecordChecks::record_at(uint64_t offset) const {
  auto it = std::upper_bound(
      records_.begin(), records_.end(), offset,
      [](uint64_t o, const StorageRecord& r) { return o < r.offset; });
  if (it == records_.begin()) return std::nullopt;
  --it;
  if (offset - it->offset >= it->size_bytes) return std::nullopt;
  return static_cast<size_t>(it - records_.begin());
}

void RecordChecks::want(uint64_t offset) {
  if (const auto i = record_at(offset)) wanted_[*i] = true;
}

void RecordChecks::claim(uint64_t begin, uint64_t end,
                         std::vector<ByteRange>& out) {
  auto it = std::upper_bound(
      records_.begin(), records_.end(), begin,
      [](uint64_t o, const StorageRecord& r) { return o < r.offset; });
  if (it != records_.begin()) --it;
  const std::lock_guard lock(mutex_);
  std::vector<bool>& complete = complete_[source_];
  complete.resize(records_.size());
  for (; it != records_.end() && it->offset < end; ++it) {
    uint64_t from = std::max(begin, it->offset);
    const uint64_t to = std::min(end, it->offset + it->size_bytes);
    if (from >= to) continue;
    const auto index = static_cast<size_t>(it - records_.begin());
    if (!wanted_[index] || complete[index]) continue;
    Begun& begun = begun_[{source_, it->offset}];
    if (begun.runs.empty()) {
      begun.record = *it;
      begun.index = index;
    }
    // Leaves out what is claimed already, by a tensor that shares the data.
    auto run = begun.runs.upper_bound(from);
    if (run != begun.runs.begin()) {
      from = std::max(from, std::prev(run)->second.end);
    }
    while (from < to) {
      const uint64_t stop =
          run == begun.runs.end() ? to : std::min(to, run->first);
      if (from < stop) {
        begun.runs[from] = {.end = stop};
        out.push_back({.source = source_, .begin = from, .end = stop});
      }
      if (run == begun.runs.end()) break;
      from = std::max(from, run->second.end);
      ++run;
    }
  }
}

void RecordChecks::join(std::map<uint64_t, Run>& runs) {
  for (auto it = runs.begin(); it != runs.end();) {
    const auto next = std::next(it);
    if (next == runs.end()) break;
    if (it->second.end == next->first && it->second.known &&
        next->second.known) {
      it->second.crc = crc32_combine(it->second.crc, next->second.crc,
                                     next->second.end - next->first);
      it->second.end = next->second.end;
      runs.erase(next);
    } else {
      it = next;
    }
  }
}

void RecordChecks::add(const ByteRange& range, uint32_t crc) {
  Begun complete;
  {
    const std::lock_guard lock(mutex_);
    auto it = begun_.upper_bound({range.source, range.begin});
    --it;
    Begun& begun = it->second;
    Run& run = begun.runs.at(range.begin);
    run.crc = crc;
    run.known = true;
    if (begun.runs.size() > 1) join(begun.runs);
    const auto& first = *begun.runs.begin();
    if (begun.runs.size() != 1 || !first.second.known ||
        first.first != begun.record.offset ||
        first.second.end != begun.record.offset + begun.record.size_bytes) {
      return;
    }
    complete = std::move(begun);
    complete_[range.source][complete.index] = true;
    begun_.erase(it);
    ++(complete.record.has_crc ? checked_ : unchecked_);
  }
  compare(range.source, complete);
}

void RecordChecks::compare(uint32_t source, const Begun& begun) const {
  const StorageRecord& record = begun.record;
  const uint32_t found = begun.runs.begin()->second.crc;
  if (!record.has_crc || found == record.crc) return;
  const std::string& file = sources_.list()[source].name;
  Error error(ErrorCode::Corrupt,
              "storage " + escape(record.key) +
                  " is damaged: " + crc32_difference(record.crc, found),
              {.file = file, .offset = record.offset});
  error.with_findings({{.code = "crc-mismatch",
                        .severity = Severity::Error,
                        .message = error.message(),
                        .file = file,
                        .offset = record.offset}});
  throw error;
}

std::vector<ByteRange> RecordChecks::missing(bool all) {
  std::vector<ByteRange> ranges;
  const std::lock_guard lock(mutex_);
  for (auto& [key, begun] : begun_) {
    const uint64_t size = begun.record.size_bytes;
    uint64_t have = 0;
    for (const auto& [begin, run] : begun.runs) have += run.end - begin;
    const uint64_t lacking = size - have;
    if (!all && lacking > kMissingBytes && lacking > size / kMissingShare) {
      continue;
    }
    uint64_t next = begun.record.offset;
    std::vector<ByteRange> gaps;
    for (const auto& [begin, run] : begun.runs) {
      if (next < begin) gaps.push_back({key.first, next, begin});
      next = run.end;
    }
    const uint64_t end = begun.record.offset + size;
    if (next < end) gaps.push_back({key.first, next, end});
    for (const ByteRange& gap : gaps) begun.runs[gap.begin] = {.end = gap.end};
    ranges.insert(ranges.end(), gaps.begin(), gaps.end());
  }
  return ranges;
}

void check_records_of(const Checkpoint& checkpoint,
                      const std::vector<uint32_t>& tensors,
                      const StopToken* stop, MergeResult& result) {
  constexpr uint64_t kChunk = uint64_t{1} << 20;
  std::vector<ByteRange> wanted;
  for (const uint32_t index : tensors) {
    const Tensor& tensor = checkpoint.tensors()[index];
    checkpoint.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
      wanted.push_back({extent.source, extent.offset,
                        extent.offset + extent.numel * size_of(tensor.dtype)});
    });
  }
  std::sort(wanted.begin(), wanted.end(), [](const auto& a, const auto& b) {
    return std::tie(a.source, a.begin) < std::tie(b.source, b.begin);
  });
  const SourceSet& sources = *checkpoint.data().sources;
  RecordChecks checks(sources);
  std::vector<std::byte> bytes;
  const auto read = [&](const std::vector<ByteRange>& ranges) {
    for (const ByteRange& range : ranges) {
      const auto source = sources.open(range.source);
      uint32_t crc = 0;
      for (uint64_t at = range.begin; at < range.end;) {
        throw_if_stopped(stop);
        const uint64_t size = std::min(kChunk, range.end - at);
        bytes.resize(static_cast<size_t>(size));
        source->read_at(at, bytes);
        crc = crc32_update(crc, bytes);
        at += size;
      }
      checks.add(range, crc);
    }
  };
  for (const ByteRange& range : wanted) {
    checks.enter(range.source);
    checks.want(range.begin);
    std::vector<ByteRange> claimed;
    checks.claim(range.begin, range.end, claimed);
    read(claimed);
  }
  read(checks.missing(/*all=*/true));
  result.checked_records += checks.checked();
  result.unchecked_records += checks.unchecked();
}

}  // namespace zckpt
