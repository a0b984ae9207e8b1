// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/zero_cases.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/stored_weights.h"
#include "torch/libtorch_file.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

at::ScalarType type_of(const std::string& dtype) {
  static const std::map<std::string, at::ScalarType> kTypes{
      {"F32", at::kFloat},  {"BF16", at::kBFloat16}, {"F16", at::kHalf},
      {"F64", at::kDouble}, {"I64", at::kLong},      {"I32", at::kInt},
      {"U8", at::kByte},    {"BOOL", at::kBool}};
  return kTypes.at(dtype);
}

at::Tensor tensor_of(const StoredTensor& stored) {
  const std::vector<int64_t> shape(stored.shape.begin(), stored.shape.end());
  const at::Tensor tensor =
      at::empty(shape, at::TensorOptions().dtype(type_of(stored.dtype)));
  if (tensor.nbytes() != stored.bytes.size()) {
    throw std::runtime_error("a truth of another size");
  }
  if (!stored.bytes.empty()) {
    std::memcpy(tensor.mutable_data_ptr(), stored.bytes.data(),
                stored.bytes.size());
  }
  return tensor;
}

}  // namespace

std::vector<ZeroCase> zero_cases() {
  std::vector<ZeroCase> cases;
  for (const auto& entry :
       fs::directory_iterator(fs::path(ZCKPT_FIXTURES) / "zero")) {
    std::ifstream file(entry.path() / "case.json");
    if (!file) continue;
    const Json recipe = Json::parse(file).at("recipe");
    if (recipe.contains("grid") || recipe.contains("save")) continue;
    cases.push_back(zero_case(entry.path().filename().string()));
  }
  std::sort(cases.begin(), cases.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return cases;
}

ZeroCase zero_case(const std::string& name) {
  return {.name = name,
          .folder = std::string(ZCKPT_FIXTURES) + "/zero/" + name};
}

ZeroTruth truth_of(const ZeroCase& one) {
  const StoredWeights stored =
      read_stored_file(one.folder + "/truth.safetensors");
  ZeroTruth truth;
  for (const auto& [name, tensor] : stored.tensors) {
    truth.tensors[name] = tensor_of(tensor);
  }
  if (stored.metadata.contains("aliases")) {
    truth.aliases = Json::parse(stored.metadata.at("aliases"))
                        .get<std::map<std::string, std::string>>();
  }
  for (const auto& [alias, kept] : truth.aliases) {
    truth.tensors[alias] = truth.tensors.at(kept);
  }
  return truth;
}

bool identical(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         bytes_of(a) == bytes_of(b);
}

}  // namespace zckpt::test
