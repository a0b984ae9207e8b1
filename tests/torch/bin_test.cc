// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// The .bin files that merge writes, read by libtorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "support/checkpoint_tools.h"
#include "torch/libtorch_file.h"
#include "torch/zero_cases.h"
#include "zckpt/merge.h"
#include "zckpt/torch.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;
using test::identical;
using test::LibtorchFile;
using test::TempFolder;
using test::truth_of;
using test::zero_case;
using test::zero_cases;
using test::ZeroCase;
using test::ZeroTruth;

using Weights = std::map<std::string, at::Tensor>;

MergeResult write(const ZeroCase& one, MergeOptions options) {
  options.format = WeightFormat::Bin;
  options.sync = false;
  options.force = true;
  return merge(one.checkpoint(), options);
}

// A dict of tensors alone: no tuple, no object.
Weights read(const std::string& path) {
  LibtorchFile file(path);
  const c10::IValue root = file.unpickle();
  Weights weights;
  for (const auto& item : root.toGenericDict()) {
    weights[item.key().toStringRef()] = item.value().toTensor();
  }
  return weights;
}

void expect_truth(const Weights& weights, const ZeroTruth& truth,
                  std::optional<DType> dtype) {
  EXPECT_EQ(weights.size(), truth.tensors.size());
  for (const auto& [name, tensor] : truth.tensors) {
    ASSERT_TRUE(weights.contains(name)) << name;
    const at::Tensor want = dtype && tensor.is_floating_point()
                                ? tensor.to(to_scalar_type(*dtype))
                                : tensor;
    EXPECT_TRUE(identical(weights.at(name), want)) << name;
    EXPECT_TRUE(weights.at(name).is_contiguous()) << name;
    EXPECT_FALSE(weights.at(name).requires_grad()) << name;
  }
  for (const auto& [alias, kept] : truth.aliases) {
    if (weights.at(kept).numel() == 0) continue;  // lies nowhere
    EXPECT_TRUE(weights.at(alias).is_alias_of(weights.at(kept))) << alias;
  }
}

constexpr std::optional<DType> kDtypes[] = {DType::F32, DType::BF16, DType::F16,
                                            std::nullopt};

TEST(TorchBin, EveryCaseInEveryDtype) {
  const TempFolder folder;
  size_t written = 0;
  for (const ZeroCase& one : zero_cases()) {
    SCOPED_TRACE(one.name);
    const ZeroTruth truth = truth_of(one);
    for (const std::optional<DType> dtype : kDtypes) {
      write(one, {.dtype = dtype, .output = folder / "out"});
      expect_truth(read(folder / "out/pytorch_model.bin"), truth, dtype);
      ++written;
    }
  }
  EXPECT_GT(written, 4 * 60U);
}

TEST(TorchBin, EveryStorageIsStoredOnce) {
  const TempFolder folder;
  for (const char* name : {"v0.19.8-z2-bf16-n2", "v0.19.8-z3-bf16-n2-empty",
                           "v0.19.8-z3-bf16-n2"}) {
    if (!fs::exists(zero_case(name).checkpoint())) continue;
    write(zero_case(name), {.output = folder / "out"});
    const std::string path = folder / "out/pytorch_model.bin";
    std::set<const void*> storages;
    uint64_t bytes = 0;
    for (const auto& [tensor, value] : read(path)) {
      EXPECT_EQ(value.storage().nbytes(), value.nbytes()) << tensor;
      if (storages.insert(value.storage().unsafeGetStorageImpl()).second) {
        bytes += value.nbytes();
      }
    }
    LibtorchFile file(path);
    uint64_t stored = 0;
    size_t records = 0;
    for (const std::string& record : file.records()) {
      if (!record.starts_with("data/")) continue;
      stored += file.bytes(record).size();
      ++records;
    }
    EXPECT_EQ(stored, bytes);
    EXPECT_EQ(records, storages.size());
  }
}

TEST(TorchBin, ShardsTogetherAreTheWhole) {
  const TempFolder folder;
  const ZeroCase one = zero_case("v0.19.8-z2-bf16-n2");
  for (const uint64_t size : {1U, 700U, 2000U}) {
    write(one, {.max_shard_bytes = size, .output = folder / "out"});
    Weights all;
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder / "out")) {
      if (entry.path().extension() != ".bin") continue;
      ++files;
      for (const auto& [name, tensor] : read(entry.path().string())) {
        EXPECT_TRUE(all.emplace(name, tensor).second) << name;
      }
    }
    EXPECT_GT(files, 2U);
    expect_truth(all, truth_of(one), DType::F32);
  }
}

TEST(TorchBin, CopiedAliasesAreTensorsOfTheirOwn) {
  const TempFolder folder;
  const ZeroCase one = zero_case("v0.19.8-z3-bf16-n2");
  write(one, {.aliases = Aliases::Copy, .output = folder / "out"});
  const Weights weights = read(folder / "out/pytorch_model.bin");
  ZeroTruth truth = truth_of(one);
  ASSERT_FALSE(truth.aliases.empty());
  for (const auto& [alias, kept] : truth.aliases) {
    EXPECT_FALSE(weights.at(alias).is_alias_of(weights.at(kept)));
  }
  truth.aliases.clear();
  expect_truth(weights, truth, DType::F32);
}

// What older readers of libtorch look for, too.
TEST(TorchBin, RecordsAreThoseOfTorchSave) {
  const TempFolder folder;
  write(zero_case("v0.19.8-z3-bf16-n2"), {.output = folder / "out"});
  LibtorchFile file(folder / "out/pytorch_model.bin");
  for (const char* record : {"data.pkl", "version", "byteorder", "data/0"}) {
    EXPECT_TRUE(file.has(record)) << record;
  }
  EXPECT_EQ(file.bytes("byteorder"), "little");
  EXPECT_EQ(file.bytes("version").substr(0, 1), "3");
}

}  // namespace
}  // namespace zckpt
