// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/rounding_oracle.h"
#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/zero_checkpoint.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::sample_run;
using test::TempFolder;
using test::Truth;
using test::Writer;
using test::ZeroCheckpoint;
using testing::HasSubstr;

// A made checkpoint on the disk, whose values are known.
class LoadTest : public testing::TestWithParam<Writer> {
 protected:
  LoadTest() : made_(sample_run(GetParam(), 3)) { made_.write(folder_.path()); }
  Checkpoint open() const { return open_for_load(folder_.path().string()); }
  const std::vector<Truth>& truth() const { return made_.truth(); }
  const Truth& truth_of(const Tensor& tensor) const {
    for (const Truth& one : truth()) {
      // Stage 2 keeps frozen weights in two places.
      const bool copy = tensor.role == Role::Model && one.role == Role::Frozen;
      if (one.name == tensor.name && (one.role == tensor.role || copy) &&
          one.state == tensor.state) {
        return one;
      }
    }
    throw std::out_of_range(tensor.name);
  }

  TempFolder folder_;
  ZeroCheckpoint made_;
};

std::string_view text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_P(LoadTest, AllTensorsAtOnce) {
  const Checkpoint checkpoint = open();
  for (const int threads : {1, 4}) {
    for (const uint64_t chunk :
         {uint64_t{8}, uint64_t{40}, uint64_t{1} << 20}) {
      std::vector<std::vector<std::byte>> buffers;
      std::vector<LoadTarget> targets;
      for (const Tensor& tensor : checkpoint.tensors()) {
        buffers.emplace_back(tensor.numel * size_of(tensor.dtype));
        targets.push_back({.tensor = &tensor,
                           .numel = tensor.numel,
                           .dtype = tensor.dtype,
                           .out = buffers.back()});
      }
      const LoadResult result = load(
          checkpoint, targets,
          {.check = Check::Full, .threads = threads, .chunk_bytes = chunk});
      EXPECT_GT(result.checked_records, 0U);
      for (size_t i = 0; i < targets.size(); ++i) {
        const Tensor& tensor = checkpoint.tensors()[i];
        EXPECT_EQ(text(buffers[i]), truth_of(tensor).bytes) << tensor.name;
      }
    }
  }
}

TEST_P(LoadTest, RangesInAnotherDtype) {
  const Checkpoint checkpoint = open();
  for (const Tensor* tensor : weights_of(checkpoint)) {
    if (tensor->dtype != DType::F32 || tensor->numel < 5) continue;
    std::vector<std::byte> loaded((tensor->numel - 3) * 2);
    std::vector<std::byte> read(loaded.size());
    const LoadTarget target{.tensor = tensor,
                            .first = 2,
                            .numel = tensor->numel - 3,
                            .dtype = DType::BF16,
                            .out = loaded};
    load(checkpoint, {&target, 1});
    checkpoint.read(*tensor, 2, tensor->numel - 3, DType::BF16, read);
    EXPECT_EQ(text(loaded), text(read));
    const std::string& bytes = truth_of(*tensor).bytes;
    for (uint64_t i = 0; i + 3 < tensor->numel; ++i) {
      float value = 0;
      uint16_t bits = 0;
      std::memcpy(&value, bytes.data() + (i + 2) * 4, 4);
      std::memcpy(&bits, loaded.data() + i * 2, 2);
      ASSERT_EQ(bits, RoundingOracle::bf16().convert(value)) << value;
    }
  }
}

TEST_P(LoadTest, StreamsInBothOrdersAndAnySize) {
  const Checkpoint checkpoint = open();
  const std::vector<const Tensor*> weights = weights_of(checkpoint);
  ASSERT_GT(weights.size(), 4U);
  for (const StreamOrder order : {StreamOrder::File, StreamOrder::Name}) {
    for (const uint64_t buffer :
         {uint64_t{8}, uint64_t{100}, uint64_t{600}, uint64_t{1} << 20}) {
      TensorStream stream(checkpoint, {.order = order, .buffer_bytes = buffer});
      std::vector<std::string> names;
      std::map<std::string, std::string> values;
      uint64_t bytes = 0;
      while (const auto piece = stream.next()) {
        const std::string& name = piece->tensor->name;
        if (piece->first == 0) names.push_back(name);
        EXPECT_EQ(names.back(), name);
        EXPECT_EQ(values[name].size(),
                  piece->first * size_of(piece->tensor->dtype));
        values[name] += text(piece->bytes);
        bytes += piece->bytes.size();
        EXPECT_LE(piece->bytes.size(), buffer);
      }
      EXPECT_FALSE(stream.next());
      EXPECT_EQ(bytes, stream.size_bytes());
      ASSERT_EQ(names.size(), weights.size());
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_EQ(values[weights[i]->name], truth_of(*weights[i]).bytes);
        if (order == StreamOrder::File) {
          EXPECT_EQ(names[i], weights[i]->name);
        }
      }
      if (order == StreamOrder::Name) {
        EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
      }
      EXPECT_GT(stream.result().checked_records, 0U);
    }
  }
}

TEST_P(LoadTest, StreamsWhatIsWanted) {
  const Checkpoint checkpoint = open();
  TensorStream stream(checkpoint, {.wanted = [](const Tensor& tensor) {
                        return tensor.role == Role::State &&
                               tensor.state == "exp_avg_sq";
                      }});
  size_t count = 0;
  while (const auto piece = stream.next()) {
    EXPECT_EQ(text(piece->bytes), truth_of(*piece->tensor).bytes);
    ++count;
  }
  size_t expected = 0;
  for (const Truth& one : truth()) expected += one.state == "exp_avg_sq";
  EXPECT_EQ(count, expected);
  EXPECT_EQ(checkpoint.facts().optimizer_step,
            expected == 0 ? std::nullopt : std::optional(3.0));
}

TEST_P(LoadTest, DamageIsSeen) {
  Checkpoint checkpoint = open();
  const Tensor* tensor = nullptr;
  for (const Tensor* each : weights_of(checkpoint)) {
    if (each->role == Role::Master) tensor = each;
  }
  ASSERT_NE(tensor, nullptr);
  checkpoint.extents(*tensor, 1, 1, [&](const Extent& extent) {
    test::flip_byte(folder_.path() / checkpoint.sources()[extent.source].name,
                    extent.offset);
  });
  // The index says what the files were when it was made.
  const auto changed = [&](const std::function<void()>& call) {
    expect_error(ErrorCode::Conflict, std::nullopt, "changed while", call);
  };
  changed([&] {
    TensorStream stale(checkpoint, {.load = {.check = Check::None}});
    while (stale.next()) {
    }
  });
  std::vector<std::byte> bytes(tensor->numel * size_of(tensor->dtype));
  changed([&] { checkpoint.read(*tensor, 0, tensor->numel, bytes); });

  checkpoint = Checkpoint::open(folder_.path().string());
  TensorStream stream(checkpoint, {.load = {.check = Check::Full}});
  const auto all = [&] {
    while (stream.next()) {
    }
  };
  const auto error = test::caught(all);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Corrupt);
  const auto again = test::caught([&] { stream.next(); });
  ASSERT_TRUE(again);
  EXPECT_EQ(again->code(), ErrorCode::Corrupt);
  ASSERT_EQ(error->findings().size(), 1U);
  EXPECT_EQ(error->findings()[0].code, "crc-mismatch");
  TensorStream unchecked(checkpoint, {.load = {.check = Check::None}});
  while (unchecked.next()) {
  }
  EXPECT_EQ(unchecked.result().checked_records, 0U);
}

TEST_P(LoadTest, ManyThreadsMayRead) {
  const Checkpoint checkpoint = open();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < checkpoint.tensors().size(); i += 2) {
        const Tensor& tensor = checkpoint.tensors()[i];
        std::vector<std::byte> bytes(tensor.numel * size_of(tensor.dtype));
        checkpoint.read(tensor, 0, tensor.numel, bytes);
        EXPECT_EQ(text(bytes), truth_of(tensor).bytes);
        const LoadTarget target{.tensor = &tensor,
                                .numel = tensor.numel,
                                .dtype = tensor.dtype,
                                .out = bytes};
        load(checkpoint, {&target, 1}, {.threads = 2});
        EXPECT_EQ(text(bytes), truth_of(tensor).bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(LoadTest, Refusals) {
  const Checkpoint checkpoint = open();
  const Tensor& tensor = *weights_of(checkpoint).front();
  const auto refuse = [&](ErrorCode code, std::string_view part,
                          const LoadTarget& target) {
    expect_error(code, std::nullopt, part, [&] {
      load(checkpoint, {&target, 1});
    });
  };
  std::vector<std::byte> bytes(tensor.numel * size_of(tensor.dtype));
  LoadTarget target{.tensor = &tensor,
                    .numel = tensor.numel,
                    .dtype = tensor.dtype,
                    .out = bytes};
  const Tensor other = tensor;
  LoadTarget wrong = target;
  wrong.tensor = &other;
  refuse(ErrorCode::Invalid, "not a tensor of this checkpoint", wrong);
  wrong = target;
  wrong.first = 1;
  refuse(ErrorCode::Invalid, "within the tensor", wrong);
  wrong = target;
  wrong.out = std::span(bytes).first(bytes.size() - 1);
  refuse(ErrorCode::Invalid, "not as long", wrong);
  wrong = target;
  wrong.dtype = DType::I32;
  wrong.out = std::span(bytes).first(tensor.numel * 4);
  if (size_of(tensor.dtype) >= 4) {
    refuse(ErrorCode::Unsupported, "cannot convert", wrong);
    expect_error(ErrorCode::Unsupported, std::nullopt, "cannot convert", [&] {
      checkpoint.read(tensor, 0, tensor.numel, DType::I32,
                      std::span(bytes).first(tensor.numel * 4));
    });
    expect_error(ErrorCode::Invalid, std::nullopt, "not as long", [&] {
      checkpoint.read(tensor, 0, tensor.numel, DType::F16,
                      std::span(bytes).first(1));
    });
  }
  expect_error(ErrorCode::Limit, std::nullopt, "too small", [&] {
    load(checkpoint, {&target, 1}, {.memory_bytes = 10});
  });
  expect_error(ErrorCode::Limit, std::nullopt, "holds no element",
               [&] { TensorStream stream(checkpoint, {.buffer_bytes = 7}); });
  StopToken stop;
  stop.request_stop();
  expect_error(ErrorCode::Interrupted, std::nullopt, "", [&] {
    load(checkpoint, {&target, 1}, {.stop = &stop});
  });
}

INSTANTIATE_TEST_SUITE_P(Writers, LoadTest,
                         testing::Values(Writer::Stage0, Writer::Stage1,
                                         Writer::Stage2, Writer::Bf16Optimizer,
                                         Writer::Stage3));

// What merging refuses is not opened for loading either.
TEST(OpenForLoad, RefusesShardsOfTwoSaves) {
  TempFolder folder;
  ZeroCheckpoint made(sample_run(Writer::Stage3, 2));
  made.model(1).root.set("global_steps", 4);
  made.write(folder.path());
  const auto error =
      test::caught([&] { open_for_load(folder.path().string()); });
  ASSERT_TRUE(error);
  EXPECT_FALSE(error->findings().empty());
  EXPECT_NO_THROW(Checkpoint::open(folder.path().string()));
}

TEST(OpenForLoad, RefusesMastersThatAreNotTheModels) {
  TempFolder folder;
  ZeroCheckpoint made(sample_run(Writer::Stage2, 2));
  made.write(folder.path());
  const Checkpoint checkpoint = Checkpoint::open(folder.path().string());
  for (const Tensor& tensor : checkpoint.tensors()) {
    if (tensor.role != Role::Master) continue;
    checkpoint.extents(tensor, 0, 1, [&](const Extent& extent) {
      test::flip_byte(folder.path() / checkpoint.sources()[extent.source].name,
                      extent.offset + 2);
    });
    break;
  }
  const auto error =
      test::caught([&] { open_for_load(folder.path().string()); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Corrupt);
}

// A LoRA save without its base: what is there can be read.
TEST(OpenForLoad, WithoutFrozenWeights) {
  std::vector<Finding> findings;
  const Checkpoint checkpoint = open_for_load(
      std::string(ZCKPT_FIXTURES) + "/hf/lora_z3_fp32/checkpoint-2", {},
      &findings);
  EXPECT_TRUE(checkpoint.facts().frozen_excluded);
  EXPECT_EQ(weights_of(checkpoint).size(), 8U);
  for (const Finding& finding : findings) {
    EXPECT_NE(finding.severity, Severity::Error);
  }
}

}  // namespace
}  // namespace zckpt
