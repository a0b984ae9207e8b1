// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// read_floor THREADS FILE...: reads every byte of the files, each from front to
// back by one thread, and does nothing with them.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  const int threads = argc > 2 ? atoi(argv[1]) : 1;
  std::atomic<int> next{2};
  std::atomic<bool> failed{false};
  auto work = [&] {
    std::vector<char> buffer(size_t{1} << 19);
    for (int i; (i = next.fetch_add(1)) < argc;) {
      const int fd = open(argv[i], O_RDONLY);
      off_t at = 0;
      ssize_t got = 0;
      while ((got = pread(fd, buffer.data(), buffer.size(), at)) > 0) at += got;
      if (fd < 0 || got < 0) failed = true;
      close(fd);
    }
  };
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (auto& thread : pool) thread.join();
  if (failed) perror("read_floor");
  return failed;
}
