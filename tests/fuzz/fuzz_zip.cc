// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes are an Error or a directory whose entries lie in the file, one
// after the other.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "reader/zip_directory.h"
#include "support/memory_source.h"
#include "zckpt/error.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void look_up(const zckpt::ZipDirectory& directory, uint64_t file_size) {
  uint64_t end = 0;
  zckpt::ZipWindow window;
  for (const zckpt::ZipEntry& entry : directory.entries()) {
    require(directory.find(entry.name) == &entry);
    require(entry.header_offset >= end);
    end = entry.header_offset;
    try {
      const uint64_t offset = directory.payload_offset(entry, &window);
      require(offset == directory.payload_offset(entry));
      require(offset > end && offset <= file_size);
      require(entry.size <= file_size - offset);
      end = offset + entry.size;
      require(directory.read(entry, 1 << 20).size() == entry.size);
    } catch (const zckpt::Error& error) {
      require(error.code() != zckpt::ErrorCode::Internal);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const zckpt::test::MemorySource source(
      std::string(reinterpret_cast<const char*>(data), size));
  try {
    const zckpt::ZipDirectory directory(source);
    look_up(directory, size);
    require(zckpt::has_zip_end(source));
  } catch (const zckpt::Error& error) {
    require(error.code() != zckpt::ErrorCode::Internal);
    require(error.file() == "memory" && error.offset().has_value());
  }
  return 0;
}
