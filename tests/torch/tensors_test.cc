// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "torch/libtorch_file.h"
#include "torch/zero_cases.h"
#include "zckpt/torch.h"

namespace zckpt {
namespace {

using test::bytes_of;
using test::caught;
using test::identical;
using test::TempFolder;
using test::truth_of;
using test::zero_case;
using test::zero_cases;
using test::ZeroCase;
using test::ZeroTruth;
using testing::HasSubstr;

const ZeroCase kCase = zero_case("v0.19.8-z3-bf16-n2");

Checkpoint open(const ZeroCase& one = kCase) {
  return open_for_load(one.checkpoint());
}

// Expects that `body` throws; `part` must occur in what it says.
template <typename Body>
void expect_error(ErrorCode code, const std::string& part, Body body) {
  const std::optional<Error> error = caught(body);
  ASSERT_TRUE(error) << "nothing was thrown";
  EXPECT_EQ(to_string(error->code()), to_string(code)) << error->what();
  EXPECT_THAT(error->what(), HasSubstr(part));
}

// ---- dtypes ----

TEST(TorchDtypes, AreLibtorchsOfTheSameName) {
  for (int i = 0; i <= static_cast<int>(DType::U64); ++i) {
    const auto dtype = static_cast<DType>(i);
    const at::ScalarType type = to_scalar_type(dtype);
    EXPECT_EQ(c10::getDtypeNames(type).first, torch_name(dtype));
    EXPECT_EQ(c10::elementSize(type), size_of(dtype));
    EXPECT_EQ(c10::isFloatingType(type), is_floating(dtype));
    EXPECT_EQ(to_dtype(type), dtype);
  }
  for (const at::ScalarType type : {at::kComplexDouble, at::kComplexHalf,
                                    at::kQInt8, at::ScalarType::Undefined}) {
    expect_error(ErrorCode::Unsupported, c10::toString(type),
                 [&] { to_dtype(type); });
  }
}

// ---- one tensor, and all ----

TEST(TorchWeights, AreTheTruthOfEveryCase) {
  size_t tied = 0;
  for (const ZeroCase& one : zero_cases()) {
    SCOPED_TRACE(one.name);
    const ZeroTruth truth = truth_of(one);
    const Checkpoint checkpoint = open(one);
    const TensorDict weights = load_weights(checkpoint);
    EXPECT_EQ(weights.size(), truth.tensors.size());
    for (const auto& [name, tensor] : truth.tensors) {
      const at::Tensor* loaded = weights.find(name);
      ASSERT_NE(loaded, nullptr) << name;
      EXPECT_TRUE(identical(*loaded, tensor)) << name;
    }
    for (const auto& [alias, kept] : truth.aliases) {
      EXPECT_TRUE(weights[alias].is_same(weights[kept])) << alias;
      ++tied;
    }
  }
  EXPECT_GT(tied, 50U);
}

TEST(TorchWeights, ComeInTheModulesOrder) {
  const Checkpoint checkpoint = open();
  const TensorDict weights = load_weights(checkpoint);
  EXPECT_EQ(weights.keys(), checkpoint.facts().module_order);
}

TEST(TorchWeights, AreConvertedAsLibtorchConverts) {
  for (const char* name : {"v0.19.8-z3-bf16-n2", "v0.19.8-z2-fp16-n3",
                           "v0.19.8-z0-fp32-n2", "v0.19.8-z2-bf16-n2-empty"}) {
    const ZeroCase one = zero_case(name);
    const ZeroTruth truth = truth_of(one);
    const Checkpoint checkpoint = open(one);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf,
                                      at::kDouble, at::kFloat8_e4m3fn}) {
      const TensorDict weights = load_weights(checkpoint, type);
      for (const auto& [key, tensor] : truth.tensors) {
        const at::Tensor want =
            tensor.is_floating_point() ? tensor.to(type) : tensor;
        EXPECT_TRUE(identical(weights[key], want)) << key << " as " << type;
        EXPECT_TRUE(identical(load_tensor(checkpoint, key, type), want));
      }
    }
  }
}

TEST(TorchTensor, OfEveryRole) {
  const Checkpoint checkpoint = open(zero_case("v0.19.8-z2-bf16-n2"));
  size_t states = 0;
  for (const Tensor& tensor : checkpoint.tensors()) {
    const at::Tensor loaded = load_tensor(checkpoint, tensor);
    EXPECT_EQ(loaded.scalar_type(), to_scalar_type(tensor.dtype));
    EXPECT_EQ(bytes_of(loaded), test::read_tensor(checkpoint, tensor));
    states += tensor.role == Role::State ? 1 : 0;
  }
  EXPECT_GT(states, 10U);
}

TEST(TorchTensor, ByNameAndAlias) {
  const Checkpoint checkpoint = open();
  const at::Tensor embed = load_tensor(checkpoint, "embed.weight");
  EXPECT_TRUE(identical(load_tensor(checkpoint, "head.weight"), embed));
  expect_error(ErrorCode::Invalid, "nobody",
               [&] { load_tensor(checkpoint, "nobody"); });
  expect_error(ErrorCode::Invalid, "Long",
               [&] { load_tensor(checkpoint, "embed.weight", at::kLong); });
  expect_error(ErrorCode::Unsupported, "ComplexDouble",
               [&] { load_weights(checkpoint, at::kComplexDouble); });
}

TEST(TorchTensor, OfAnotherCheckpointIsRefused) {
  const Checkpoint checkpoint = open();
  const Checkpoint other = open();
  expect_error(ErrorCode::Invalid, "not a tensor of this checkpoint",
               [&] { load_tensor(checkpoint, other.tensors()[0]); });
}

TEST(TorchTensor, TooLargeForTheMachineIsAnError) {
  // A tensor of its own, so that nothing is read.
  const Checkpoint checkpoint = open();
  Tensor huge = checkpoint.tensors()[0];
  for (const uint64_t size : {uint64_t{1} << 62, uint64_t{1} << 63}) {
    huge.shape = {size, 2};
    expect_error(ErrorCode::Limit, huge.name,
                 [&] { load_tensor(checkpoint, huge); });
  }
}

// ---- the stream ----

TEST(TorchStream, GivesWholeTensorsHoweverSmallItsBuffer) {
  const Checkpoint checkpoint = open();
  const TensorDict weights = load_weights(checkpoint);
  for (const uint64_t buffer : {8U, 100U, 1000U, 1U << 20}) {
    TorchStream stream(checkpoint, {.buffer_bytes = buffer});
    uint64_t bytes = 0;
    std::vector<NamedTensor> kept;
    while (std::optional<NamedTensor> next = stream.next()) {
      bytes += next->data.nbytes();
      kept.push_back(std::move(*next));
    }
    EXPECT_EQ(kept.size(), weights_of(checkpoint).size());
    EXPECT_EQ(stream.size_bytes(), bytes);
    EXPECT_GT(stream.result().bytes_read, 0U);
    // What was given out stays, whatever came after it.
    for (const auto& [name, data, source] : kept) {
      EXPECT_EQ(name, source->name);
      EXPECT_TRUE(identical(data, weights[name])) << name << " " << buffer;
    }
  }
}

TEST(TorchStream, OfStatesInAnotherDtype) {
  const Checkpoint checkpoint = open();
  TorchStream stream(
      checkpoint,
      {.wanted = [](const Tensor& t) { return t.state == "exp_avg"; },
       .dtype = DType::BF16,
       .order = StreamOrder::Name});
  size_t count = 0;
  while (const std::optional<NamedTensor> next = stream.next()) {
    EXPECT_TRUE(identical(
        next->data, load_tensor(checkpoint, *next->source).to(at::kBFloat16)));
    ++count;
  }
  EXPECT_GT(count, 5U);
}

// ---- into tensors that are there ----

TEST(TorchInto, TensorsOfEveryKind) {
  const Checkpoint checkpoint = open();
  const at::Tensor truth = truth_of(kCase).tensors.at("down.weight");
  const std::vector<int64_t> shape = truth.sizes().vec();
  const at::Tensor frame = at::full({shape[0] + 2, shape[1] + 2}, 7.0);
  const std::map<std::string, at::Tensor> targets{
      {"contiguous", at::zeros(shape)},
      {"bf16", at::zeros(shape, at::kBFloat16)},
      {"fp16", at::zeros(shape, at::kHalf)},
      {"double", at::zeros(shape, at::kDouble)},
      {"transposed", at::zeros({shape[1], shape[0]}).t()},
      {"transposed bf16", at::zeros({shape[1], shape[0]}, at::kBFloat16).t()},
      {"framed", frame.narrow(0, 1, shape[0]).narrow(1, 1, shape[1])},
      {"leaf", at::zeros(shape).requires_grad_()},
      {"leaf bf16", at::zeros(shape, at::kBFloat16).requires_grad_()},
      {"transposed leaf",
       at::zeros({shape[1], shape[0]}).t().requires_grad_()}};
  for (const auto& [what, target] : targets) {
    SCOPED_TRACE(what);
    const bool grad = target.requires_grad();
    const auto version = target._version();
    const LoadResult result =
        load_into_tensors(checkpoint, {{"down.weight", target}});
    EXPECT_GT(result.bytes_read, 0U);
    EXPECT_TRUE(identical(target, truth.to(target.scalar_type())));
    EXPECT_EQ(target.requires_grad(), grad);
    EXPECT_TRUE(target.is_leaf());
    EXPECT_GT(target._version(), version);  // autograd notices
  }
  // What surrounds a view is left alone.
  EXPECT_EQ(frame.narrow(0, 0, 1).max().item<float>(), 7.0F);
  EXPECT_EQ(frame.narrow(1, shape[1] + 1, 1).min().item<float>(), 7.0F);
}

TEST(TorchInto, ManyAtOnceAndOneTwice) {
  const Checkpoint checkpoint = open();
  const ZeroTruth truth = truth_of(kCase);
  for (const int threads : {1, 4}) {
    const at::Tensor tied = at::zeros({37, 13}, at::kHalf);
    TensorDict targets{{"embed.weight", tied}, {"head.weight", tied}};
    for (const auto& [name, tensor] : truth.tensors) {
      if (!targets.contains(name)) {
        targets.insert(name, at::zeros_like(tensor));
      }
    }
    load_into_tensors(checkpoint, targets,
                      {.check = Check::Full, .threads = threads});
    for (const auto& item : targets) {
      const at::Tensor& want = truth.tensors.at(item.key());
      EXPECT_TRUE(identical(item.value(), want.to(item.value().scalar_type())))
          << item.key();
    }
  }
}

TEST(TorchInto, InferenceTensors) {
  const Checkpoint checkpoint = open();
  const c10::InferenceMode inference;
  const at::Tensor target = at::zeros({13, 29});
  load_into_tensors(checkpoint, {{"down.weight", target}});
  EXPECT_TRUE(identical(target, truth_of(kCase).tensors.at("down.weight")));
}

TEST(TorchInto, WhatCannotBeFilledIsRefusedFirst) {
  const Checkpoint checkpoint = open();
  const at::Tensor first = at::zeros({13, 29});
  const auto refuse = [&](ErrorCode code, const std::string& part,
                          const std::string& name, const at::Tensor& target) {
    SCOPED_TRACE(part);
    expect_error(code, part, [&] {
      load_into_tensors(checkpoint, {{"down.weight", first}, {name, target}});
    });
    EXPECT_EQ(first.count_nonzero().item<int64_t>(), 0);
  };
  refuse(ErrorCode::Invalid, "nobody", "nobody", at::zeros({1}));
  refuse(ErrorCode::Invalid, "undefined", "up.bias", at::Tensor());
  refuse(ErrorCode::Invalid, "meta", "up.bias", at::zeros({29}, at::kMeta));
  refuse(ErrorCode::Conflict, "another shape", "up.bias", at::zeros({28}));
  refuse(ErrorCode::Conflict, "another shape", "up.bias", at::zeros({29, 1}));
  refuse(ErrorCode::Unsupported, "fp32 to Int", "up.bias",
         at::zeros({29}, at::kInt));
  refuse(ErrorCode::Unsupported, "int64 to Int", "tokens_seen",
         at::zeros({}, at::kInt));
  refuse(ErrorCode::Unsupported, "bool to Float", "mask", at::zeros({5}));
  refuse(ErrorCode::Invalid, "shares memory", "up.bias",
         first.view({-1}).narrow(0, 5, 29));
}

TEST(TorchInto, WhatLibtorchRefusesIsAnErrorOfOurs) {
  const Checkpoint checkpoint = open();
  for (const at::Tensor& target :
       {at::zeros({1}).expand({29}), at::zeros({29}).to_sparse()}) {
    const std::optional<Error> error = caught([&] {
      load_into_tensors(checkpoint, {{"up.bias", target}});
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::Unsupported);
    EXPECT_EQ(error->tensor(), "up.bias");
    EXPECT_THAT(error->what(), Not(HasSubstr("frame #")));
  }
}

class Recorder : public Observer {
 public:
  void progress(uint64_t done, uint64_t total) override {
    EXPECT_GE(done, last_);
    EXPECT_LE(done, total);
    last_ = done;
    total_ = total;
  }
  uint64_t last_ = 0;
  uint64_t total_ = 0;
};

TEST(TorchInto, ProgressCountsAllTargets) {
  const Checkpoint checkpoint = open();
  Recorder recorder;
  load_into_tensors(checkpoint,
                    {{"down.weight", at::zeros({13, 29})},
                     {"up.weight", at::zeros({13, 29}).t()},
                     {"embed.weight", at::zeros({37, 13}, at::kDouble)}},
                    {.threads = 1, .observer = &recorder});
  EXPECT_EQ(recorder.total_, 13U * 29 * 8 + 37U * 13 * 8);
  EXPECT_EQ(recorder.last_, recorder.total_);
}

// ---- damage ----

TEST(TorchWeights, OfADamagedFileAreRefused) {
  const TempFolder folder;
  std::filesystem::copy(kCase.checkpoint(), folder / "ckpt",
                        std::filesystem::copy_options::recursive);
  {
    const Checkpoint sound = open_for_load(folder / "ckpt");
    Extent place;
    sound.extents(*sound.find("down.weight"), 3, 1,
                  [&](const Extent& e) { place = e; });
    test::flip_byte(folder / ("ckpt/" + sound.sources()[place.source].name),
                    place.offset);
  }
  const Checkpoint checkpoint = open_for_load(folder / "ckpt");
  const Tensor* tensor = checkpoint.find("down.weight");
  ASSERT_NE(tensor, nullptr);
  const LoadOptions full{.check = Check::Full};
  expect_error(ErrorCode::Corrupt, "",
               [&] { load_weights(checkpoint, {}, full); });
  expect_error(ErrorCode::Corrupt, "",
               [&] { load_tensor(checkpoint, *tensor, at::kDouble, full); });
}

}  // namespace
}  // namespace zckpt
