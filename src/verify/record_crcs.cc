// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/record_crcs.h"

#include <algorithm>

#include "base/crc32.h"
#include "reader/zip_directory.h"

namespace zckpt {

RecordCrcs::RecordCrcs(const ByteSource& source) : form_(recognise(source)) {
  if (form_ != FileForm::TorchZip) return;
  const ZipDirectory directory(source);
  ZipWindow window;
  for (const ZipEntry& entry : directory.entries()) {
    if (entry.size == 0) continue;
    try {
      const uint64_t begin = directory.payload_offset(entry, &window);
      records_.push_back({.name = std::string(entry.name),
                          .begin = begin,
                          .end = begin + entry.size,
                          .crc = entry.crc});
    } catch (const Error& error) {
      faults_.push_back(error);
    }
  }
}

void RecordCrcs::add(std::span<const std::byte> bytes) {
  const uint64_t end = position_ + bytes.size();
  for (; next_ < records_.size(); ++next_) {
    Record& record = records_[next_];
    const uint64_t from = std::max(position_, record.begin);
    const uint64_t to = std::min(end, record.end);
    if (from < to) {
      record.found = crc32_update(
          record.found, bytes.subspan(static_cast<size_t>(from - position_),
                                      static_cast<size_t>(to - from)));
    }
    if (record.end > end) break;
  }
  position_ = end;
}

}  // namespace zckpt
