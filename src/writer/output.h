// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace zckpt {

struct OutputCalls;

struct OutputOptions {
  // A folder, or one file.
  bool single_file = false;
  // Replace what is there.
  bool force = false;
  // fsync every file and folder before the rename.
  bool sync = true;
  // Files that are read to make this output: no replaced folder may hold one.
  std::vector<std::string> inputs;
};

// Output makes a folder or a file appear at its final path at once or not at
// all. Everything is written beside it first (".<name>.zckpt-partial", locked
// with flock while the run lives), then renamed in one step; the destructor
// removes what was not committed. Leavings of a run that was killed are removed
// by the next one onto the same path, and a replacement that was interrupted
// half-way is completed or undone by it (docs/architecture.md, commit). Folders
// that are missing above the output are made, and removed again if nothing was
// committed.
// Errors:  Conflict (output exists and no force; another run holds the lock;
//          forced over a folder that holds an input, "latest" or *_states.pt,
//          or over a mount point, "/" or a home; output above an input), Io.
// Threads: file writes may run concurrently; everything else from one thread.
class Output {
 public:
  // Creates the place to write in and takes the lock.
  Output(const std::string& path, OutputOptions options);
  // For tests: with other system calls (writer/output_calls.h), which must
  // outlive this.
  Output(const std::string& path, OutputOptions options,
         const OutputCalls& calls);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  // A file to be written, `size` bytes, allocated at once so that a full disk
  // is noticed before anything is written. REQUIRES for single_file: one call,
  // `name` is ignored. `name` is a plain file name.
  class File;
  File& create(std::string_view name, uint64_t size);

  // Makes the output appear; Internal if a file lacks bytes. After a throw the
  // old output is in place, or the next run onto the same path completes or
  // undoes the exchange.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One file of an output. It is open from its first write until its last byte is
// there, so that the number of shards does not bound the number of descriptors.
class Output::File {
 public:
  File(std::string path, uint64_t size, bool sync, const OutputCalls& calls);
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Every byte is written exactly once, in any order; the call that completes
  // the file syncs and closes it. REQUIRES: within the size.
  // Threads: disjoint writes may run concurrently.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  const std::string& path() const { return path_; }

 private:
  friend class Output;
  int descriptor();
  void finish();

  const std::string path_;
  const uint64_t size_;
  const bool sync_;
  const OutputCalls& calls_;
  std::mutex mutex_;  // guards: fd_, written_
  UniqueFd fd_;
  uint64_t written_ = 0;
};

// Refuses (Conflict), from names and metadata alone, what Output would refuse;
// for --dry-run and for an early answer before hours of reading. Creates
// nothing. A replacement that was interrupted half-way is no reason: Output
// ends it first and judges what is there then.
void check_output(const std::string& path, const OutputOptions& options);

}  // namespace zckpt
