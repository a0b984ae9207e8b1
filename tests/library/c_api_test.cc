// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// The C functions. tests/consumer/c_user.c calls them from C.
#include "zckpt/zckpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/checkpoint_tools.h"
#include "support/zero_checkpoint.h"

namespace zckpt {
namespace {

using test::sample_run;
using test::TempFolder;
using test::Writer;
using test::ZeroCheckpoint;
using testing::HasSubstr;

class CApiTest : public testing::Test {
 protected:
  CApiTest() : made_(sample_run(Writer::Stage2, 2)) {
    made_.write(folder_.path());
  }
  ~CApiTest() override {
    zckpt_close(checkpoint_);
    zckpt_error_free(error_);
  }
  void open() {
    ASSERT_EQ(zckpt_open(path().c_str(), nullptr, &checkpoint_, &error_),
              ZCKPT_OK)
        << zckpt_error_text(error_);
  }
  std::string path() const { return folder_.path().string(); }
  // The text of the last error, which is freed.
  std::string text() {
    std::string text = zckpt_error_text(error_);
    zckpt_error_free(error_);
    error_ = nullptr;
    return text;
  }

  TempFolder folder_;
  ZeroCheckpoint made_;
  zckpt_checkpoint* checkpoint_ = nullptr;
  zckpt_error* error_ = nullptr;
};

TEST_F(CApiTest, DescribesAndReadsEveryTensor) {
  open();
  // Frozen weights are there twice at stage 2.
  ASSERT_GT(zckpt_tensor_count(checkpoint_), made_.truth().size());
  std::vector<std::string> values;
  std::vector<zckpt_target> targets;
  for (const test::Truth& truth : made_.truth()) {
    const int64_t index =
        zckpt_find(checkpoint_, truth.name.c_str(),
                   to_string(truth.role).data(), truth.state.c_str());
    ASSERT_GE(index, 0) << truth.name;
    zckpt_tensor tensor{};
    ASSERT_EQ(zckpt_tensor_at(checkpoint_, static_cast<size_t>(index), &tensor),
              ZCKPT_OK);
    EXPECT_EQ(tensor.name, truth.name);
    EXPECT_EQ(tensor.role, to_string(truth.role));
    EXPECT_EQ(tensor.state, truth.state);
    EXPECT_EQ(tensor.dtype, short_name(truth.dtype));
    EXPECT_EQ(
        std::vector<uint64_t>(tensor.shape, tensor.shape + tensor.dimensions),
        truth.shape);
    std::string bytes(truth.bytes.size(), '\0');
    EXPECT_EQ(
        zckpt_read(checkpoint_, static_cast<size_t>(index), 0, tensor.numel,
                   nullptr, bytes.data(), bytes.size(), &error_),
        ZCKPT_OK);
    EXPECT_EQ(bytes, truth.bytes);
    values.emplace_back(truth.bytes.size(), '\0');
    targets.push_back({.index = static_cast<size_t>(index)});
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    targets[i].out = values[i].data();
    targets[i].size = values[i].size();
  }
  ASSERT_EQ(zckpt_load(checkpoint_, targets.data(), targets.size(), 2, &error_),
            ZCKPT_OK);
  for (size_t i = 0; i < targets.size(); ++i) {
    EXPECT_EQ(values[i], made_.truth()[i].bytes);
  }
}

TEST_F(CApiTest, FindsTheBestOfAName) {
  open();
  const std::string name = made_.truth().front().name;
  const int64_t best = zckpt_find(checkpoint_, name.c_str(), nullptr, nullptr);
  EXPECT_EQ(best, zckpt_find(checkpoint_, name.c_str(), "master", nullptr));
  EXPECT_NE(best, zckpt_find(checkpoint_, name.c_str(), "model", nullptr));
  EXPECT_EQ(zckpt_find(checkpoint_, "no such name", nullptr, nullptr), -1);
  EXPECT_EQ(zckpt_find(checkpoint_, name.c_str(), "no such role", nullptr), -1);
  EXPECT_EQ(zckpt_find(nullptr, name.c_str(), nullptr, nullptr), -1);
}

TEST_F(CApiTest, KnowsTiedNamesAndTheStep) {
  open();
  ASSERT_EQ(zckpt_alias_count(checkpoint_), 1U);
  const char* alias = nullptr;
  const char* kept = nullptr;
  ASSERT_EQ(zckpt_alias_at(checkpoint_, 0, &alias, &kept), ZCKPT_OK);
  EXPECT_GE(zckpt_find(checkpoint_, kept, nullptr, nullptr), 0);
  EXPECT_EQ(zckpt_find(checkpoint_, alias, nullptr, nullptr),
            zckpt_find(checkpoint_, kept, nullptr, nullptr));
  EXPECT_EQ(zckpt_alias_at(checkpoint_, 1, &alias, &kept), ZCKPT_INVALID);
  EXPECT_EQ(zckpt_optimizer_step(checkpoint_), 3);
  EXPECT_EQ(zckpt_optimizer_step(nullptr), -1);
  EXPECT_EQ(zckpt_frozen_excluded(checkpoint_), 0);
  zckpt_close(checkpoint_);
  const std::string lora =
      std::string(ZCKPT_FIXTURES) + "/hf/lora_z3_fp32/checkpoint-2";
  ASSERT_EQ(zckpt_open(lora.c_str(), nullptr, &checkpoint_, &error_), ZCKPT_OK);
  EXPECT_EQ(zckpt_frozen_excluded(checkpoint_), 1);
  EXPECT_EQ(zckpt_load(checkpoint_, nullptr, 1, 0, &error_), ZCKPT_INVALID);
}

TEST_F(CApiTest, ErrorsHaveACodeAndAText) {
  EXPECT_EQ(zckpt_open("/no/such/folder", nullptr, &checkpoint_, &error_),
            ZCKPT_IO);
  EXPECT_EQ(checkpoint_, nullptr);
  EXPECT_THAT(text(), HasSubstr("/no/such/folder"));
  EXPECT_EQ(zckpt_open(nullptr, nullptr, &checkpoint_, &error_), ZCKPT_INVALID);
  text();
  EXPECT_EQ(zckpt_open(path().c_str(), "nonsense", &checkpoint_, nullptr),
            ZCKPT_INVALID);
  open();
  float value = 0;
  EXPECT_EQ(zckpt_read(checkpoint_, 0, 0, 1, "fp33", &value, 4, &error_),
            ZCKPT_INVALID);
  EXPECT_THAT(text(), HasSubstr("no dtype is called fp33"));
  EXPECT_EQ(zckpt_read(checkpoint_, 999999, 0, 1, "fp32", &value, 4, &error_),
            ZCKPT_INVALID);
  EXPECT_THAT(text(), HasSubstr("no tensor of this number"));
  EXPECT_EQ(zckpt_read(nullptr, 0, 0, 1, "fp32", &value, 4, &error_),
            ZCKPT_INVALID);
  text();
  zckpt_tensor tensor{};
  EXPECT_EQ(zckpt_tensor_at(checkpoint_, 999999, &tensor), ZCKPT_INVALID);
  EXPECT_EQ(zckpt_tensor_at(checkpoint_, 0, nullptr), ZCKPT_INVALID);
  EXPECT_EQ(zckpt_load(nullptr, nullptr, 0, 0, &error_), ZCKPT_INVALID);
}

TEST_F(CApiTest, RefusalsListTheirFindings) {
  std::filesystem::remove(folder_.path() / "global_step3" /
                          made_.optim_name(1));
  EXPECT_EQ(zckpt_open(path().c_str(), nullptr, &checkpoint_, &error_),
            ZCKPT_CORRUPT);
  EXPECT_THAT(text(), HasSubstr("[optim-shard-missing]"));
}

TEST_F(CApiTest, MergesAndVerifies) {
  const std::string out = folder_ / "out";
  ASSERT_EQ(zckpt_merge(path().c_str(), out.c_str(), nullptr, &error_),
            ZCKPT_OK);
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors"));
  EXPECT_EQ(zckpt_merge(path().c_str(), out.c_str(), nullptr, &error_),
            ZCKPT_CONFLICT);
  text();
  zckpt_merge_options options{};
  options.force = 1;
  options.bin = 1;
  options.tag = "global_step3";
  options.max_shard_bytes = 100;
  ASSERT_EQ(zckpt_merge(path().c_str(), out.c_str(), &options, &error_),
            ZCKPT_OK);
  EXPECT_TRUE(std::filesystem::exists(out + "/pytorch_model.bin.index.json"));
  EXPECT_FALSE(std::filesystem::exists(out + "/model.safetensors"));

  zckpt_verification* verification = nullptr;
  const std::string run =
      std::string(ZCKPT_FIXTURES) + "/hf/full_z3_bf16/checkpoint-2";
  ASSERT_EQ(zckpt_verify(run.c_str(), 1, &verification, &error_), ZCKPT_OK);
  ASSERT_EQ(zckpt_verification_count(verification), 1U);
  zckpt_verdict verdict{};
  ASSERT_EQ(zckpt_verdict_at(verification, 0, &verdict), ZCKPT_OK);
  EXPECT_STREQ(verdict.verdict, "resumable");
  EXPECT_EQ(verdict.path, run);
  EXPECT_EQ(verdict.can_resume, 1);
  EXPECT_EQ(verdict.can_merge, 1);
  EXPECT_EQ(zckpt_newest_resumable(verification), 0);
  EXPECT_EQ(zckpt_verdict_at(verification, 1, &verdict), ZCKPT_INVALID);
  zckpt_finding finding{};
  EXPECT_EQ(zckpt_finding_at(verification, 0, verdict.findings, &finding),
            ZCKPT_INVALID);
  zckpt_verification_free(verification);

  std::filesystem::remove(folder_.path() / "global_step3" /
                          made_.optim_name(1));
  ASSERT_EQ(zckpt_verify(path().c_str(), 0, &verification, &error_), ZCKPT_OK);
  EXPECT_EQ(zckpt_newest_resumable(verification), -1);
  ASSERT_EQ(zckpt_verdict_at(verification, 0, &verdict), ZCKPT_OK);
  EXPECT_STREQ(verdict.verdict, "damaged");
  ASSERT_GT(verdict.findings, 0U);
  ASSERT_EQ(zckpt_finding_at(verification, 0, 0, &finding), ZCKPT_OK);
  EXPECT_STREQ(finding.severity, "error");
  zckpt_verification_free(verification);
}

}  // namespace
}  // namespace zckpt
