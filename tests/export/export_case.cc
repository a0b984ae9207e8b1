// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/export_case.h"

#include <cstring>

#include "support/caught.h"

namespace zckpt::test {

namespace fs = std::filesystem;

StoredTensor floats_of(const std::vector<uint64_t>& shape,
                       const std::vector<float>& values) {
  StoredTensor tensor{.dtype = "F32", .shape = shape};
  tensor.bytes.assign(reinterpret_cast<const char*>(values.data()),
                      values.size() * sizeof(float));
  return tensor;
}

StoredTensor floats(const std::vector<uint64_t>& shape, int seed) {
  size_t count = 1;
  for (const uint64_t size : shape) count *= size;
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    const size_t mixed = (i + 1) * 2654435761U + static_cast<size_t>(seed) * 97;
    values.push_back(static_cast<float>(mixed % 2001) / 1000.0F - 1.0F);
  }
  return floats_of(shape, values);
}

std::vector<float> values_of(const StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

ExportCase::ExportCase() {
  base_["model.embed_tokens.weight"] = floats({6, 3}, 1);
  base_["model.layers.0.q.weight"] = floats({5, 3}, 2);
  base_["model.layers.0.q.bias"] = floats({5}, 3);
  base_["model.layers.0.k.weight"] = floats({3, 3}, 4);
  config_ = {{"architectures", {"TestForCausalLM"}},
             {"model_type", "test"},
             {"vocab_size", 6},
             {"tie_word_embeddings", true},
             {"torch_dtype", "float32"}};
  options_.write.output = folder_ / "out";
  options_.write.sync = false;
  path_ = folder_ / "base";
}

void ExportCase::add_factors(const std::string& module, uint64_t out,
                             uint64_t in, int seed, size_t number) {
  if (adapters_.size() <= number) adapters_.resize(number + 1);
  const std::string name = "base_model.model." + module;
  auto& tensors = adapters_[number].tensors;
  tensors[name + ".lora_A.weight"] = floats({2, in}, seed);
  tensors[name + ".lora_B.weight"] = floats({out, 2}, seed + 1);
}

void ExportCase::write() {
  fs::create_directories(folder_ / "base");
  write_bytes(folder_ / "base/config.json", config_.dump());
  write_bytes(folder_ / "base/model.safetensors", stored_file(base_));
  for (const auto& [name, bytes] : base_files_) {
    write_bytes(folder_ / ("base/" + name), bytes);
  }
  options_.adapters.resize(adapters_.size());
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const std::string folder = folder_ / ("adapter" + std::to_string(i));
    fs::create_directories(folder);
    write_bytes(folder + "/adapter_model.safetensors",
                stored_file(adapters_[i].tensors));
    write_bytes(folder + "/adapter_config.json", adapters_[i].config.dump());
    options_.adapters[i].path = folder;
  }
}

ExportResult ExportCase::run() {
  write();
  return export_hf(path_, options_);
}

Error ExportCase::refused() {
  const auto error = caught([&] { run(); });
  EXPECT_TRUE(error) << "nothing was thrown";
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  return error.value_or(Error(ErrorCode::Internal, "nothing was thrown"));
}

std::map<std::string, StoredTensor> ExportCase::written() const {
  return read_stored_file(options_.write.output + "/model.safetensors").tensors;
}

nlohmann::json ExportCase::written_config() const {
  return nlohmann::json::parse(
      read_bytes(options_.write.output + "/config.json"));
}

}  // namespace zckpt::test
