// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// Attainable merge speed: executes a plan of make_plan.py with T threads and
// one buffer each, and checks nothing.
//   merge_floor PLAN OUT [-t threads] [-b buffer MiB] [-d fp32|bf16|fp16]
//               [-m copy|read|write] [-s (fsync)] [-a (fallocate)]
// "read" drops what it read, "write" writes buffers without reading: the two
// halves of the copy floor.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

struct Extent {
  int file;
  uint64_t src;     // bytes
  uint64_t n, dst;  // elements
};
enum class Type { f32, bf16, f16 };

[[noreturn]] static void die(const char* what) {
  perror(what);
  std::exit(1);
}

static void read_all(int fd, char* p, size_t n, uint64_t off) {
  while (n) {
    ssize_t k = pread(fd, p, n, off);
    if (k <= 0) die("pread");
    p += k;
    n -= k;
    off += k;
  }
}
static void write_all(int fd, const char* p, size_t n, uint64_t off) {
  while (n) {
    ssize_t k = pwrite(fd, p, n, off);
    if (k <= 0) die("pwrite");
    p += k;
    n -= k;
    off += k;
  }
}
// Round to nearest even; NaN becomes the canonical quiet NaN as in torch.
static inline uint16_t to_bf16(uint32_t u) {
  uint32_t r = (u + 0x7FFF + ((u >> 16) & 1)) >> 16;
  return (u & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : uint16_t(r);
}
static inline uint16_t to_f16(uint32_t u) {
  uint32_t s = (u >> 16) & 0x8000, a = u & 0x7FFFFFFF;
  uint32_t rebias =
      a - 0x38000000;  // normal range: round mantissa, exponent carries over
  uint32_t norm = (rebias + 0xFFF + ((rebias >> 13) & 1)) >> 13;
  float sub = std::bit_cast<float>(a) +
              0.5f;  // subnormal range: the adder rounds for us
  uint32_t small = std::bit_cast<uint32_t>(sub) - 0x3F000000;
  uint32_t big = a > 0x7F800000 ? 0x7E00 : 0x7C00;
  uint32_t r = a < 0x38800000 ? small : norm;
  return uint16_t(s | (a >= 0x477FF000 ? big : r));
}
template <class F>
static inline void convert(const uint32_t* __restrict in,
                           uint16_t* __restrict out, size_t n, F f) {
  for (size_t i = 0; i < n; ++i) out[i] = f(in[i]);
}
__attribute__((target_clones("default", "avx2", "arch=x86-64-v4"))) static void
convert_bf16(const uint32_t* __restrict in, uint16_t* __restrict out,
             size_t n) {
  convert(in, out, n, to_bf16);
}
__attribute__((target_clones("default", "avx2", "arch=x86-64-v4"))) static void
convert_f16(const uint32_t* __restrict in, uint16_t* __restrict out, size_t n) {
  convert(in, out, n, to_f16);
}

int main(int argc, char** argv) {
  int threads = 2, mib = 16, c;
  Type type = Type::f32;
  std::string mode = "copy", header_file;
  bool sync = false, alloc = false;
  auto t0 = std::chrono::steady_clock::now();
  while ((c = getopt(argc, argv, "t:b:d:m:sa")) != -1) switch (c) {
      case 't': threads = atoi(optarg); break;
      case 'b': mib = atoi(optarg); break;
      case 'd':
        type = !strcmp(optarg, "bf16")   ? Type::bf16
               : !strcmp(optarg, "fp16") ? Type::f16
                                         : Type::f32;
        break;
      case 'm': mode = optarg; break;
      case 's': sync = true; break;
      case 'a': alloc = true; break;
      default: return 2;
    }
  if (argc - optind != 2) return 2;
  std::ifstream plan(argv[optind]);
  std::vector<int> files;
  std::vector<Extent> ext;
  uint64_t total = 0, base = 0;
  for (std::string k, path; plan >> k;) {
    if (k == "H")
      plan >> header_file >> base;
    else if (k == "T")
      plan >> total;
    else if (k == "F") {
      plan >> path;
      files.push_back(open(path.c_str(), O_RDONLY));
      if (files.back() < 0) die(path.c_str());
    } else {
      Extent e;
      plan >> e.file >> e.src >> e.n >> e.dst;
      ext.push_back(e);
    }
  }
  const uint64_t width = type == Type::f32 ? 4 : 2,
                 chunk = uint64_t(mib) << 18;  // chunk in elements
  int out = mode == "read"
                ? -1
                : open(argv[optind + 1], O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (out >= 0) {
    std::string h(base, '\0');
    std::ifstream(header_file, std::ios::binary).read(h.data(), base);
    write_all(out, h.data(), base, 0);
    if (alloc && posix_fallocate(out, 0, base + total * width))
      die("fallocate");
  }
  std::atomic<uint64_t> next{0};
  auto work = [&] {  // each thread takes destination chunks in order
    auto buf = std::make_unique_for_overwrite<uint32_t[]>(chunk);
    if (mode == "write") memset(buf.get(), 1, chunk * 4);
    for (uint64_t lo; (lo = next.fetch_add(chunk)) < total;) {
      uint64_t hi = std::min(lo + chunk, total);
      if (mode != "write") {
        auto it = std::upper_bound(
                      ext.begin(), ext.end(), lo,
                      [](uint64_t v, const Extent& e) { return v < e.dst; }) -
                  1;
        for (; it != ext.end() && it->dst < hi; ++it) {
          uint64_t a = std::max(lo, it->dst), b = std::min(hi, it->dst + it->n);
          read_all(files[it->file], (char*)(buf.get() + (a - lo)), (b - a) * 4,
                   it->src + (a - it->dst) * 4);
        }
      }
      if (out < 0) continue;
      // In-place narrowing: element i is written at byte 2i, behind the read
      // position of the same vector step.
      if (type != Type::f32) {
        alignas(64) uint16_t tmp[8192];
        auto* dst = reinterpret_cast<uint16_t*>(buf.get());
        for (uint64_t i = 0; i < hi - lo; i += 8192) {
          uint64_t n = std::min<uint64_t>(8192, hi - lo - i);
          (type == Type::bf16 ? convert_bf16 : convert_f16)(buf.get() + i, tmp,
                                                            n);
          memcpy(dst + i, tmp, n * 2);
        }
      }
      write_all(out, (char*)buf.get(), (hi - lo) * width, base + lo * width);
    }
  };
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (auto& t : pool) t.join();
  if (sync && out >= 0 && fsync(out)) die("fsync");
  double s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - t0)
          .count();
  printf("%s %.3f s, %.2f GB/s of masters\n", mode.c_str(), s,
         total * 4 / s / 1e9);
}
