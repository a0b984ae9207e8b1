// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "reader/discovery.h"
#include "support/zero_checkpoint.h"
#include "verify/checks.h"
#include "zckpt/checkpoint.h"
#include "zckpt/finding.h"

namespace zckpt::test {

// A folder that is gone after the test.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

std::string read_bytes(const std::filesystem::path& path);
void write_bytes(const std::filesystem::path& path, const std::string& bytes);
// Damage to a file on the disk.
void truncate_file(const std::filesystem::path& path, uint64_t size);
void flip_byte(const std::filesystem::path& path, uint64_t offset);
void swap_files(const std::filesystem::path& a, const std::filesystem::path& b);

// All of one tensor.
std::string read_tensor(const Checkpoint& checkpoint, const Tensor& tensor);
// Expects every tensor of `truth`, and no other one, bit for bit.
void expect_truth(const Checkpoint& checkpoint,
                  const std::vector<Truth>& truth);

// A written checkpoint and what the checks say of it.
CheckedCheckpoint check_folder(const std::string& path,
                               const OpenOptions& options = {});
// "error optim-shard-missing global_step3/... rank 1", one line each, for
// failures of tests.
std::string describe(const std::vector<Finding>& findings);

}  // namespace zckpt::test
