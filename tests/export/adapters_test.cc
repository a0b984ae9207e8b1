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

// fan_in_fan_out speaks of the module that PEFT wrapped last.
TEST_F(Adapters, OfGpt2NamesTellWhatIsTransposed) {
  base_["h.0.c_proj.weight"] = floats({3, 3}, 7);
  for (const bool said : {false, true}) {
    adapters_.clear();
    add_factors("h.0.c_proj", 3, 3, 30);
    add_factors("model.layers.0.k", 3, 3, 40);
    adapters_[0].config["fan_in_fan_out"] = said;
    config_["model_type"] = "gpt2";
    options_.write.force = true;
    run();
    auto& tensors = adapters_[0].tensors;
    const std::string c = kPrefix + "h.0.c_proj";
    EXPECT_EQ(values_of(written()["h.0.c_proj.weight"]),
              merged(base_["h.0.c_proj.weight"],
                     {{tensors[c + ".lora_A.weight"],
                       tensors[c + ".lora_B.weight"], 2.0}},
                     /*transposed=*/true));
    EXPECT_EQ(values_of(written()["model.layers.0.k.weight"]),
              merged(base_["model.layers.0.k.weight"],
                     {{tensors[kK + ".lora_A.weight"],
                       tensors[kK + ".lora_B.weight"], 2.0}}));
  }
}

TEST_F(Adapters, OfOtherModelsASquareWeightIsNotGuessed) {
  adapters_.clear();
  add_factors("model.layers.0.k", 3, 3, 30);
  adapters_[0].config["fan_in_fan_out"] = true;
  const Error error = refused();
  EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  EXPECT_THAT(error.what(), HasSubstr("is square"));
}

TEST_F(Adapters, APrefixThatTheFilesLackIsFound) {
  std::map<std::string, StoredTensor> bare;
  for (const auto& [name, tensor] : base_) bare[name.substr(6)] = tensor;
  base_ = bare;
  run();
  EXPECT_EQ(
      values_of(written()["layers.0.q.weight"]),
      merged(base_["layers.0.q.weight"],
             {{factor(".lora_A.weight"), factor(".lora_B.weight"), 2.0}}));
}

TEST_F(Adapters, ASavedModuleThatIsNotThereIsRefused) {
  adapters_[0].config["modules_to_save"] = {"embed_tokens", "score"};
  const Error error = refused();
  EXPECT_EQ(error.code(), ErrorCode::Corrupt);
  EXPECT_THAT(error.what(), HasSubstr("modules_to_save lists embed_tokens"));
}

TEST_F(Adapters, TargetsWithoutFactorsAreSaid) {
  adapters_[0].config["target_modules"] = {"q", "k"};
  EXPECT_THAT(run().notes, Contains(HasSubstr("no factors for, such as "
                                              "model.layers.0.k")));
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

// What a refusal changes in the sound adapter on q.
struct Parts {
  std::map<std::string, StoredTensor>& t;  // the adapter's tensors
  nlohmann::ordered_json& config;
  std::map<std::string, StoredTensor>& base;
  double weight = 1;
  LoraMath math = LoraMath::Exact;
};

struct Refusal {
  const char* name;
  void (*change)(Parts& parts);
  ErrorCode code;
  const char* reason;
};

class Refused : public Adapters, public testing::WithParamInterface<Refusal> {};

TEST_P(Refused, WithTheTensor) {
  const Refusal& refusal = GetParam();
  Parts parts{adapters_[0].tensors, adapters_[0].config, base_};
  refusal.change(parts);
  options_.math = parts.math;
  write();
  options_.adapters[0].weight = parts.weight;
  const auto error = caught([&] { export_hf(path_, options_); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr(refusal.reason));
  EXPECT_EQ(error->code(), refusal.code) << error->what();
  EXPECT_FALSE(error->file().empty()) << error->what();
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

const std::string kTokens = kEmbed + ".token_adapter.trainable_tokens_delta";

const Refusal kRefusals[] = {
    {"PartTwice",
     [](Parts& p) {
       p.t[kQ + ".lora_A.default.weight"] = floats({2, 3}, 9);
     },
     ErrorCode::Corrupt, "twice"},
    {"FactorsDoNotFit",
     [](Parts& p) {
       p.t[kQ + ".lora_B.weight"] = floats({5, 3}, 9);
     },
     ErrorCode::Corrupt, "do not fit each other"},
    {"OtherDimensions",
     [](Parts& p) {
       p.t[kQ + ".lora_B.weight"] = floats({5, 2, 1}, 9);
     },
     ErrorCode::Unsupported, "other modules than linear ones"},
    {"FactorOfIntegers",
     [](Parts& p) { p.t[kQ + ".lora_B.weight"].dtype = "I32"; },
     ErrorCode::Unsupported, "factors of the type"},
    {"NoFactorA", [](Parts& p) { p.t.erase(kQ + ".lora_A.weight"); },
     ErrorCode::Corrupt, "counterpart lora_A"},
    {"Infinite",
     [](Parts& p) {
       std::vector<float> values(6, 1.0F);
       values[4] = std::numeric_limits<float>::infinity();
       p.t[kQ + ".lora_A.weight"] = floats_of({2, 3}, values);
     },
     ErrorCode::Corrupt, "the first is element 4"},
    {"TransposedUnsaid",
     [](Parts& p) {
       p.base["model.layers.0.q.weight"] = floats({3, 5}, 2);
     },
     ErrorCode::Corrupt, "its factors are for a weight of"},
    {"BaseOfIntegers",
     [](Parts& p) {
       p.base["model.layers.0.q.weight"] = {
           .dtype = "I32", .shape = {5, 3}, .bytes = std::string(60, '\1')};
     },
     ErrorCode::Unsupported, "quantised base"},
    {"BaseOfDoubles",
     [](Parts& p) {
       p.base["model.layers.0.q.weight"] = {
           .dtype = "F64", .shape = {5, 3}, .bytes = std::string(120, '\0')};
       p.math = LoraMath::Peft;
     },
     ErrorCode::Unsupported, "no float64 base"},
    {"UnknownKey", [](Parts& p) { p.config["use_something_new"] = true; },
     ErrorCode::Unsupported, "use_something_new"},
    {"LayerReplication",
     [](Parts& p) {
       p.config["layer_replication"] = {{0, 1}, {0, 1}};
     },
     ErrorCode::Unsupported, "layer_replication"},
    {"NoName",
     [](Parts& p) { p.t["model.layers.0.q.lora_A.weight"] = floats({2}, 1); },
     ErrorCode::Corrupt, "no name of an adapter's tensor"},
    {"NoNameOfAPart",
     [](Parts& p) { p.t[kQ + ".lora_A.bias"] = floats({2}, 1); },
     ErrorCode::Corrupt, "no name of an adapter's tensor"},
    {"ReplacedByAnotherShape",
     [](Parts& p) {
       p.t[kK + ".weight"] = floats({4, 3}, 5);
       p.config["modules_to_save"] = {"k"};
     },
     ErrorCode::Corrupt, "its shape is [4, 3]"},
    {"VocabularyCut",
     [](Parts& p) {
       p.t[kEmbed + ".weight"] = floats({5, 3}, 5);
       p.config["modules_to_save"] = {"embed_tokens"};
     },
     ErrorCode::Corrupt, "never cut"},
    {"ReplacedAndScaled",
     [](Parts& p) {
       p.t[kK + ".weight"] = floats({3, 3}, 5);
       p.config["modules_to_save"] = {"k"};
       p.weight = 0.5;
     },
     ErrorCode::Unsupported, "must be 1"},
    {"CopiesDiffer",
     [](Parts& p) {
       p.t[kEmbed + ".weight"] = floats({6, 3}, 5);
       p.t[kEmbed + ".modules_to_save.weight"] = floats({6, 3}, 6);
       p.config["modules_to_save"] = {"embed_tokens"};
     },
     ErrorCode::Corrupt, "and they differ"},
    {"TokensOfNoModule",
     [](Parts& p) {
       p.t[kTokens] = floats({1, 3}, 5);
       p.config["trainable_token_indices"] = {{"other", {1}}};
     },
     ErrorCode::Corrupt, "lists 0 tokens, the tensors hold 1"},
    {"TokensOfAnotherWidth",
     [](Parts& p) {
       p.t[kTokens] = floats({1, 4}, 5);
       p.config["trainable_token_indices"] = {1};
     },
     ErrorCode::Corrupt, "for 1 row of"},
    {"TokensCounted",
     [](Parts& p) {
       p.t[kTokens] = floats({2, 3}, 5);
       p.config["trainable_token_indices"] = {1};
     },
     ErrorCode::Corrupt, "the tensors hold 2"},
    {"TokensBeyond",
     [](Parts& p) {
       p.t[kTokens] = floats({1, 3}, 5);
       p.config["trainable_token_indices"] = {6};
     },
     ErrorCode::Corrupt, "which has 6"},
    {"TokensTwice",
     [](Parts& p) {
       p.t[kTokens] = floats({2, 3}, 5);
       p.config["trainable_token_indices"] = {3, 3};
     },
     ErrorCode::Corrupt, "twice"},
    {"TokensScaled",
     [](Parts& p) {
       p.t[kTokens] = floats({1, 3}, 5);
       p.config["trainable_token_indices"] = {1};
       p.weight = 2;
     },
     ErrorCode::Unsupported, "must be 1"},
    {"TokensAndFactors",
     [](Parts& p) {
       p.t[kTokens] = floats({1, 3}, 5);
       p.config["trainable_token_indices"] = {1};
       p.t[kEmbed + ".lora_embedding_A"] = floats({2, 6}, 5);
       p.t[kEmbed + ".lora_embedding_B"] = floats({3, 2}, 5);
     },
     ErrorCode::Unsupported, "something else changes it too"},
    {"MagnitudesOfAnotherModule",
     [](Parts& p) {
       p.t[kQ + ".lora_magnitude_vector"] = floats({3}, 5);
       p.config["use_dora"] = true;
     },
     ErrorCode::Corrupt, "for 5 outputs of"},
    {"DoraScaled",
     [](Parts& p) {
       p.t[kQ + ".lora_magnitude_vector"] = floats({5}, 5);
       p.config["use_dora"] = true;
       p.weight = 2;
     },
     ErrorCode::Unsupported, "an adapter with DoRA cannot be scaled"},
    {"DoraUnsaid",
     [](Parts& p) { p.t[kQ + ".lora_magnitude_vector"] = floats({5}, 5); },
     ErrorCode::Corrupt, "use_dora"},
    {"BiasOfAnotherModule",
     [](Parts& p) {
       p.t[kQ + ".lora_B.bias"] = floats({4}, 5);
       p.config["lora_bias"] = true;
     },
     ErrorCode::Corrupt, "its shape is [4]"},
    {"NoBiasToAddTo",
     [](Parts& p) {
       p.t[kQ + ".lora_B.bias"] = floats({5}, 5);
       p.config["lora_bias"] = true;
       p.base.erase("model.layers.0.q.bias");
     },
     ErrorCode::Corrupt, "has no bias here"},
};

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
  adapters_[1].tensors[kQ + ".bias"] = floats({5}, 6);
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
