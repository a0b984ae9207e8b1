// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes are an Error or a header whose tensors cover the file exactly.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "reader/safetensors_file.h"
#include "support/memory_source.h"
#include "zckpt/error.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const zckpt::test::MemorySource source(
      std::string(reinterpret_cast<const char*>(data), size));
  try {
    const zckpt::SafetensorsFile file = zckpt::read_safetensors_header(source);
    uint64_t expected = file.header_bytes;
    for (const zckpt::SafetensorsEntry& entry : file.entries) {
      uint64_t bytes = zckpt::size_of(entry.dtype);
      for (const uint64_t n : entry.shape) bytes *= n;
      require(entry.offset == expected && entry.size_bytes == bytes);
      expected += bytes;
    }
    require(expected == size);
  } catch (const zckpt::Error& error) {
    require(error.code() != zckpt::ErrorCode::Internal);
    require(error.file() == "memory" && error.offset().has_value());
  }
  return 0;
}
