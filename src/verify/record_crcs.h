// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "reader/recognise.h"
#include "zckpt/error.h"

namespace zckpt {

// RecordCrcs follows one file from front to back and compares the CRC of every
// record of a torch zip, the pickle and the small ones included. Files of
// another form have no CRCs.
// Errors: those of ZipDirectory, on construction; what is wrong with one record
//         is kept in faults(). Threads: one.
class RecordCrcs {
 public:
  struct Record {
    std::string name;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint32_t crc = 0;    // as the file says; 0: not computed
    uint32_t found = 0;  // once all of it has been seen
  };

  explicit RecordCrcs(const ByteSource& source);

  FileForm form() const { return form_; }

  // The bytes that follow those given before.
  void add(std::span<const std::byte> bytes);

  // Records whose place is contradicted by their own header.
  const std::vector<Error>& faults() const { return faults_; }
  // In file order; empty records, which cannot be wrong, are left out.
  const std::vector<Record>& records() const { return records_; }

 private:
  FileForm form_;
  std::vector<Record> records_;
  std::vector<Error> faults_;
  size_t next_ = 0;
  uint64_t position_ = 0;
};

}  // namespace zckpt
