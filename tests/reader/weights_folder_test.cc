// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/zero_partitions.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

struct Stored {
  std::string name;
  std::string dtype;
  std::string shape;
  std::string bytes;
};

// A safetensors file.
std::string safetensors(const std::vector<Stored>& tensors,
                        const std::string& metadata = "") {
  std::string header = "{";
  std::string data;
  if (!metadata.empty()) header += "\"__metadata__\":" + metadata + ",";
  for (const Stored& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":" + tensor.shape + ",\"data_offsets\":[" +
              std::to_string(begin) + "," + std::to_string(data.size()) + "]},";
  }
  header.back() = '}';
  header.resize(divide_up(header.size(), 8) * 8, ' ');
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(header.size() >> (8 * i));
  }
  return bytes + header + data;
}

class WeightsFolder : public testing::Test {
 protected:
  void file(const std::string& name, const std::string& bytes) const {
    write_bytes(folder_ / ("w/" + name), bytes);
  }
  Checkpoint open() const { return Checkpoint::open(folder_ / "w"); }
  std::string read(const Checkpoint& checkpoint,
                   const std::string& name) const {
    const Tensor* tensor = checkpoint.find(name);
    return tensor == nullptr ? "no tensor" : read_tensor(checkpoint, *tensor);
  }
  void refuse(const std::string& part, const std::string& file_name) const {
    const auto error = caught([&] { open(); });
    ASSERT_TRUE(error) << part;
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos)
        << error->what();
    EXPECT_NE(error->file().find(file_name), std::string::npos)
        << error->what();
  }
  static std::string index(const std::string& map,
                           const std::string& metadata = "{}") {
    return "{\"metadata\":" + metadata + ",\"weight_map\":" + map + "}";
  }
  const std::string a_ = safetensors({{"a", "F32", "[2]", "AAAABBBB"}});
  const std::string b_ = safetensors(
      {{"b", "BF16", "[1,3]", "CCDDEE"}, {"n", "I64", "[]", "12345678"}});

  TempFolder folder_;
};

TEST_F(WeightsFolder, ReadsOneFile) {
  file("model.safetensors",
       safetensors({{"a", "F32", "[2]", "AAAABBBB"}, {"e", "F16", "[0,4]", ""}},
                   R"({"format":"pt","tied":"a"})"));
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.facts().framework, "weights");
  EXPECT_EQ(read(checkpoint, "a"), "AAAABBBB");
  EXPECT_EQ(read(checkpoint, "e"), "");
  EXPECT_EQ(checkpoint.find("a")->role, Role::Model);
  EXPECT_EQ(checkpoint.facts().aliases,
            (std::vector<std::pair<std::string, std::string>>{{"tied", "a"}}));
}

TEST_F(WeightsFolder, ReadsShards) {
  file("model-1.safetensors", a_);
  file("model-2.safetensors", b_);
  file("model.safetensors.index.json",
       index(R"({"a":"model-1.safetensors","b":"model-2.safetensors",
                 "n":"model-2.safetensors"})",
             R"({"total_size":22,"tied":"b"})"));
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.tensors().size(), 3);
  EXPECT_EQ(read(checkpoint, "a"), "AAAABBBB");
  EXPECT_EQ(read(checkpoint, "b"), "CCDDEE");
  EXPECT_EQ(read(checkpoint, "n"), "12345678");
  EXPECT_EQ(checkpoint.facts().aliases.size(), 1);
}

TEST_F(WeightsFolder, RefusesAnIndexWhoseFileLacksTheTensor) {
  file("model-1.safetensors", a_);
  file("model.safetensors.index.json",
       index(R"({"other":"model-1.safetensors"})"));
  refuse("which does not hold it", "index.json");
}

TEST_F(WeightsFolder, RefusesHostileIndexes) {
  file("model-1.safetensors", a_);
  file("secret.safetensors", a_);
  for (const char* name :
       {"../model-1.safetensors", "/etc/passwd.safetensors", "x/y.safetensors",
        "..", "", "model-1.bin", "c:model-1.safetensors", "x\\\\y.safetensors",
        "model-1.safetensors\\u0000.safetensors"}) {
    file("model.safetensors.index.json",
         index("{\"a\":\"" + std::string(name) + "\"}"));
    refuse("no plain *.safetensors name", "index.json");
  }
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":)"}) {
    file("model.safetensors.index.json", text);
    refuse("weight_map", "index.json");
  }
  file("model.safetensors.index.json", index(R"({"a":7})"));
  refuse("is no string", "index.json");
  file("model.safetensors.index.json", std::string(100'000, '['));
  refuse("weight_map", "index.json");
}

TEST_F(WeightsFolder, RefusesIndexesThatContradictTheirFiles) {
  file("model-1.safetensors", a_);
  file("model-2.safetensors", b_);
  file("model.safetensors.index.json",
       index(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})"));
  refuse("expects 1 tensor here, found 2", "model-2.safetensors");
  file("model.safetensors.index.json", index(R"({"x":"model-1.safetensors"})"));
  refuse("list", "index.json");
  file("model.safetensors.index.json", index(R"({"a":"model-3.safetensors"})"));
  refuse("model-3.safetensors", "model-3.safetensors");
}

TEST_F(WeightsFolder, RefusesADamagedFile) {
  file("model.safetensors", a_.substr(0, a_.size() - 1));
  refuse("", "model.safetensors");
  const auto checked = check_folder(folder_ / "w");
  EXPECT_FALSE(checked.checkpoint);
  ASSERT_EQ(checked.findings.size(), 1);
  EXPECT_EQ(checked.findings[0].file, "model.safetensors");
  EXPECT_EQ(checked.findings[0].severity, Severity::Error);
}

// -- .bin

class BinFolder : public WeightsFolder {
 protected:
  static std::string bin(const std::function<Py(TorchArchive&)>& make) {
    TorchArchive archive("pytorch_model");
    archive.set_root(make(archive));
    return archive.bytes();
  }
};

TEST_F(BinFolder, ReadsTiedNames) {
  const auto make = [](TorchArchive& archive) {
    const Py kept =
        archive.tensor(DType::F32, {2, 2}, std::vector<float>{1, 2, 3, 4});
    const Py turned = Py::tensor(DType::F32, {2, 2}, "0", 0, Py::Shape{1, 2});
    return Py::dict({{"kept", kept},
                     {"tied", kept},
                     {"turned", turned},
                     {"empty", archive.tensor(DType::F32, {0}, "")},
                     {"empty2", archive.tensor(DType::F32, {0}, "")},
                     {"version", 7}});
  };
  for (const bool sharded : {false, true}) {
    if (sharded) {
      fs::remove_all(folder_ / "w");
      file("part.bin", bin(make));
      file("pytorch_model.bin.index.json",
           index(R"({"kept":"part.bin","tied":"part.bin","turned":"part.bin",
                     "empty":"part.bin","empty2":"part.bin"})"));
    } else {
      file("pytorch_model.bin", bin(make));
    }
    const Checkpoint checkpoint = open();
    EXPECT_EQ(
        checkpoint.facts().aliases,
        (std::vector<std::pair<std::string, std::string>>{{"tied", "kept"}}));
    EXPECT_EQ(read(checkpoint, "kept"), encode(DType::F32, {1, 2, 3, 4}));
    // The same bytes read the other way are another tensor.
    EXPECT_EQ(read(checkpoint, "turned"), encode(DType::F32, {1, 3, 2, 4}));
    EXPECT_NE(checkpoint.find("empty2"), nullptr);
  }
}

TEST_F(BinFolder, RefusesWhatIsNoDict) {
  file("pytorch_model.bin", bin([](TorchArchive&) { return Py::list({1}); }));
  refuse("expected a dict of tensors", "pytorch_model.bin");
}

TEST_F(BinFolder, RefusesADanglingTensor) {
  file("pytorch_model.bin", bin([](TorchArchive&) {
         return Py::dict({{"w", Py::tensor(DType::F32, {2}, "9")}});
       }));
  refuse("storage 9", "pytorch_model.bin");
}

// -- Checkpoint itself

TEST_F(WeightsFolder, ReadsRangesOnly) {
  file("model.safetensors", a_);
  const Checkpoint checkpoint = open();
  const Tensor& tensor = *checkpoint.find("a");
  std::vector<std::byte> out(8);
  expect_error(ErrorCode::Invalid, {}, "within the tensor",
               [&] { checkpoint.read(tensor, 1, 2, out); });
  expect_error(ErrorCode::Invalid, {}, "within the tensor",
               [&] { checkpoint.read(tensor, 3, 0, {}); });
  expect_error(ErrorCode::Invalid, {}, "not as long",
               [&] { checkpoint.read(tensor, 0, 1, out); });
  const Tensor stranger = tensor;
  expect_error(ErrorCode::Invalid, {}, "within the tensor",
               [&] { checkpoint.read(stranger, 0, 2, out); });
}

}  // namespace
}  // namespace zckpt::test
