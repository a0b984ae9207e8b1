// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "zckpt/dtype.h"

namespace zckpt {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::F32;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t size_bytes = 0;
};

// The validated header of a safetensors file (docs/format.md).
struct SafetensorsFile {
  std::vector<SafetensorsEntry> entries;  // in order of offset
  std::vector<std::pair<std::string, std::string>> metadata;
  uint64_t header_bytes = 0;  // length field and header: where data begins
};

// Errors: Corrupt with offset and tensor for every rule that docs/format.md
// lists (header length, first byte, duplicate keys, overlaps, gaps, sizes that
// are not shape x dtype, trailing bytes), Unsupported for unknown dtypes, Limit
// for a header above 100 MB.
SafetensorsFile read_safetensors_header(const ByteSource& source);

}  // namespace zckpt
