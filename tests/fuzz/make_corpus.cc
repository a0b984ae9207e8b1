// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// make_corpus FOLDER writes the seeds of every fuzz target, FOLDER/<target>/.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "support/pickle_builder.h"
#include "support/torch_archive.h"

namespace {

using zckpt::DType;
using zckpt::test::pickle;
using zckpt::test::Py;
using zckpt::test::TorchArchive;

namespace fs = std::filesystem;

class Folder {
 public:
  Folder(const fs::path& root, const char* target) : path_(root / target) {
    fs::create_directories(path_);
  }
  void write(const char* name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

 private:
  fs::path path_;
};

// What a model file of DeepSpeed holds, in miniature.
TorchArchive model_states() {
  TorchArchive archive("mp_rank_00_model_states");
  const Py weight =
      archive.tensor(DType::BF16, {2, 2}, std::vector<uint16_t>{1, 2, 3, 4});
  const Py scale = archive.tensor(DType::F8E4M3, {4}, "8888");
  const Py empty = archive.tensor(DType::F32, {0}, "");
  Py module = Py::ordered_dict({{"a.weight", weight}, {"b.weight", empty}});
  archive.set_root(Py::dict(
      {{"module",
        Py::with_state(module, Py::dict({{"_metadata", Py::ordered_dict()}}))},
       {"param_shapes",
        Py::list({Py::ordered_dict({{"a.weight", Py::size({2, 2})}})})},
       {"attributes",
        Py::tensor_with(Py::tensor(DType::BF16, {2}, "0", 1), {{"ds_id", 7}})},
       {"parameter", Py::parameter(scale)},
       {"names", Py::set({"x", "y"})},
       {"scaler", Py::object("deepspeed.runtime.fp16.loss_scaler", "LossScaler",
                             {{"cur_scale", 1.0}})},
       {"bytes", Py::bytes("\x01\xff")},
       {"steps",
        Py::tuple({1, 300, 70000, int64_t{1} << 40, -1, true, nullptr})}}));
  return archive;
}

void write_archives(const Folder& folder) {
  folder.write("plain", model_states().bytes());
  TorchArchive old = model_states();
  old.drop("byteorder").drop(".format_version").drop(".storage_alignment");
  old.drop(".data/serialization_id").end().zip64 = false;
  folder.write("old", old.bytes());
  TorchArchive wide = model_states();
  wide.use_zip64("data/0").record("data/1").wide_descriptor = true;
  wide.end().sentinels = true;
  wide.end().comment = "comment";
  folder.write("zip64", wide.bytes());
  // Where the pickle has a CRC, a fuzzer cannot change it.
  folder.write("no_crc",
               model_states().no_crc("data.pkl").no_crc("data/0").bytes());
  folder.write("overlap", model_states().overlap("data/1").bytes());
  folder.write("swapped",
               model_states().swap_names("data/0", "data/1").bytes());
  const std::string bytes = model_states().bytes();
  folder.write("torn", bytes.substr(0, bytes.size() / 2));
}

std::string safetensors(const std::string& header, size_t data_bytes) {
  std::string length(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(length.data(), &size, 8);
  return length + header + std::string(data_bytes, 'd');
}

void write_safetensors(const Folder& folder) {
  folder.write("empty", safetensors("{}", 0));
  folder.write(
      "two",
      safetensors(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32",)"
                  R"("shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16",)"
                  R"("shape":[],"data_offsets":[8,10]},"c":{"dtype":"U8",)"
                  R"("shape":[0,3],"data_offsets":[10,10]}}   )",
                  10));
  folder.write("overlap",
               safetensors(R"({"a":{"dtype":"U8","shape":[4],)"
                           R"("data_offsets":[0,4]},"b":{"dtype":"U8",)"
                           R"("shape":[4],"data_offsets":[2,6]}})",
                           6));
  folder.write("deep", safetensors(R"({"a":{"shape":[[[[[[[[)", 0));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_corpus FOLDER\n";
    return 2;
  }
  const fs::path root(argv[1]);
  write_archives(Folder(root, "zip"));
  const Folder torch(root, "torch_file");
  write_archives(torch);
  torch.write("legacy", model_states().legacy_bytes());
  write_safetensors(Folder(root, "safetensors"));
  const Folder pickles(root, "pickle");
  pickles.write("model_states", model_states().record("data.pkl").bytes);
  pickles.write("none", pickle(Py()));
  return 0;
}
