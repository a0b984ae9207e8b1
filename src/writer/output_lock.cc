// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "zckpt/error.h"

namespace zckpt {
namespace {

// Each turn that fails means that another run came or went meanwhile.
constexpr int kTurns = 100;

UniqueFd open_any(const std::string& path) {
  constexpr int kFlags = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  // NFS locks only what is open for writing.
  int fd = ::open(path.c_str(), O_RDWR | kFlags);
  if (fd < 0 && (errno == EISDIR || errno == EACCES)) {
    fd = ::open(path.c_str(), O_RDONLY | kFlags);
  }
  return UniqueFd(fd);
}

bool take_lock(const OutputPlace& place, const std::string& path, int fd,
               const OutputCalls& calls) {
  while (calls.flock(fd, LOCK_EX | LOCK_NB) != 0) {
    switch (errno) {
      case EINTR: continue;
      case EWOULDBLOCK:
        throw Error(ErrorCode::Conflict,
                    "another zckpt run is writing it (" + path + " is locked)",
                    {.file = place.given});
      case ENOLCK:
      case ENOSYS:
      case EOPNOTSUPP:
      case EINVAL:
      case EBADF: return false;
      default: throw_errno("cannot lock", path);
    }
  }
  return true;
}

bool create(const std::string& path, bool single_file,
            const OutputCalls& calls) {
  if (!single_file) return calls.mkdir(path.c_str(), 0777) == 0;
  return UniqueFd(::open(path.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         0666))
      .valid();
}

bool is_unused(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_empty(path, error) && !error;
}

}  // namespace

std::optional<Claim> claim(const OutputPlace& place, const std::string& path,
                           const OutputCalls& calls) {
  Claim result;
  result.fd = open_any(path);
  if (!result.fd.valid()) {
    if (errno == ENOENT) return std::nullopt;
    throw_errno("cannot open", path);
  }
  result.locked = take_lock(place, path, result.fd.get(), calls);
  // The run that held it may have renamed it into place just before: it is an
  // output then, no leavings.
  struct stat held {};
  struct stat named {};
  if (::fstat(result.fd.get(), &held) != 0) throw_errno("cannot stat", path);
  if (::lstat(path.c_str(), &named) != 0 || held.st_dev != named.st_dev ||
      held.st_ino != named.st_ino) {
    return std::nullopt;
  }
  return result;
}

std::optional<Claim> claim_fresh(const OutputPlace& place,
                                 const std::string& path, bool single_file,
                                 const OutputCalls& calls) {
  for (int turn = 0; turn < kTurns; ++turn) {
    const bool made = create(path, single_file, calls);
    if (!made && (errno == EACCES || errno == EPERM || errno == EROFS)) {
      return std::nullopt;
    }
    if (!made && errno != EEXIST) throw_errno("cannot create", path);
    std::optional<Claim> held = claim(place, path, calls);
    if (!held.has_value()) continue;
    // Made by this run, unless another one took that for leavings, made its
    // own and was killed, all before the claim.
    if (made && is_unused(path)) return held;
    if (!held->locked) {
      throw Error(ErrorCode::Conflict,
                  "another run is writing it or was killed; this file system "
                  "has no locks to tell which: remove " +
                      path + " if no run is alive",
                  {.file = place.given});
    }
    if (calls.remove_all(path) != 0) {
      throw_errno("cannot remove what a killed run left", path);
    }
  }
  throw Error(ErrorCode::Conflict, "other runs keep writing it",
              {.file = place.given});
}

std::vector<std::string> make_folders(const std::string& path,
                                      const OutputCalls& calls) {
  std::vector<std::string> missing;
  for (std::string folder = path; !path_exists(folder);
       folder = std::filesystem::path(folder).parent_path().string()) {
    missing.push_back(folder);
  }
  std::ranges::reverse(missing);
  std::vector<std::string> made;
  for (const std::string& folder : missing) {
    if (calls.mkdir(folder.c_str(), 0777) == 0) {
      made.push_back(folder);
    } else if (errno != EEXIST) {
      const int error = errno;
      for (; !made.empty(); made.pop_back()) ::rmdir(made.back().c_str());
      errno = error;
      throw_errno("cannot create", folder);
    }
  }
  return made;
}

}  // namespace zckpt
