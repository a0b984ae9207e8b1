// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/stored_weights.h"
#include "torch/libtorch_file.h"
#include "torch/zero_cases.h"
#include "zckpt/torch.h"

namespace zckpt {
namespace {

using test::bytes_of;
using test::caught;
using test::identical;
using test::StoredTensor;
using test::TempFolder;
using test::truth_of;
using test::zero_case;
using test::ZeroCase;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

using Tensors = std::map<std::string, at::Tensor>;

// A module whose children and parameters follow from dotted names.
class Net : public torch::nn::Module {
 public:
  Net() = default;
  explicit Net(const Tensors& tensors) {
    for (const auto& [name, tensor] : tensors) put(name, tensor);
  }

  void put(const std::string& name, const at::Tensor& tensor) {
    const size_t dot = name.find('.');
    if (dot != std::string::npos) {
      child(name.substr(0, dot)).put(name.substr(dot + 1), tensor);
    } else if (tensor.is_floating_point()) {
      register_parameter(name, tensor);
    } else {
      register_buffer(name, tensor);
    }
  }

 private:
  Net& child(const std::string& name) {
    for (const auto& item : named_children()) {
      if (item.key() == name) return dynamic_cast<Net&>(*item.value());
    }
    return *register_module(name, std::make_shared<Net>());
  }
};

Tensors members(const torch::nn::Module& module) {
  Tensors all;
  for (const auto& item : module.named_parameters()) {
    all[item.key()] = item.value();
  }
  for (const auto& item : module.named_buffers()) {
    all[item.key()] = item.value();
  }
  return all;
}

const ZeroCase kCase = zero_case("v0.19.8-z2-bf16-n2");

class TorchModule : public testing::Test {
 protected:
  // Zeros in the shape of the truth, the aliases left out.
  Tensors zeros(at::ScalarType type = at::kFloat) const {
    Tensors tensors;
    for (const auto& [name, tensor] : truth_) {
      if (name == "head.weight") continue;
      tensors[name] = at::zeros_like(
          tensor, tensor.is_floating_point() ? type : tensor.scalar_type());
    }
    return tensors;
  }
  // What `tensor` must hold of this weight.
  at::Tensor truth(const std::string& name, const at::Tensor& tensor) const {
    return truth_.at(name).to(tensor.scalar_type());
  }
  void expect_loaded(const torch::nn::Module& module) const {
    for (const auto& [name, tensor] : members(module)) {
      EXPECT_TRUE(identical(tensor, truth(name, tensor))) << name;
    }
  }
  // Throws, says all of `parts`, and changes nothing.
  void expect_refused(torch::nn::Module& module, const ModuleOptions& options,
                      const std::vector<std::string>& parts) const {
    std::map<std::string, std::string> before;
    for (const auto& [name, t] : members(module)) before[name] = bytes_of(t);
    const std::optional<Error> error =
        caught([&] { load_into(module, checkpoint_, options); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::Conflict);
    for (const std::string& part : parts) {
      EXPECT_THAT(error->message(), HasSubstr(part));
    }
    for (const auto& [name, t] : members(module)) {
      EXPECT_EQ(bytes_of(t), before.at(name)) << name;
    }
  }

  const Tensors truth_ = truth_of(kCase).tensors;
  const Checkpoint checkpoint_ = open_for_load(kCase.checkpoint());
};

TEST_F(TorchModule, IsFilled) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    Net net(zeros(type));
    const LoadReport report = load_into(net, checkpoint_);
    EXPECT_TRUE(report.fits());
    EXPECT_EQ(to_string(report), "");
    EXPECT_GT(report.read.bytes_read, 0U);
    expect_loaded(net);
    for (const at::Tensor& parameter : net.parameters()) {
      EXPECT_TRUE(parameter.is_leaf());
      EXPECT_TRUE(parameter.requires_grad());
      EXPECT_EQ(parameter.scalar_type(), type);
    }
  }
}

TEST_F(TorchModule, TiedNamesCountAsOne) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"embed.weight", "head.weight"},
        {"embed.weight"},
        {"head.weight"}}) {
    Tensors tensors = zeros();
    tensors.erase("embed.weight");
    Net net(tensors);
    const at::Tensor shared = at::zeros({37, 13});
    for (const std::string& name : names) net.put(name, shared);
    EXPECT_TRUE(load_into(net, checkpoint_).fits());
    expect_loaded(net);
  }
}

// Two tensors over one storage are tied as well.
TEST_F(TorchModule, TiedByStorageAlone) {
  Tensors tensors = zeros();
  tensors["head.weight"] = tensors.at("embed.weight").detach();
  Net net(tensors);
  EXPECT_TRUE(load_into(net, checkpoint_).fits());
  expect_loaded(net);
}

TEST_F(TorchModule, UntiedNamesOfAnAliasAreBothFilled) {
  Tensors tensors = zeros();
  tensors["head.weight"] = at::zeros({37, 13});
  Net net(tensors);
  EXPECT_TRUE(load_into(net, checkpoint_).fits());
  expect_loaded(net);
}

TEST_F(TorchModule, ATiedNameThatTheCheckpointLacksIsNotMissing) {
  Tensors tensors = zeros();
  tensors["copy.weight"] = tensors.at("up.weight");
  Net net(tensors);
  EXPECT_TRUE(load_into(net, checkpoint_).fits());
  EXPECT_TRUE(
      identical(members(net).at("copy.weight"), truth_.at("up.weight")));
}

TEST_F(TorchModule, WhatDoesNotFitIsListed) {
  Tensors tensors = zeros();
  tensors.erase("norm1.bias");
  tensors.erase("embed.weight");
  tensors["up.weight"] = at::zeros({13, 29});
  tensors["tokens_seen"] = at::zeros({}, at::kInt);
  tensors["extra.weight"] = at::zeros({2});
  tensors["extra.bias"] = at::zeros({2});
  Net net(tensors);
  const LoadReport expected = compare(net, checkpoint_);
  EXPECT_FALSE(expected.fits());
  EXPECT_THAT(expected.missing, ElementsAre("extra.bias", "extra.weight"));
  EXPECT_THAT(expected.unexpected,
              testing::UnorderedElementsAre("norm1.bias", "embed.weight",
                                            "head.weight"));
  ASSERT_THAT(expected.mismatched, SizeIs(2));
  const Mismatch& shape = expected.mismatched[0];
  EXPECT_EQ(shape.name, "up.weight");
  EXPECT_THAT(shape.shape, ElementsAre(13, 29));
  EXPECT_THAT(shape.stored_shape, ElementsAre(29, 13));
  const Mismatch& dtype = expected.mismatched[1];
  EXPECT_EQ(dtype.name, "tokens_seen");
  EXPECT_EQ(dtype.dtype, at::kInt);
  EXPECT_EQ(dtype.stored_dtype, DType::I64);

  expect_refused(
      net, {},
      {"2 names of the module missing from the checkpoint: extra.bias, "
       "extra.weight",
       "3 names of the checkpoint unknown to the module: ",
       "2 names with another shape or kind of numbers: up.weight (fp32 [13, "
       "29] in the module, fp32 [29, 13] in the checkpoint), tokens_seen "
       "(int32 [] in the module, int64 [] in the checkpoint)"});

  const LoadReport report = load_into(net, checkpoint_, {.strict = false});
  EXPECT_EQ(report.missing, expected.missing);
  EXPECT_EQ(report.unexpected, expected.unexpected);
  EXPECT_THAT(report.mismatched, SizeIs(2));
  for (const auto& [name, tensor] : members(net)) {
    const bool left = name.starts_with("extra") || name == "up.weight" ||
                      name == "tokens_seen";
    if (left) {
      EXPECT_EQ(tensor.count_nonzero().item<int64_t>(), 0) << name;
    } else {
      EXPECT_TRUE(identical(tensor, truth(name, tensor))) << name;
    }
  }
}

TEST_F(TorchModule, EachKindOfMisfitAloneIsRefused) {
  Tensors tensors = zeros();
  tensors["extra"] = at::zeros({2});
  Net missing(tensors);
  expect_refused(missing, {}, {"1 name of the module missing", ": extra"});
  tensors = zeros();
  tensors.erase("mask");
  Net unexpected(tensors);
  expect_refused(unexpected, {},
                 {"1 name of the checkpoint unknown", ": mask"});
  tensors = zeros();
  tensors["gain"] = at::zeros({});
  Net mismatched(tensors);
  expect_refused(mismatched, {}, {"gain (fp32 [] in the module, fp32 [1]"});
}

TEST_F(TorchModule, LongListsAreCut) {
  Tensors tensors = zeros();
  for (int i = 0; i < 30; ++i) {
    tensors["more" + std::to_string(i)] = at::zeros({1});
  }
  Net net(tensors);
  EXPECT_THAT(compare(net, checkpoint_).missing, SizeIs(30));
  expect_refused(net, {}, {"30 names of the module missing", "and 10 more"});
}

TEST_F(TorchModule, NamesCanBeMapped) {
  Tensors wrapped;
  for (const auto& [name, tensor] : zeros()) wrapped["model." + name] = tensor;
  wrapped["cache"] = at::ones({3}, at::kLong);
  Net net(wrapped);
  const auto strip = [](const std::string& name) -> std::optional<std::string> {
    if (name == "cache") return std::nullopt;
    return name.substr(6);
  };
  EXPECT_FALSE(compare(net, checkpoint_).fits());
  EXPECT_TRUE(load_into(net, checkpoint_, {.name_of = strip}).fits());
  for (const auto& [name, tensor] : members(net)) {
    if (name == "cache") {
      EXPECT_EQ(tensor.sum().item<int64_t>(), 3);
    } else {
      EXPECT_TRUE(identical(tensor, truth(name.substr(6), tensor))) << name;
    }
  }
}

TEST_F(TorchModule, OnTheMetaDeviceIsRefused) {
  Tensors tensors = zeros();
  tensors["gain"] = at::zeros({1}, at::kMeta);
  Net net(tensors);
  const std::optional<Error> error =
      caught([&] { load_into(net, checkpoint_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Invalid);
  EXPECT_EQ(error->tensor(), "gain");
  EXPECT_EQ(members(net).at("mask").count_nonzero().item<int64_t>(), 0);
}

// ---- weights of other people ----

StoredTensor stored(const at::Tensor& tensor) {
  const bool floating = tensor.is_floating_point();
  return {.dtype = floating ? "F32" : "I64",
          .shape = {tensor.sizes().begin(), tensor.sizes().end()},
          .bytes = bytes_of(tensor)};
}

Checkpoint weights_folder(const TempFolder& folder, const Tensors& tensors) {
  std::map<std::string, StoredTensor> all;
  for (const auto& [name, tensor] : tensors) all[name] = stored(tensor);
  test::write_bytes(folder / "model.safetensors", test::stored_file(all));
  return Checkpoint::open(folder.path().string());
}

TEST(TorchModules, OfLibtorchItself) {
  const TempFolder folder;
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 5),
                                 torch::nn::BatchNorm1d(5),
                                 torch::nn::Linear(5, 2));
  };
  torch::nn::Sequential made = make();
  made->forward(at::randn({4, 3}));  // moves the running statistics
  const Checkpoint checkpoint = weights_folder(folder, members(*made));
  torch::nn::Sequential filled = make();
  EXPECT_TRUE(load_into(*filled, checkpoint).fits());
  for (const auto& [name, tensor] : members(*made)) {
    EXPECT_TRUE(identical(members(*filled).at(name), tensor)) << name;
  }
  made->eval();
  filled->eval();
  const at::Tensor input = at::randn({4, 3});
  EXPECT_TRUE(identical(made->forward(input), filled->forward(input)));
}

TEST(TorchModules, TiedOverTwoStoredWeights) {
  const TempFolder folder;
  const at::Tensor a = at::randn({4, 2});
  const at::Tensor b = at::randn({4, 2});
  const at::Tensor shared = at::zeros({4, 2});
  Net net(Tensors{{"a", shared}, {"b", shared}});

  const Checkpoint equal = weights_folder(folder, {{"a", a}, {"b", a}});
  EXPECT_TRUE(load_into(net, equal).fits());
  EXPECT_TRUE(identical(members(net).at("b"), a));

  const Checkpoint other = weights_folder(folder, {{"a", a}, {"b", b}});
  const std::optional<Error> error = caught([&] { load_into(net, other); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Conflict);
  EXPECT_THAT(error->message(),
              HasSubstr("tied in the module but with other values in the "
                        "checkpoint: b (tied to a)"));
  const LoadReport report = load_into(net, other, {.strict = false});
  EXPECT_THAT(report.untied, ElementsAre(Pair("a", "b")));
  EXPECT_THAT(report.missing, IsEmpty());
  EXPECT_THAT(report.unexpected, IsEmpty());
  EXPECT_TRUE(identical(members(net).at("a"), a));
}

}  // namespace
}  // namespace zckpt
