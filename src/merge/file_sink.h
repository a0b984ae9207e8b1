// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "merge/sink.h"
#include "writer/output.h"
#include "zckpt/merge.h"

namespace zckpt {

// The files of a plan as a sink: target f is plan.files[f]. What lies before,
// between and behind the data is written by write_header and write_rest.
class FileSink : public Sink {
 public:
  // Creates the files. Errors: as Output::create.
  FileSink(const Plan& plan, Output& output);

  void write(uint32_t target, uint64_t offset,
             std::span<const std::byte> bytes) override;
  void write_header(uint32_t file);
  // REQUIRES: all data of `file` has been given to write().
  void write_rest(uint32_t file);

 private:
  // The CRCs of what was written of a record so far: runs by their begin,
  // neighbours joined.
  struct Run {
    uint64_t end = 0;
    uint32_t crc = 0;
  };
  using Runs = std::map<uint64_t, Run>;

  void add_crc(uint32_t file, uint64_t offset,
               std::span<const std::byte> bytes);

  const Plan& plan_;
  std::vector<Output::File*> files_;
  std::mutex mutex_;                     // guards: runs_
  std::vector<std::vector<Runs>> runs_;  // by file and record; for archives
};

}  // namespace zckpt
