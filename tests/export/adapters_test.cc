// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "export/export_case.h"
#include "support/caught.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;

const std::string kPrefix = "base_model.model.";
const std::string kQ = kPrefix + "model.layers.0.q";
const std::string kK = kPrefix + "model.layers.0.k";
const std::string kEmbed = kPrefix + "model.embed_tokens";

// base + the sum of scale * B A, in float64, rounded once.
std::vector<float> merged(
    const StoredTensor& base,
    const std::vector<std::tuple<StoredTensor, StoredTensor, double>>& terms,
    bool transposed = false) {
  std::vector<float> result;
  const size_t rows = base.shape[0];
  const size_t cols = base.shape[1];
  const std::vector<float> start = values_of(base);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < cols; ++j) {
      double sum = start[i * cols + j];
      for (const auto& [a, b, scale] : terms) {
        const std::vector<float> left = values_of(b);
        const std::vector<float> right = values_of(a);
        const size_t rank = a.shape[0];
        const size_t in = a.shape[1];
        double product = 0;
        for (size_t k = 0; k < rank; ++k) {
          product += transposed
                         ? double{left[j * rank + k]} * right[k * in + i]
                         : double{left[i * rank + k]} * right[k * in + j];
        }
        sum += product * scale;
      }
      result.push_back(static_cast<float>(sum));
    }
  }
  return result;
}

class Adapters : public ExportCase {
 protected:
  Adapters() { add_factors("model.layers.0.q", 5, 3, 10); }

  StoredTensor& factor(const std::string& end, size_t number = 0) {
    return adapters_[number].tensors[kQ + end];
  }
  std::vector<float> q() {
    return values_of(written()["model.layers.0.q.weight"]);
  }
};

TEST_F(Adapters, IsAddedWithAlphaOverRank) {
  run();
  EXPECT_EQ(
      q(), merged(base_["model.layers.0.q.weight"],
                  {{factor(".lora_A.weight"), factor(".lora_B.weight"), 2.0}}));
  EXPECT_EQ(written()["model.layers.0.k.weight"],
            base_["model.layers.0.k.weight"]);
}

TEST_F(Adapters, SeveralAreSummedByWeightAndRoundedOnce) {
  add_factors("model.layers.0.q", 5, 3, 20, 1);
  write();
  options_.adapters[0].weight = 0.25;
  options_.adapters[1].weight = -3;
  const ExportResult result = export_hf(path_, options_);
  EXPECT_EQ(q(),
            merged(base_["model.layers.0.q.weight"],
                   {{factor(".lora_A.weight"), factor(".lora_B.weight"), 0.5},
                    {factor(".lora_A.weight", 1), factor(".lora_B.weight", 1),
                     -6.0}}));
  ASSERT_EQ(result.lora.size(), 1U);
  EXPECT_EQ(result.lora[0].rank, 4U);
  double largest = 0;
  double total = 0;
  const std::vector<float> before = values_of(base_["model.layers.0.q.weight"]);
  for (size_t i = 0; i < before.size(); ++i) {
    const double delta = std::abs(double{q()[i]} - before[i]);
    largest = std::max(largest, delta);
    total += delta / static_cast<double>(before.size());
  }
  EXPECT_NEAR(result.lora[0].max_delta, largest, 1e-6);
  EXPECT_NEAR(result.lora[0].mean_delta, total, 1e-6);
}

TEST_F(Adapters, NamesOfALiveModelAreUnderstood) {
  auto& tensors = adapters_[0].tensors;
  const auto a = tensors.extract(kQ + ".lora_A.weight").mapped();
  const auto b = tensors.extract(kQ + ".lora_B.weight").mapped();
  tensors[kQ + ".lora_A.default.weight"] = a;
  tensors[kQ + ".lora_B.default.weight"] = b;
  run();
  EXPECT_EQ(q(), merged(base_["model.layers.0.q.weight"], {{a, b, 2.0}}));
}

TEST_F(Adapters, ASquareWeightIsTransposedOnlyWhereTheConfigSaysSo) {
  for (const bool transposed : {false, true}) {
    adapters_.clear();
    add_factors("model.layers.0.k", 3, 3, 30);
    adapters_[0].config["fan_in_fan_out"] = transposed;
    options_.write.force = true;
    run();
    EXPECT_EQ(values_of(written()["model.layers.0.k.weight"]),
              merged(base_["model.layers.0.k.weight"],
                     {{adapters_[0].tensors[kK + ".lora_A.weight"],
                       adapters_[0].tensors[kK + ".lora_B.weight"], 2.0}},
                     transposed));
  }
}

TEST_F(Adapters, NoEffectIsSaid) {
  factor(".lora_B.weight") = floats_of({5, 2}, std::vector<float>(10, 0.0F));
  const ExportResult result = run();
  EXPECT_THAT(result.notes, Contains(HasSubstr("has no effect")));
  EXPECT_EQ(result.lora[0].max_delta, 0);
}

TEST_F(Adapters, OverflowIsCountedByWeight) {
  config_["torch_dtype"] = "float16";
  factor(".lora_B.weight") =
      floats_of({5, 2}, std::vector<float>(10, 60000.0F));
  const ExportResult result = run();
  EXPECT_GT(result.lora[0].overflowed, 0U);
  EXPECT_EQ(result.lora[0].overflowed, result.written.overflowed);
}

TEST_F(Adapters, ReplacedRowsAreTheAdaptersOwn) {
  for (const LoraMath math : {LoraMath::Exact, LoraMath::Peft}) {
    adapters_[0].tensors[kEmbed + ".token_adapter.trainable_tokens_delta"] =
        floats({2, 3}, 40);
    adapters_[0].config["trainable_token_indices"] = {5, 1};
    options_.math = math;
    options_.write.force = true;
    run();
    const std::vector<float> rows = values_of(floats({2, 3}, 40));
    std::vector<float> expected = values_of(base_["model.embed_tokens.weight"]);
    std::copy(rows.begin(), rows.begin() + 3, expected.begin() + 15);
    std::copy(rows.begin() + 3, rows.end(), expected.begin() + 3);
    EXPECT_EQ(values_of(written()["model.embed_tokens.weight"]), expected);
  }
}

TEST_F(Adapters, PeftHoldsWhatIsReplacedInTheBasesDtype) {
  // 1 + 2^-10 is no bfloat16.
  StoredTensor half{.dtype = "BF16", .shape = {6, 3}};
  half.bytes.assign(36, '\0');
  base_["model.embed_tokens.weight"] = half;
  adapters_[0].tensors[kEmbed + ".weight"] =
      floats_of({6, 3}, std::vector<float>(18, 1.0009765625F));
  adapters_[0].config["modules_to_save"] = {"embed_tokens"};
  for (const LoraMath math : {LoraMath::Exact, LoraMath::Peft}) {
    options_.math = math;
    options_.write.force = true;
    run();
    EXPECT_EQ(values_of(written()["model.embed_tokens.weight"])[0],
              math == LoraMath::Exact ? 1.0009765625F : 1.0F);
  }
}

// ---- what is refused ----

struct Refusal {
  const char* name;
  std::function<void(std::map<std::string, StoredTensor>& tensors,
                     nlohmann::ordered_json& config,
                     std::map<std::string, StoredTensor>& base,
                     ExportOptions& options)>
      change;
  ErrorCode code;
  const char* reason;
};

class Refused : public Adapters, public testing::WithParamInterface<Refusal> {};

TEST_P(Refused, WithTheTensor) {
  const Refusal& refusal = GetParam();
  refusal.change(adapters_[0].tensors, adapters_[0].config, base_, options_);
  const double weight =
      options_.adapters.empty() ? 1 : options_.adapters[0].weight;
  options_.adapters.clear();
  write();
  options_.adapters[0].weight = weight;
  const auto error = caught([&] { export_hf(path_, options_); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr(refusal.reason));
  EXPECT_EQ(error->code(), refusal.code) << error->what();
  EXPECT_FALSE(error->file().empty()) << error->what();
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

#define CHANGE                                                    \
  []([[maybe_unused]] std::map<std::string, StoredTensor> & t,    \
     [[maybe_unused]] nlohmann::ordered_json & config,            \
     [[maybe_unused]] std::map<std::string, StoredTensor> & base, \
     [[maybe_unused]] ExportOptions & options)

const std::string kTokens = kEmbed + ".token_adapter.trainable_tokens_delta";

const Refusal kRefusals[] = {
    {"PartTwice", CHANGE{t[kQ + ".lora_A.default.weight"] = floats({2, 3}, 9);
}  // namespace
, ErrorCode::Corrupt, "twice"
}  // namespace zckpt::test
, {"FactorsDoNotFit", CHANGE{t[kQ + ".lora_B.weight"] = floats({5, 3}, 9);
}
, ErrorCode::Corrupt, "do not fit each other"
}
, {"OtherDimensions", CHANGE{t[kQ + ".lora_B.weight"] = floats({5, 2, 1}, 9);
}
, ErrorCode::Unsupported, "other modules than linear ones"
}
, {"FactorOfIntegers", CHANGE{t[kQ + ".lora_B.weight"].dtype = "I32";
}
, ErrorCode::Unsupported, "factors of the type"
}
, {"NoFactorA", CHANGE{t.erase(kQ + ".lora_A.weight");
}
, ErrorCode::Corrupt, "counterpart lora_A"
}
, {"Infinite", CHANGE{std::vector<float> values(6, 1.0F);
values[4] = std::numeric_limits<float>::infinity();
t[kQ + ".lora_A.weight"] = floats_of({2, 3}, values);
}
, ErrorCode::Corrupt, "the first is element 4"
}
, {"TransposedUnsaid",
   CHANGE{base["model.layers.0.q.weight"] = floats({3, 5}, 2);
}
, ErrorCode::Corrupt, "does not say fan_in_fan_out"
}
, {"BaseOfIntegers",
   CHANGE{base["model.layers.0.q.weight"] = {
              .dtype = "I32", .shape = {5, 3}, .bytes = std::string(60, '\1')};
}
, ErrorCode::Unsupported, "quantised base"
}
, {"BaseOfDoubles",
   CHANGE{base["model.layers.0.q.weight"] = {
              .dtype = "F64", .shape = {5, 3}, .bytes = std::string(120, '\0')};
options.math = LoraMath::Peft;
}
, ErrorCode::Unsupported, "no float64 base"
}
, {"UnknownKey", CHANGE{config["use_something_new"] = true;
}
, ErrorCode::Unsupported, "use_something_new"
}
, {"LayerReplication", CHANGE{config["layer_replication"] = {{0, 1}, {0, 1}};
}
, ErrorCode::Unsupported, "layer_replication"
}
, {"NoName", CHANGE{t["model.layers.0.q.lora_A.weight"] = floats({2}, 1);
}
, ErrorCode::Corrupt, "no name of an adapter's tensor"
}
, {"NoNameOfAPart", CHANGE{t[kQ + ".lora_A.bias"] = floats({2}, 1);
}
, ErrorCode::Corrupt, "no name of an adapter's tensor"
}
, {"ReplacedByAnotherShape", CHANGE{t[kK + ".weight"] = floats({4, 3}, 5);
config["modules_to_save"] = {"k"};
}
, ErrorCode::Corrupt, "its shape is [4, 3]"
}
, {"VocabularyCut", CHANGE{t[kEmbed + ".weight"] = floats({5, 3}, 5);
config["modules_to_save"] = {"embed_tokens"};
}
, ErrorCode::Corrupt, "never cut"
}
, {"ReplacedAndScaled", CHANGE{t[kK + ".weight"] = floats({3, 3}, 5);
config["modules_to_save"] = {"k"};
options.adapters = {{.path = "", .weight = 0.5}};
}
, ErrorCode::Unsupported, "must be 1"
}
, {"CopiesDiffer", CHANGE{t[kEmbed + ".weight"] = floats({6, 3}, 5);
t[kEmbed + ".modules_to_save.weight"] = floats({6, 3}, 6);
config["modules_to_save"] = {"embed_tokens"};
}
, ErrorCode::Corrupt, "and they differ"
}
, {"TokensOfNoModule", CHANGE{t[kTokens] = floats({1, 3}, 5);
config["trainable_token_indices"] = {{"other", {1}}};
}
, ErrorCode::Corrupt, "which rows these are"
}
, {"TokensOfAnotherWidth", CHANGE{t[kTokens] = floats({1, 4}, 5);
config["trainable_token_indices"] = {1};
}
, ErrorCode::Corrupt, "for 1 row of"
}
, {"TokensCounted", CHANGE{t[kTokens] = floats({2, 3}, 5);
config["trainable_token_indices"] = {1};
}
, ErrorCode::Corrupt, "the tensors hold 2"
}
, {"TokensBeyond", CHANGE{t[kTokens] = floats({1, 3}, 5);
config["trainable_token_indices"] = {6};
}
, ErrorCode::Corrupt, "which has 6"
}
, {"TokensTwice", CHANGE{t[kTokens] = floats({2, 3}, 5);
config["trainable_token_indices"] = {3, 3};
}
, ErrorCode::Corrupt, "twice"
}
, {"TokensScaled", CHANGE{t[kTokens] = floats({1, 3}, 5);
config["trainable_token_indices"] = {1};
options.adapters = {{.path = "", .weight = 2}};
}
, ErrorCode::Unsupported, "must be 1"
}
, {"TokensAndFactors", CHANGE{t[kTokens] = floats({1, 3}, 5);
config["trainable_token_indices"] = {1};
t[kEmbed + ".lora_embedding_A"] = floats({2, 6}, 5);
t[kEmbed + ".lora_embedding_B"] = floats({3, 2}, 5);
}
, ErrorCode::Unsupported, "something else changes it too"
}
, {"MagnitudesOfAnotherModule",
   CHANGE{t[kQ + ".lora_magnitude_vector"] = floats({3}, 5);
config["use_dora"] = true;
}
, ErrorCode::Corrupt, "for 5 outputs of"
}
, {"DoraScaled", CHANGE{t[kQ + ".lora_magnitude_vector"] = floats({5}, 5);
config["use_dora"] = true;
options.adapters = {{.path = "", .weight = 2}};
}
, ErrorCode::Unsupported, "an adapter with DoRA cannot be scaled"
}
, {"DoraUnsaid", CHANGE{t[kQ + ".lora_magnitude_vector"] = floats({5}, 5);
}
, ErrorCode::Corrupt, "use_dora"
}
, {"BiasOfAnotherModule", CHANGE{t[kQ + ".lora_B.bias"] = floats({4}, 5);
config["lora_bias"] = true;
}
, ErrorCode::Corrupt, "its shape is [4]"
}
, {"NoBiasToAddTo", CHANGE{t[kQ + ".lora_B.bias"] = floats({5}, 5);
config["lora_bias"] = true;
base.erase("model.layers.0.q.bias");
}
, ErrorCode::Corrupt, "has no bias here"
}
,
}
;

INSTANTIATE_TEST_SUITE_P(Adapters, Refused, testing::ValuesIn(kRefusals),
                         [](const testing::TestParamInfo<Refusal>& each) {
                           return each.param.name;
                         });

class TwoAdapters : public Adapters {
 protected:
  TwoAdapters() { add_factors("model.layers.0.k", 3, 3, 50, 1); }
};

TEST_F(TwoAdapters, CannotReplaceOneWeight) {
  for (AdapterFolder& adapter : adapters_) {
    adapter.tensors[kEmbed + ".weight"] = floats({6, 3}, 5);
    adapter.config["modules_to_save"] = {"embed_tokens"};
  }
  const Error error = refused();
  EXPECT_EQ(error.code(), ErrorCode::Conflict);
  EXPECT_THAT(error.what(), HasSubstr("another adapter has already changed"));
}

TEST_F(TwoAdapters, CannotReplaceWhatAnotherChanged) {
  adapters_[1].tensors[kQ + ".weight"] = floats({5, 3}, 5);
  adapters_[1].config["modules_to_save"] = {"q"};
  EXPECT_EQ(refused().code(), ErrorCode::Conflict);
}

TEST_F(Adapters, AFolderWithoutAConfigIsNone) {
  write();
  fs::remove(folder_ / "adapter0/adapter_config.json");
  expect_error(ErrorCode::Invalid, {}, "this is no adapter",
               [&] { export_hf(path_, options_); });
}

TEST_F(Adapters, AFolderWithoutWeightsIsNone) {
  write();
  fs::remove(folder_ / "adapter0/adapter_model.safetensors");
  expect_error(ErrorCode::Invalid, {}, "no adapter_model.safetensors",
               [&] { export_hf(path_, options_); });
}

TEST_F(Adapters, AFolderThatIsNotThere) {
  write();
  options_.adapters[0].path = folder_ / "nowhere";
  expect_error(ErrorCode::Io, {}, "no such folder",
               [&] { export_hf(path_, options_); });
}

TEST_F(Adapters, AloneItNamesTheCommandForIt) {
  adapters_[0].config["base_model_name_or_path"] = "maker/model";
  write();
  const std::string adapter = options_.adapters[0].path;
  options_.adapters.clear();
  expect_error(ErrorCode::Invalid, {},
               "export-hf DIR --adapter " + adapter +
                   " -o OUT (DIR: a folder "
                   "with maker/model)",
               [&] { export_hf(adapter, options_); });
}

TEST_F(Adapters, AnotherBaseThanItsOwnIsSaid) {
  adapters_[0].config["base_model_name_or_path"] = "maker/model";
  EXPECT_THAT(run().notes, Contains(HasSubstr("names maker/model")));
}

}  // namespace
}  // namespace zckpt::test
