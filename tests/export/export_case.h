// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/checkpoint_tools.h"
#include "support/stored_weights.h"
#include "zckpt/error.h"
#include "zckpt/export.h"

namespace zckpt::test {

// A float32 matrix or vector whose values follow from `seed`.
StoredTensor floats(const std::vector<uint64_t>& shape, int seed);
StoredTensor floats_of(const std::vector<uint64_t>& shape,
                       const std::vector<float>& values);
std::vector<float> values_of(const StoredTensor& tensor);

// A base model and adapters, made by hand, and what export-hf does with them.
class ExportCase : public testing::Test {
 protected:
  struct AdapterFolder {
    std::map<std::string, StoredTensor> tensors;
    nlohmann::ordered_json config = {
        {"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}};
  };

  ExportCase();

  // Adds factors for a module of out x in to adapter `number`.
  void add_factors(const std::string& module, uint64_t out, uint64_t in,
                   int seed, size_t number = 0);
  // Writes folder_/base and folder_/adapter0, ... as they are.
  void write();
  ExportResult run();  // after write()
  Error refused();     // run() fails, and there is no output
  std::map<std::string, StoredTensor> written() const;
  nlohmann::json written_config() const;

  TempFolder folder_;
  std::map<std::string, StoredTensor> base_;
  nlohmann::ordered_json config_;
  std::map<std::string, std::string> base_files_;  // further files, by name
  std::vector<AdapterFolder> adapters_;
  ExportOptions options_;
  std::string path_;  // what is exported; the base
};

}  // namespace zckpt::test
