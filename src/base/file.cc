// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "zckpt/error.h"

namespace zckpt {
namespace {

// Linux transfers at most 2 GiB - 4 KiB in one call anyway.
constexpr size_t kMaxTransfer = size_t{1} << 30;

FileStamp stamp_of(const struct stat& status) {
  return {.device = static_cast<uint64_t>(status.st_dev),
          .inode = static_cast<uint64_t>(status.st_ino),
          .seconds = static_cast<int64_t>(status.st_mtim.tv_sec),
          .nanoseconds = static_cast<int64_t>(status.st_mtim.tv_nsec)};
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int UniqueFd::release() { return std::exchange(fd_, -1); }

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void throw_errno(const std::string& what, const std::string& file) {
  const int error = errno;
  throw Error(ErrorCode::Io, what + ": " + std::strerror(error),
              {.file = file});
}

FileSource::FileSource(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe somebody put there must not hang.
  fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_.valid()) throw_errno("cannot open", path_);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_errno("cannot stat", path_);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::Io, "not a regular file", {.file = path_});
  }
  size_ = static_cast<uint64_t>(status.st_size);
  stamp_ = stamp_of(status);
}

bool FileSource::is_unchanged() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_errno("cannot stat", path_);
  return stamp_of(status) == stamp_ &&
         static_cast<uint64_t>(status.st_size) == size_;
}

void FileSource::read_at(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    throw Error(ErrorCode::Corrupt,
                "expected " + std::to_string(out.size()) +
                    " bytes here, found the file's end at " +
                    std::to_string(size_),
                {.file = path_, .offset = offset});
  }
  size_t done = 0;
  while (done < out.size()) {
    const size_t want = std::min(out.size() - done, kMaxTransfer);
    const ssize_t got = ::pread(fd_.get(), out.data() + done, want,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      throw Error(ErrorCode::Io,
                  std::string("cannot read: ") + std::strerror(error),
                  {.file = path_, .offset = offset + done});
    }
    if (got == 0) {
      throw Error(ErrorCode::Corrupt, "the file became shorter while read",
                  {.file = path_, .offset = offset + done});
    }
    done += static_cast<size_t>(got);
  }
}

std::string read_text_file(const std::string& path, uint64_t cap_bytes) {
  const FileSource source(path);
  if (source.size() > cap_bytes) {
    throw Error(ErrorCode::Limit,
                "expected at most " + std::to_string(cap_bytes) +
                    " bytes, found " + std::to_string(source.size()),
                {.file = path});
  }
  std::string text(static_cast<size_t>(source.size()), '\0');
  source.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
              const std::string& name) {
  size_t done = 0;
  while (done < bytes.size()) {
    const size_t want = std::min(bytes.size() - done, kMaxTransfer);
    const ssize_t put = ::pwrite(fd, bytes.data() + done, want,
                                 static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw_errno("cannot write", name);
    done += static_cast<size_t>(put);
  }
}

}  // namespace zckpt
