// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/arithmetic.h"
#include "base/text.h"
#include "writer/output.h"
#include "writer/output_calls.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

int rename_with(const char* from, const char* to, unsigned flags) {
  if (flags == 0) return std::rename(from, to);
  return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
}

int remove_tree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (!error) return 0;
  errno = error.value();
  return -1;
}

[[noreturn]] void throw_full(const std::string& path, uint64_t size,
                             int error) {
  std::string message = std::string(std::strerror(error)) + ": it needs " +
                        std::to_string(size) + " bytes (" + format_bytes(size) +
                        ")";
  struct statvfs room {};
  if (error == ENOSPC && ::statvfs(path.c_str(), &room) == 0) {
    message += ", and the file system has " +
               format_bytes(uint64_t{room.f_bavail} * room.f_frsize) + " free";
  }
  throw Error(ErrorCode::Io, message, {.file = path});
}

// File systems without fallocate reserve nothing, but can say what is free.
void set_size(int fd, uint64_t size, const std::string& path) {
  struct statvfs room {};
  if (::fstatvfs(fd, &room) == 0 && room.f_blocks != 0 &&
      size / room.f_frsize > room.f_bavail) {
    throw_full(path, size, ENOSPC);
  }
  int result = 0;
  do {
    result = ::ftruncate(fd, static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw_full(path, size, errno);
}

void allocate(int fd, uint64_t size, const std::string& path,
              const OutputCalls& calls) {
  if (size == 0) return;
  const auto bytes = checked_cast<off_t>(size, "the size of a file");
  int result = 0;
  do {
    result = calls.fallocate(fd, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) {
    return set_size(fd, size, path);
  }
  throw_full(path, size, errno);
}

}  // namespace

const OutputCalls& system_calls() {
  static const OutputCalls calls{
      .mkdir = ::mkdir,
      .fallocate = [](int fd,
                      off_t size) { return ::fallocate(fd, 0, 0, size); },
      .fsync = ::fsync,
      .flock = ::flock,
      .rename = rename_with,
      .remove_all = remove_tree,
  };
  return calls;
}

Output::File::File(std::string path, uint64_t size, bool sync,
                   const OutputCalls& calls)
    : path_(std::move(path)), size_(size), sync_(sync), calls_(calls) {
  allocate(descriptor(), size_, path_, calls_);
  if (size_ == 0) {
    finish();
  } else {
    fd_.reset();
  }
}

// REQUIRES: `mutex_` held, or no other thread yet.
int Output::File::descriptor() {
  if (!fd_.valid()) {
    fd_ = UniqueFd(::open(path_.c_str(),
                          O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!fd_.valid()) throw_errno("cannot create", path_);
  }
  return fd_.get();
}

void Output::File::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset) {
    throw Error(ErrorCode::Internal, "a write past the end of an output",
                {.file = path_, .offset = offset});
  }
  if (bytes.empty()) return;
  int fd = -1;
  {
    const std::lock_guard lock(mutex_);
    fd = descriptor();
  }
  // Nobody closes it meanwhile: these bytes are still missing.
  zckpt::write_at(fd, offset, bytes, path_);
  const std::lock_guard lock(mutex_);
  written_ += bytes.size();
  if (written_ == size_) finish();
}

void Output::File::finish() {
  if (sync_ && calls_.fsync(fd_.get()) != 0) {
    throw_errno("cannot write to the disk", path_);
  }
  // NFS reports a full disk or quota as late as this.
  if (::close(fd_.release()) != 0 && errno != EINTR) {
    throw_errno("cannot close", path_);
  }
}

}  // namespace zckpt
