// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/half.h"
#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/stored_weights.h"
#include "zckpt/error.h"
#include "zckpt/export.h"

// Adapters that PEFT saved and checkpoints that trainers saved, against what
// PEFT merges and against float64 arithmetic in Python.

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AnyOf;
using testing::HasSubstr;

const fs::path kLora = fs::path(ZCKPT_FIXTURES) / "lora";
const fs::path kHf = fs::path(ZCKPT_FIXTURES) / "hf";

json parsed(const fs::path& path) { return json::parse(read_bytes(path)); }

// What of the corpus is merged, what is refused, and why: by case.json, never
// by name.
bool is_merged(const fs::path& folder) {
  const json facts = parsed(folder / "case.json");
  if (facts["outcome"] != "merge") return false;
  const fs::path adapter = fs::exists(folder / "adapter")
                               ? folder / "adapter"
                               : folder / "adapter_1";
  const json config = parsed(adapter / "adapter_config.json");
  const json model = parsed(folder / "base/config.json");
  return config["peft_type"] == "LORA" && model["model_type"] != "resnet" &&
         (!config.contains("target_parameters") ||
          config["target_parameters"].is_null());
}

std::vector<std::string> cases(bool merged) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kLora)) {
    if (is_merged(entry.path()) == merged) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; },
      '_');
  return name;
}

ExportOptions options_for(const fs::path& folder, const std::string& output) {
  ExportOptions options;
  for (const char* name : {"adapter", "adapter_1", "adapter_2"}) {
    if (fs::exists(folder / name)) {
      options.adapters.push_back({.path = folder / name});
    }
  }
  options.write.output = output;
  options.write.sync = false;
  return options;
}

float value_of(const StoredTensor& tensor, size_t i) {
  uint32_t bits = 0;
  if (tensor.dtype == "F32") {
    std::memcpy(&bits, tensor.bytes.data() + 4 * i, 4);
  } else {
    uint16_t half = 0;
    std::memcpy(&half, tensor.bytes.data() + 2 * i, 2);
    bits = tensor.dtype == "BF16" ? float_bits_from_bf16(half)
                                  : float_bits_from_fp16(half);
  }
  return std::bit_cast<float>(bits);
}

// Equal bit for bit in 16 bits; in 32, where float64 sums of another order may
// round otherwise and PEFT computes in float32, within `tolerance` of the
// largest element.
void expect_tensors(const StoredWeights& found, const StoredWeights& expected,
                    double tolerance) {
  std::vector<std::string> names[2];
  for (const auto& [name, tensor] : found.tensors) names[0].push_back(name);
  for (const auto& [name, tensor] : expected.tensors) names[1].push_back(name);
  ASSERT_EQ(names[0], names[1]);
  for (const auto& [name, tensor] : expected.tensors) {
    const StoredTensor& other = found.tensors.at(name);
    ASSERT_EQ(other.dtype, tensor.dtype) << name;
    ASSERT_EQ(other.shape, tensor.shape) << name;
    if (tensor.dtype != "F32") {
      EXPECT_EQ(other.bytes, tensor.bytes) << name;
      continue;
    }
    const size_t count = tensor.bytes.size() / 4;
    double largest = 0;
    for (size_t i = 0; i < count; ++i) {
      largest = std::max<double>(largest, std::abs(value_of(tensor, i)));
    }
    for (size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(value_of(other, i), value_of(tensor, i), tolerance * largest)
          << name << " element " << i;
    }
  }
}

StoredWeights exported(const std::string& output) {
  return read_stored_file(output + "/model.safetensors");
}

class LoraCorpus : public testing::TestWithParam<std::string> {
 protected:
  const fs::path case_ = kLora / GetParam();
  TempFolder folder_;
};

TEST_P(LoraCorpus, ExactIsFloat64RoundedOnce) {
  const std::string output = folder_ / "out";
  export_hf(case_ / "base", options_for(case_, output));
  expect_tensors(exported(output),
                 read_stored_file(case_ / "expected_exact.safetensors"),
                 2 * 5.97e-8);
}

TEST_P(LoraCorpus, PeftIsWhatPeftMerges) {
  const json facts = parsed(case_ / "case.json");
  if (facts["peft_keeps_meaning"] == false) {
    // PEFT merges one side of a tie into both: our result is the model that
    // was trained, and the test above is about it.
    return;
  }
  const std::string output = folder_ / "out";
  ExportOptions options = options_for(case_, output);
  options.math = LoraMath::Peft;
  export_hf(case_ / "base", options);
  StoredWeights expected =
      read_stored_file(case_ / "expected/model.safetensors");
  json config = parsed(case_ / "expected/config.json");
  StoredWeights found = exported(output);
  if (expected.tensors.contains("lm_head.weight") &&
      expected.tensors.at("lm_head.weight") ==
          expected.tensors.at("model.embed_tokens.weight") &&
      !found.tensors.contains("lm_head.weight")) {
    // PEFT unties copies that are equal; one is enough.
    expected.tensors.erase("lm_head.weight");
    config["tie_word_embeddings"] = true;
  }
  expect_tensors(found, expected, 1e-6);
  EXPECT_EQ(parsed(output + "/config.json"), config);
}

TEST_P(LoraCorpus, TheSameBytesForAnyThreadsAndBudgets) {
  for (const LoraMath math : {LoraMath::Exact, LoraMath::Peft}) {
    std::string first;
    for (const auto& [threads, memory, chunk] :
         {std::tuple{1, uint64_t{64} << 20, uint64_t{4} << 20},
          {2, uint64_t{1} << 20, uint64_t{4} << 20},
          {8, uint64_t{1} << 12, uint64_t{28}}}) {
      ExportOptions options = options_for(case_, folder_ / "out");
      options.math = math;
      options.write.force = true;
      options.write.open.threads = threads;
      options.write.memory_bytes = memory;
      options.write.chunk_bytes = chunk;
      export_hf(case_ / "base", options);
      const std::string bytes = read_bytes(folder_ / "out/model.safetensors");
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << threads << " threads";
    }
  }
}

TEST_P(LoraCorpus, SideFilesAreThoseOfTheNearestByteForByte) {
  const std::string output = folder_ / "out";
  const ExportResult result =
      export_hf(case_ / "base", options_for(case_, output));
  const bool has_changes = !result.config_changes.empty();
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(case_ / "base")) {
    const std::string name = entry.path().filename().string();
    if (name.find(".safetensors") != std::string::npos) continue;
    if (name == "config.json" && has_changes) continue;
    // The adapter of a grown vocabulary brings its own tokenizer.
    const fs::path nearer = case_ / "adapter" / name;
    EXPECT_EQ(read_bytes(fs::path(output) / name),
              read_bytes(fs::exists(nearer) ? nearer : entry.path()))
        << name;
  }
}

// What `llamafactory-cli export` wrote for the same base and adapters: the same
// weights, byte for byte. docs/export.md says why other files differ.
TEST_P(LoraCorpus, WeightsAreThoseOfLlamaFactory) {
  for (const auto& entry : fs::directory_iterator(case_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("expected_llamafactory")) continue;
    ExportOptions options = options_for(case_, folder_ / "out");
    options.math = LoraMath::Peft;
    options.write.force = true;
    export_hf(case_ / "base", options);
    EXPECT_EQ(read_bytes(folder_ / "out/model.safetensors"),
              read_bytes(entry.path() / "model.safetensors"))
        << name;
    json ours = parsed(folder_ / "out/config.json");
    json theirs = parsed(entry.path() / "config.json");
    for (const char* key : {"rope_parameters", "rope_scaling", "rope_theta",
                            "transformers_version"}) {
      ours.erase(key);
      theirs.erase(key);
    }
    if (ours["tie_word_embeddings"] == false) {
      theirs["tie_word_embeddings"] = false;
    }
    EXPECT_EQ(ours, theirs) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Lora, LoraCorpus, testing::ValuesIn(cases(true)),
                         test_name);

class LoraRefused : public testing::TestWithParam<std::string> {};

// A word of the reason that each must give.
std::string reason_for(const std::string& name) {
  const std::pair<const char*, const char*> reasons[] = {
      {"adalora", "ADALORA"},
      {"ia3", "IA3"},
      {"loha", "LOHA"},
      {"lokr", "LOKR"},
      {"oft", "OFT"},
      {"pissa", "init_lora_weights"},
      {"resnet", "other modules than linear ones"},
      {"target_parameters", "target_parameters"},
      {"v5_mixtral_down_only", "target_parameters"},
      {"empty_tensor_all", "8 of its 8 tensors are empty"},
      {"empty_tensor_one", "1 of its 8 tensors are empty"},
      {"matches_nothing", "none of the adapter's 4 tensors"},
      {"missing_lora_B", "counterpart lora_B"},
      {"nan", "NaN"},
      {"one_key_unmatched", "of the adapter's 8 tensors have no place"},
      {"rank_mismatch", "rank 8"},
      {"shape_mismatch", "its factors are for a weight of"},
      {"wrong_prefix", "none of the adapter's 8 tensors"}};
  for (const auto& [part, reason] : reasons) {
    if (name.find(part) != std::string::npos) return reason;
  }
  return "no reason is known for " + name;
}

TEST_P(LoraRefused, WithTheReasonAndNothingWritten) {
  const fs::path folder = kLora / GetParam();
  TempFolder scratch;
  for (const LoraMath math : {LoraMath::Exact, LoraMath::Peft}) {
    ExportOptions options = options_for(folder, scratch / "out");
    options.math = math;
    const auto error = caught([&] { export_hf(folder / "base", options); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr(reason_for(GetParam())));
    EXPECT_THAT(error->code(),
                AnyOf(ErrorCode::Corrupt, ErrorCode::Unsupported));
    EXPECT_TRUE(fs::is_empty(scratch.path()));
  }
}

INSTANTIATE_TEST_SUITE_P(Lora, LoraRefused, testing::ValuesIn(cases(false)),
                         test_name);

TEST(Pissa, IsRightWithItsInitialFactorsTakenAway) {
  const fs::path folder = kLora / "pissa_qwen2_fp32";
  TempFolder scratch;
  ExportOptions options = options_for(folder, scratch / "out");
  options.adapters.push_back({.path = folder / "pissa_init", .weight = -1});
  export_hf(folder / "base", options);
  expect_tensors(exported(scratch / "out"),
                 read_stored_file(folder / "expected_exact.safetensors"), 1e-7);
}

TEST(Pissa, ConvertedByPeftIsAPlainAdapter) {
  const fs::path folder = kLora / "pissa_qwen2_fp32";
  TempFolder scratch;
  ExportOptions options = options_for(folder, scratch / "out");
  options.adapters = {{.path = folder / "adapter_converted"}};
  export_hf(folder / "base", options);
  // PEFT wrote the initial factors in float32 once more.
  expect_tensors(exported(scratch / "out"),
                 read_stored_file(folder / "expected_exact.safetensors"), 1e-6);
}

// ---- checkpoints of trainers ----

std::vector<std::string> saves(bool lora) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(kHf)) {
    if (!fs::exists(entry.path() / "case.json") ||
        fs::exists(entry.path() / "truth_adapter") != lora) {
      continue;
    }
    for (const char* name : {"checkpoint-2", "final", "state", "last.ckpt"}) {
      const fs::path folder = entry.path() / name;
      if (!fs::exists(folder / "latest")) continue;
      found.push_back(entry.path().filename().string() + "/" + name);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

class LoraRun : public testing::TestWithParam<std::string> {};

TEST_P(LoraRun, IsTheTrainedModelWhateverTheAdapterFileHolds) {
  const fs::path checkpoint = kHf / GetParam();
  const fs::path run = checkpoint.parent_path();
  TempFolder scratch;
  ExportOptions options;
  options.base = run / "base";
  options.write.output = scratch / "out";
  options.write.sync = false;
  const ExportResult result = export_hf(checkpoint, options);
  EXPECT_EQ(result.written.plan.dtype, DType::BF16);  // as the config says
  const fs::path exact = run / "expected_merged_exact_bf16.safetensors";
  expect_tensors(
      exported(options.write.output),
      read_stored_file(fs::exists(exact)
                           ? exact
                           : run / "expected_merged_exact.safetensors"),
      1e-7);
  for (const LoraReport& report : result.lora) {
    EXPECT_GT(report.max_delta, 0) << report.name;
    EXPECT_GE(report.max_delta, report.mean_delta) << report.name;
  }
  // The same in the dtype that the run had in memory.
  const StoredWeights in_memory =
      read_stored_file(run / "expected_merged_exact.safetensors");
  if (in_memory.tensors.begin()->second.dtype != "F32") return;
  options.auto_dtype = false;
  options.write.dtype = DType::F32;
  options.write.force = true;
  export_hf(checkpoint, options);
  expect_tensors(exported(options.write.output), in_memory, 1e-7);
  EXPECT_EQ(
      parsed(options.write.output + "/config.json").dump().find("bfloat16"),
      std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Hf, LoraRun, testing::ValuesIn(saves(true)),
                         test_name);

class FullRun : public testing::TestWithParam<std::string> {};

std::string rounded(const StoredTensor& tensor) {
  std::string bytes;
  for (size_t i = 0; i < tensor.bytes.size() / 4; ++i) {
    const uint16_t half =
        bf16_from_float_bits(std::bit_cast<uint32_t>(value_of(tensor, i)));
    bytes.append(reinterpret_cast<const char*>(&half), 2);
  }
  return bytes;
}

TEST_P(FullRun, IsTheMastersRoundedToTheConfigsDtype) {
  const fs::path checkpoint = kHf / GetParam();
  const fs::path run = checkpoint.parent_path();
  TempFolder scratch;
  ExportOptions options;
  options.write.output = scratch / "out";
  options.write.sync = false;
  if (!fs::exists(checkpoint / "config.json")) options.base = run / "base";
  export_hf(checkpoint, options);
  const json config = parsed(options.write.output + "/config.json");
  const std::string dtype =
      config.contains("dtype") ? config["dtype"] : config["torch_dtype"];

  const StoredWeights truth = read_stored_file(run / "truth.safetensors");
  StoredWeights found = exported(options.write.output);
  size_t compared = 0;
  const bool is_lightning = GetParam().find("lightning") == 0;
  for (const auto& [truth_name, tensor] : truth.tensors) {
    if (truth_name.starts_with("buffer:")) continue;
    const std::string name =
        is_lightning ? truth_name.substr(6) : truth_name;  // "model."
    ASSERT_TRUE(found.tensors.contains(name)) << name;
    const StoredTensor& other = found.tensors.at(name);
    EXPECT_EQ(other.shape, tensor.shape) << name;
    if (dtype == "float32") {
      EXPECT_EQ(other.bytes, tensor.bytes) << name;
    } else {
      ASSERT_EQ(dtype, "bfloat16");
      EXPECT_EQ(other.bytes,
                tensor.dtype == "F32" ? rounded(tensor) : tensor.bytes)
          << name;
    }
    ++compared;
  }
  EXPECT_EQ(compared, found.tensors.size());
}

INSTANTIATE_TEST_SUITE_P(Hf, FullRun, testing::ValuesIn(saves(false)),
                         test_name);

}  // namespace
}  // namespace zckpt::test
