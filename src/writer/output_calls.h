// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace zckpt {

// The system calls whose failure, or absence, decides how an output is
// committed. Tests replace them one by one; each answers as the system does
// (-1 and errno).
struct OutputCalls {
  std::function<int(const char* path, mode_t mode)> mkdir;
  std::function<int(int fd, off_t size)> fallocate;
  std::function<int(int fd)> fsync;
  std::function<int(int fd, int operation)> flock;
  // `flags` as of renameat2; 0 is a plain rename.
  std::function<int(const char* from, const char* to, unsigned flags)> rename;
  // Removes a file or a folder with all below it, links not followed; no error
  // where there is nothing.
  std::function<int(const std::string& path)> remove_all;
};

// Those of the system.
const OutputCalls& system_calls();

}  // namespace zckpt
