// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/file_sink.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/crc32.h"
#include "writer/torch_archive.h"
#include "zckpt/error.h"

namespace zckpt {

FileSink::FileSink(const Plan& plan, Output& output)
    : plan_(plan), runs_(plan.files.size()) {
  for (const PlannedFile& planned : plan.files) {
    files_.push_back(&output.create(planned.name, planned.size_bytes));
  }
}

void FileSink::write(uint32_t target, uint64_t offset,
                     std::span<const std::byte> bytes) {
  files_[target]->write_at(offset, bytes);
  if (!plan_.files[target].records.empty()) add_crc(target, offset, bytes);
}

void FileSink::write_header(uint32_t file) {
  const PlannedFile& planned = plan_.files[file];
  files_[file]->write_at(0, std::as_bytes(std::span(planned.header)));
  runs_[file].resize(planned.records.size());
}

void FileSink::add_crc(uint32_t file, uint64_t offset,
                       std::span<const std::byte> bytes) {
  const uint32_t crc = crc32_update(0, bytes);
  const std::vector<PlannedRecord>& records = plan_.files[file].records;
  const auto behind =
      std::upper_bound(records.begin(), records.end(), offset,
                       [](uint64_t at, const PlannedRecord& record) {
                         return at < record.offset;
                       });
  const auto record = static_cast<size_t>(behind - records.begin()) - 1;
  const std::lock_guard lock(mutex_);
  Runs& runs = runs_[file][record];
  auto run = runs.emplace(offset, Run{offset + bytes.size(), crc}).first;
  const auto join = [&](Runs::iterator first) {
    const auto second = std::next(first);
    if (second == runs.end() || first->second.end != second->first) return;
    first->second.crc = crc32_combine(first->second.crc, second->second.crc,
                                      second->second.end - second->first);
    first->second.end = second->second.end;
    runs.erase(second);
  };
  join(run);
  if (run != runs.begin()) join(std::prev(run));
}

void FileSink::write_rest(uint32_t file) {
  std::vector<PlannedRecord> records = plan_.files[file].records;
  if (records.empty()) return;
  for (size_t i = 0; i < records.size(); ++i) {
    PlannedRecord& record = records[i];
    if (record.crc) continue;
    const Runs& runs = runs_[file][i];
    const bool whole =
        record.size_bytes == 0
            ? runs.empty()
            : runs.size() == 1 && runs.begin()->first == record.offset &&
                  runs.begin()->second.end == record.offset + record.size_bytes;
    if (!whole) {
      throw Error(ErrorCode::Internal, "a record was not written whole",
                  {.file = plan_.files[file].name, .offset = record.offset});
    }
    record.crc = runs.empty() ? 0 : runs.begin()->second.crc;
  }
  write_archive_rest(records, [&](uint64_t offset, std::string_view bytes) {
    files_[file]->write_at(offset, std::as_bytes(std::span(bytes)));
  });
  runs_[file].clear();
}

}  // namespace zckpt
