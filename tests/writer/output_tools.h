// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "writer/output.h"
#include "zckpt/error.h"

namespace zckpt {

namespace fs = std::filesystem;

// What lies below a folder: paths within it and contents, "/" for a folder.
using Tree = std::map<std::string, std::string>;

inline std::string read_all(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline void write_all(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline Tree tree_of(const fs::path& folder) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    tree[entry.path().lexically_relative(folder).string()] =
        entry.is_directory() ? "/" : read_all(entry.path());
  }
  return tree;
}

inline void make_tree(const fs::path& folder, const Tree& tree) {
  fs::create_directories(folder);
  for (const auto& [name, text] : tree) {
    if (text == "/") {
      fs::create_directories(folder / name);
    } else {
      write_all(folder / name, text);
    }
  }
}

inline size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       fs::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

inline void write_text(Output::File& file, const std::string& text) {
  file.write_at(0, std::as_bytes(std::span(text)));
}

// One run: every file of `files`, and the commit.
inline void write_files(Output& output, const Tree& files) {
  for (const auto& [name, text] : files) {
    write_text(output.create(name, text.size()), text);
  }
  output.commit();
}

// The error of `body`; a failure of the test where there is none.
inline Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::Internal, "no error"};
}

// A fresh folder for each test, and the same number of open files after it.
class OutputTestBase : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "zckpt-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = fs::canonical(pattern);
    out_ = (folder_ / "out").string();
    descriptors_ = open_descriptors();
  }
  void TearDown() override {
    EXPECT_EQ(open_descriptors(), descriptors_);
    fs::remove_all(folder_);
  }

  fs::path folder_;
  std::string out_;
  const Tree old_{{"model.safetensors", "old"},
                  {"config.json", "old config"},
                  {"extra", "/"},
                  {"extra/deep.txt", "deep"}};
  const Tree new_{{"model.safetensors", "the new one"},
                  {"extra", "a file now"},
                  {"empty", ""}};

 private:
  size_t descriptors_ = 0;
};

}  // namespace zckpt
