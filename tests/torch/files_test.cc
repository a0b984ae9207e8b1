// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// Every torch file under tests/fixtures, read by libtorch and by us.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "reader/tensor_view.h"
#include "reader/torch_file.h"
#include "torch/libtorch_file.h"
#include "torch/plain_pickle.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::LibtorchFile;
using test::path_to;
using test::plain_pickle;
using test::tensors_in;

std::vector<std::string> torch_files() {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(ZCKPT_FIXTURES)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() &&
        (extension == ".pt" || extension == ".bin" || extension == ".pth" ||
         extension == ".ckpt")) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read(const FileSource& source, uint64_t offset, uint64_t size) {
  std::string bytes(size, '\0');
  source.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Legacy files, of torch < 1.6 or by request, are none of libtorch's.
bool is_zip(const std::string& path) {
  const FileSource source(path);
  return read(source, 0, 4) == "PK\x03\x04";
}

// ---- our reading of a tensor, gathered by hand ----

struct Ours {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

class Collector {
 public:
  explicit Collector(const std::string& path)
      : source_(path), file_(TorchFile::open(source_)) {
    walk(file_.root(), "");
  }
  const std::map<std::string, Ours>& tensors() const { return tensors_; }
  const TorchFile& file() const { return file_; }
  const FileSource& source() const { return source_; }

 private:
  // The paths of test::tensors_in over a plain_pickle.
  void walk(const Value& value, const std::string& path) {
    if (const auto view = view_of(file_, value)) {
      tensors_[path] = gathered(*view);
      return;
    }
    std::string place = path;
    if (const std::optional<Value> state = value.state()) {
      walk(*state, path_to(path, "1"));
      place = path_to(path, "0");
    }
    if (value.is_mapping()) {
      for (size_t i = 0; i < value.size(); ++i) {
        const Value key = value.key(i);
        if (const auto text = key.string()) {
          walk(value.value(i), path_to(place, std::string(*text)));
        } else if (const auto number = key.integer()) {
          walk(value.value(i), path_to(place, std::to_string(*number)));
        }
      }
    } else if (value.is_sequence()) {
      for (size_t i = 0; i < value.size(); ++i) {
        walk(value.item(i), path_to(place, std::to_string(i)));
      }
    }
  }

  Ours gathered(const TensorView& view) const {
    Ours ours{.dtype = std::string(torch_name(view.dtype)),
              .shape = view.shape,
              .bytes = {}};
    if (view.numel > 0) gather(view, 0, view.offset, ours.bytes);
    return ours;
  }
  void gather(const TensorView& view, size_t axis, uint64_t offset,
              std::string& out) const {
    const uint64_t size = size_of(view.dtype);
    if (axis == view.shape.size()) {
      out += read(source_, offset, size);
      return;
    }
    for (uint64_t i = 0; i < view.shape[axis]; ++i) {
      gather(view, axis + 1, offset + i * view.stride[axis] * size, out);
    }
  }

  FileSource source_;
  TorchFile file_;
  std::map<std::string, Ours> tensors_;
};

// ---- the tests ----

TEST(TorchFiles, RecordsAreTheSameBytes) {
  size_t compared = 0;
  size_t legacy = 0;
  for (const std::string& path : torch_files()) {
    SCOPED_TRACE(path);
    const FileSource source(path);
    const TorchFile ours = TorchFile::open(source);
    EXPECT_EQ(ours.is_legacy(), !is_zip(path));
    if (ours.is_legacy()) {
      EXPECT_THROW(LibtorchFile{path}, c10::Error);
      ++legacy;
      continue;
    }
    LibtorchFile theirs(path);
    EXPECT_EQ(theirs.bytes("data.pkl"), ours.pickle().bytes());
    std::vector<std::string> keys;
    for (const std::string& record : theirs.records()) {
      if (record.starts_with("data/")) keys.push_back(record.substr(5));
    }
    EXPECT_EQ(keys.size(), ours.storages().size());
    for (const std::string& key : keys) {
      const auto index = ours.find_storage(key);
      ASSERT_TRUE(index) << key;
      const StorageRecord& storage = ours.storages()[*index];
      EXPECT_TRUE(theirs.bytes("data/" + key) ==
                  read(source, storage.offset, storage.size_bytes))
          << key;
    }
    ++compared;
  }
  RecordProperty("compared", std::to_string(compared));
  RecordProperty("legacy", std::to_string(legacy));
  EXPECT_GT(compared, 850U);
  EXPECT_LT(legacy, 20U);
}

TEST(TorchFiles, TensorsAreThoseThatLibtorchMakes) {
  size_t files = 0;
  size_t tensors = 0;
  for (const std::string& path : torch_files()) {
    if (!is_zip(path)) continue;
    SCOPED_TRACE(path);
    LibtorchFile file(path);
    const std::map<std::string, at::Tensor> theirs =
        tensors_in(file.unpickle(plain_pickle(file.bytes("data.pkl"))));
    const Collector ours(path);
    EXPECT_EQ(ours.tensors().size(), theirs.size());
    for (const auto& [name, tensor] : theirs) {
      ASSERT_TRUE(ours.tensors().contains(name)) << name;
      const Ours& found = ours.tensors().at(name);
      EXPECT_EQ(found.dtype, c10::getDtypeNames(tensor.scalar_type()).first);
      EXPECT_EQ(found.shape, (std::vector<uint64_t>(tensor.sizes().begin(),
                                                    tensor.sizes().end())));
      EXPECT_TRUE(found.bytes == bytes_of(tensor)) << name;
      ++tensors;
    }
    ++files;
  }
  RecordProperty("files", std::to_string(files));
  RecordProperty("tensors", std::to_string(tensors));
  EXPECT_GT(files, 850U);
  EXPECT_GT(tensors, 6000U);
}

// What it reads without help, it reads alike: the help is no part of it.
TEST(TorchFiles, PlainPicklesSayTheSame) {
  size_t readable = 0;
  for (const std::string& path : torch_files()) {
    if (!is_zip(path)) continue;
    SCOPED_TRACE(path);
    LibtorchFile file(path);
    std::map<std::string, at::Tensor> as_it_is;
    try {
      as_it_is = tensors_in(file.unpickle());
    } catch (const c10::Error&) {
      continue;  // for the reasons in plain_pickle.h
    }
    ++readable;
    const std::map<std::string, at::Tensor> plain =
        tensors_in(file.unpickle(plain_pickle(file.bytes("data.pkl"))));
    for (const auto& [name, tensor] : as_it_is) {
      ASSERT_TRUE(plain.contains(name)) << name;
      EXPECT_TRUE(bytes_of(plain.at(name)) == bytes_of(tensor)) << name;
    }
  }
  EXPECT_GT(readable, 400U);
}

}  // namespace
}  // namespace zckpt
