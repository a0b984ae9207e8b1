// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace zckpt::test {

struct StoredTensor {
  std::string dtype;  // as in the header: "F32", "BF16", ...
  std::vector<uint64_t> shape;
  std::string bytes;

  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

// Weights as any safetensors reader would see them; written for tests alone
// and sharing nothing with src/.
struct StoredWeights {
  std::map<std::string, StoredTensor> tensors;
  // Of the file, or of the index where there are several.
  std::map<std::string, std::string> metadata;
  uint64_t total_size = 0;                     // of the index
  uint64_t total_parameters = 0;               // of the index
  std::map<std::string, std::string> file_of;  // tensor -> file name
};

// One file. Throws std::runtime_error unless the data are covered exactly
// once, the header is padded to 8 bytes and every length fits.
StoredWeights read_stored_file(const std::string& path);

// The bytes of a file with these tensors, in the order of their names.
std::string stored_file(const std::map<std::string, StoredTensor>& tensors);

// A folder with model.safetensors, or with an index and its shards; nothing
// else may be in it.
StoredWeights read_stored_folder(const std::string& path);

}  // namespace zckpt::test
