// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace zckpt {

// UniqueFd owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// ByteSource is a run of bytes that can be read at any offset.
// Errors:  Io with the source's name and the offset; Corrupt where a read
//          reaches past the end (the source is shorter than its metadata
//          said).
// Threads: const methods may run concurrently.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Fills all of `out` or throws.
  virtual void read_at(uint64_t offset, std::span<std::byte> out) const = 0;
  // For messages: the path as it was given.
  virtual const std::string& name() const = 0;
};

// What tells one file, and one state of it, from another of the same size.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t seconds = 0;  // of the last change of its contents
  int64_t nanoseconds = 0;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// FileSource reads a regular file with pread, never mmap: a file that shrinks
// or a disk that fails must be an Error, not a signal.
class FileSource final : public ByteSource {
 public:
  // Throws Io where `path` cannot be opened or is no regular file.
  explicit FileSource(std::string path);

  uint64_t size() const override { return size_; }
  void read_at(uint64_t offset, std::span<std::byte> out) const override;
  const std::string& name() const override { return path_; }
  // As it was when it was opened.
  const FileStamp& stamp() const { return stamp_; }
  // False once somebody has written to it. Errors: Io.
  bool is_unchanged() const;

 private:
  std::string path_;
  UniqueFd fd_;
  uint64_t size_ = 0;
  FileStamp stamp_;
};

// The whole of a small text file; Limit if it is larger than `cap_bytes`.
std::string read_text_file(const std::string& path, uint64_t cap_bytes);

// Writes all of `bytes` at `offset`; Io with `name` otherwise.
void write_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
              const std::string& name);

// Throws Io for `errno`: "<what>: <strerror>", with the file.
[[noreturn]] void throw_errno(const std::string& what, const std::string& file);

}  // namespace zckpt
