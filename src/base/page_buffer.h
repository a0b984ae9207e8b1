// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace zckpt {

// PageBuffer is memory that begins at a page: where a read from a page of a
// file to such an address is copied out of the page cache, the kernel needs
// half the time of any other (docs/performance.md).
class PageBuffer {
 public:
  static constexpr uint64_t kPage = 4096;

  PageBuffer() = default;
  explicit PageBuffer(size_t size) { reserve(size); }

  // Room for `size` bytes; what was in it is lost where it grows.
  void reserve(size_t size) {
    if (size <= size_) return;
    bytes_.reset();
    bytes_.reset(static_cast<std::byte*>(
        ::operator new (size, std::align_val_t{kPage})));
    size_ = size;
  }
  std::span<std::byte> first(size_t size) { return {bytes_.get(), size}; }
  std::byte* data() { return bytes_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const {
      ::operator delete (bytes, std::align_val_t{kPage});
    }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  size_t size_ = 0;
};

}  // namespace zckpt
