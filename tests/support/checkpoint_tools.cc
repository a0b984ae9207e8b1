// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "support/checkpoint_tools.h"

#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace zckpt::test {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "zckpt-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("no temporary folder");
  }
  path_ = fs::canonical(pattern);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string read_bytes(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  if (!(stream << bytes).flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

void truncate_file(const fs::path& path, uint64_t size) {
  fs::resize_file(path, size);
}

void flip_byte(const fs::path& path, uint64_t offset) {
  std::string bytes = read_bytes(path);
  bytes.at(offset) = static_cast<char>(bytes.at(offset) ^ 0x20);
  write_bytes(path, bytes);
}

void swap_files(const fs::path& a, const fs::path& b) {
  const std::string bytes = read_bytes(a);
  write_bytes(a, read_bytes(b));
  write_bytes(b, bytes);
}

std::string read_tensor(const Checkpoint& checkpoint, const Tensor& tensor) {
  std::string bytes(tensor.numel * size_of(tensor.dtype), '\0');
  checkpoint.read(tensor, 0, tensor.numel,
                  std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void expect_truth(const Checkpoint& checkpoint,
                  const std::vector<Truth>& truth) {
  for (const Truth& expected : truth) {
    SCOPED_TRACE(expected.name + " " + std::string(to_string(expected.role)) +
                 " " + expected.state);
    const Tensor* tensor =
        checkpoint.find(expected.name, expected.role, expected.state);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->dtype, expected.dtype);
    EXPECT_EQ(tensor->shape, expected.shape);
    EXPECT_TRUE(read_tensor(checkpoint, *tensor) == expected.bytes);
  }
  for (const Tensor& tensor : checkpoint.tensors()) {
    const auto known =
        std::find_if(truth.begin(), truth.end(), [&](const Truth& expected) {
          // Stage 2 keeps frozen weights in two places.
          const bool copy =
              tensor.role == Role::Model && expected.role == Role::Frozen;
          return expected.name == tensor.name &&
                 (expected.role == tensor.role || copy) &&
                 expected.state == tensor.state;
        });
    ASSERT_NE(known, truth.end()) << tensor.name << " is one too many";
    EXPECT_TRUE(read_tensor(checkpoint, tensor) == known->bytes) << tensor.name;
  }
}

CheckedCheckpoint check_folder(const std::string& path,
                               const OpenOptions& options) {
  return check_for_merge(find_checkpoints(path, options).front(), options);
}

std::string describe(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += std::string(to_string(finding.severity)) + " " + finding.code;
    if (!finding.file.empty()) text += " " + finding.file;
    if (finding.rank) text += " rank " + std::to_string(*finding.rank);
    if (!finding.tensor.empty()) text += " tensor " + finding.tensor;
    text += ": " + finding.message + "\n";
  }
  return text;
}

}  // namespace zckpt::test
