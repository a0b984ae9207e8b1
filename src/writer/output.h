// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zckpt {

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
// half-way is completed or undone by it (docs/architecture.md, commit).
// Errors:  Conflict (output exists and no force; another run holds the lock;
//          forced over a folder that holds an input, "latest" or *_states.pt,
//          or over a mount point, "/" or a home; output above an input), Io.
// Threads: file writes may run concurrently; everything else from one thread.
class Output {
 public:
  // Creates the place to write in and takes the lock.
  Output(std::string path, OutputOptions options);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  // A file to be written, `size` bytes, allocated at once so that a full disk
  // is noticed before anything is written. REQUIRES for single_file: one call,
  // `name` is ignored. `name` is a plain file name.
  class File;
  File& create(std::string_view name, uint64_t size);

  // Makes the output appear. After a throw the old output is in place, or the
  // next run onto the same path completes or undoes the exchange.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Output::File {
 public:
  File(std::string path, uint64_t size);
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();
  // Threads: disjoint writes may run concurrently.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  const std::string& path() const { return path_; }

 private:
  friend class Output;
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Refuses (Conflict), from names and metadata alone, what Output would refuse;
// for --dry-run and for an early answer before hours of reading. Creates
// nothing.
void check_output(const std::string& path, const OutputOptions& options);

}  // namespace zckpt
