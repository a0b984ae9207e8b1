// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// touchmem GIB: fault in and release that much memory, so that a virtual
// machine's free pages are backed by the host before a timed run (free page
// reporting otherwise charges the first touch, ~1 s per 2 GB here, to the run).
#include <sys/mman.h>
#include <cstdlib>
int main(int c, char** v) {
  size_t n = size_t(c > 1 ? atof(v[1]) * (1 << 30) : 1 << 30);
  char* p = (char*)mmap(nullptr, n, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return 1;
  madvise(p, n, MADV_HUGEPAGE);
  for (size_t i = 0; i < n; i += 4096) p[i] = 1;
}
