// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/zero_partitions.h"

// Names: aliases, frozen weights, buffers, placeholders, and what is lost.

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

class ModelContents : public testing::Test {
 protected:
  CheckedCheckpoint read(
      Writer writer, uint32_t ranks,
      const std::function<void(ZeroRun&)>& change_run = {},
      const std::function<void(ZeroCheckpoint&)>& change = {}) {
    fs::remove_all(folder_ / "run");
    ZeroRun run = sample_run(writer, ranks);
    if (change_run) change_run(run);
    made_ = std::make_unique<ZeroCheckpoint>(run);
    if (change) change(*made_);
    made_->write(folder_ / "run");
    return check_folder(folder_ / "run");
  }
  // "error frozen-missing adapter.bias"
  static std::string codes(const CheckedCheckpoint& checked) {
    std::string text;
    for (const Finding& finding : checked.findings) {
      text += std::string(to_string(finding.severity)) + " " + finding.code +
              " " + finding.tensor + ";";
    }
    return text;
  }
  using Aliases = std::vector<std::pair<std::string, std::string>>;

  TempFolder folder_;
  std::unique_ptr<ZeroCheckpoint> made_;
};

TEST_F(ModelContents, RecoversTiedNamesThatNothingDeclares) {
  for (const bool alias_first : {false, true}) {
    const auto checked = read(Writer::Stage2, 2, [&](ZeroRun& run) {
      run.no_shared_params = true;
      run.version = "0.9.1";
      if (alias_first) {
        run.module_order = {"head.weight", "embed.weight", "up.weight",
                            "gain",        "up.bias",      "norm.weight"};
      }
    });
    ASSERT_TRUE(checked.checkpoint) << describe(checked.findings);
    EXPECT_EQ(checked.checkpoint->facts().aliases,
              (Aliases{{"head.weight", "embed.weight"}}));
    EXPECT_EQ(checked.checkpoint->find("head.weight"), nullptr);
  }
}

TEST_F(ModelContents, IgnoresAnAliasOfOtherData) {
  const auto checked = read(Writer::Stage2, 2, {}, [](ZeroCheckpoint& made) {
    made.model().root.at("shared_params").set("adapter.weight", "up.weight");
  });
  EXPECT_EQ(codes(checked), "warning alias-implausible adapter.weight;");
  ASSERT_TRUE(checked.checkpoint);
  expect_truth(*checked.checkpoint, made_->truth());
}

TEST_F(ModelContents, IgnoresAnAliasThatHasWeightsOfItsOwn) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    const auto checked = read(writer, 2, {}, [](ZeroCheckpoint& made) {
      made.model().root.at("shared_params").set("gain", "up.bias");
    });
    EXPECT_EQ(codes(checked), "warning alias-implausible gain;");
    ASSERT_TRUE(checked.checkpoint);
    expect_truth(*checked.checkpoint, made_->truth());
  }
}

TEST_F(ModelContents, IgnoresAnAliasOfItself) {
  const auto checked = read(Writer::Stage3, 2, {}, [](ZeroCheckpoint& made) {
    made.model().root.at("shared_params").set("gain", "gain");
  });
  EXPECT_EQ(codes(checked), "warning alias-implausible gain;");
}

TEST_F(ModelContents, SaysThatAnAliasDangles) {
  const auto checked = read(Writer::Stage3, 2, {}, [](ZeroCheckpoint& made) {
    made.model().root.at("shared_params").set("ghost", "nowhere");
    made.model().root.at("module").set("ghost",
                                       Py::tensor(DType::BF16, {0}, "0"));
  });
  EXPECT_EQ(codes(checked), "warning alias-dangling ghost;");
  ASSERT_TRUE(checked.checkpoint);
  for (const std::string& name : checked.checkpoint->facts().module_order) {
    EXPECT_NE(name, "ghost");
  }
}

TEST_F(ModelContents, EndsAtACircleOfAliases) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    read(writer, 2, {}, [](ZeroCheckpoint& made) {
      made.model().root.at("shared_params").set("a", "b").set("b", "a");
    });
  }
}

// -- frozen

TEST_F(ModelContents, TakesFrozenWeightsOfStage1FromTheModule) {
  const auto checked = read(Writer::Stage1, 3);
  ASSERT_TRUE(checked.checkpoint) << describe(checked.findings);
  EXPECT_NE(checked.checkpoint->find("adapter.weight", Role::Frozen), nullptr);
  expect_truth(*checked.checkpoint, made_->truth());
}

TEST_F(ModelContents, SaysThatFrozenWeightsWereLeftOut) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    const auto checked =
        read(writer, 2, [](ZeroRun& run) { run.exclude_frozen = true; });
    EXPECT_EQ(codes(checked), "error frozen-missing ;");
    ASSERT_TRUE(checked.checkpoint);
    EXPECT_TRUE(checked.checkpoint->facts().frozen_excluded);
  }
}

// The alias of a weight that was left out stays behind in the module.
TEST_F(ModelContents, SeesThroughAnAliasOfAnExcludedWeight) {
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    const auto checked = read(
        writer, 2,
        [](ZeroRun& run) {
          run.exclude_frozen = true;
          run.aliases = {{"head.weight", "adapter.weight"}};
        },
        [&](ZeroCheckpoint& made) {
          if (writer != Writer::Stage2) return;
          const Py kept = made.model().archive.tensor(
              DType::BF16, {5, 5}, std::vector<uint16_t>(25, 0x3f80));
          made.model().root.at("module").set("head.weight", kept);
        });
    ASSERT_TRUE(checked.checkpoint);
    EXPECT_TRUE(checked.checkpoint->facts().frozen_excluded);
    EXPECT_EQ(codes(checked),
              writer == Writer::Stage2
                  ? "error frozen-missing ;"
                  : "note alias-dangling head.weight;error frozen-missing ;");
    EXPECT_EQ(checked.checkpoint->find("head.weight") != nullptr,
              writer == Writer::Stage2);
  }
}

TEST_F(ModelContents, ReportsAFrozenWeightWithoutData) {
  const auto checked = read(Writer::Stage2, 2, {}, [](ZeroCheckpoint& made) {
    made.model().root.at("frozen_param_fragments").erase("adapter.bias");
    made.model().root.at("module").erase("adapter.bias");
  });
  EXPECT_EQ(codes(checked), "error frozen-missing adapter.bias;");
}

TEST_F(ModelContents, ReportsWhatNvmeLeavesOfAFrozenWeight) {
  const auto checked = read(Writer::Stage3, 2, {}, [](ZeroCheckpoint& made) {
    for (uint32_t r = 0; r < 2; ++r) {
      made.model(r)
          .root.at("frozen_param_fragments")
          .set("adapter.weight",
               made.model(r).archive.tensor(DType::BF16, {1},
                                            std::vector<uint16_t>{1}));
    }
  });
  EXPECT_EQ(codes(checked), "error frozen-unrecoverable adapter.weight;");
  EXPECT_NE(checked.findings[0].message.find("NVMe"), std::string::npos);
}

TEST_F(ModelContents, ReportsQuantisedFrozenWeights) {
  const auto checked = read(Writer::Stage3, 2, {}, [](ZeroCheckpoint& made) {
    for (uint32_t r = 0; r < 2; ++r) {
      made.model(r)
          .root.at("ds_config")
          .at("zero_optimization")
          .set("zero_quantized_nontrainable_weights", true);
    }
  });
  EXPECT_NE(codes(checked).find("error frozen-unrecoverable adapter.weight;"),
            std::string::npos)
      << codes(checked);
}

TEST_F(ModelContents, ReportsAFragmentThatOneRankLacks) {
  const auto checked = read(Writer::Stage3, 3, {}, [](ZeroCheckpoint& made) {
    made.model(2).root.at("frozen_param_fragments").erase("adapter.weight");
  });
  EXPECT_EQ(codes(checked), "error frozen-unrecoverable adapter.weight;");
  EXPECT_NE(checked.findings[0].message.find("rank 2"), std::string::npos);
}

// Opening does not make verify's checks first.
TEST_F(ModelContents, SurvivesADamagedLeadingFile) {
  read(Writer::Stage3, 3);
  truncate_file(folder_ / ("run/global_step3/" + made_->model_name(0)), 0);
  const auto error = caught([&] { Checkpoint::open(folder_ / "run"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Corrupt);
}

// -- names without data

TEST_F(ModelContents, ReportsNamesWhoseDataIsNowhere) {
  const auto checked = read(Writer::Stage3, 2, {}, [](ZeroCheckpoint& made) {
    for (uint32_t r = 0; r < 2; ++r) {
      made.model(r).root.erase("frozen_param_shapes");
      made.model(r).root.erase("frozen_param_fragments");
    }
  });
  EXPECT_EQ(codes(checked),
            "error name-unaccounted adapter.weight;"
            "error name-unaccounted adapter.bias;");
}

// Up to 0.5.x a placeholder had one element, which is nobody's value.
TEST_F(ModelContents, TakesNoOldPlaceholderForAWeight) {
  const auto checked = read(Writer::Stage3, 2, [](ZeroRun& run) {
    run.old_placeholders = run.shapes_in_optim = true;
    run.exclude_frozen = false;
    run.version = "0.5.8";
  });
  ASSERT_TRUE(checked.checkpoint) << describe(checked.findings);
  EXPECT_EQ(checked.checkpoint->find("gain", Role::Model), nullptr);
}

TEST_F(ModelContents, ReportsAParameterThatIsListedTwice) {
  const auto checked = read(Writer::Stage2, 2, [](ZeroRun& run) {
    run.groups[1].push_back({"up.weight", {2}});
  });
  EXPECT_NE(codes(checked).find("error parameter-duplicate up.weight;"),
            std::string::npos)
      << describe(checked.findings);
  const auto error = caught([&] { Checkpoint::open(folder_ / "run"); });
  ASSERT_TRUE(error);
  EXPECT_FALSE(error->findings().empty());
}

// -- forms that make no sense

TEST_F(ModelContents, RefusesShapesThatAreNone) {
  const auto refuse = [&](const Py& shapes, const std::string& part) {
    SCOPED_TRACE(part);
    const auto checked = read(Writer::Stage2, 2, {}, [&](ZeroCheckpoint& made) {
      made.model().root.set("param_shapes", shapes);
    });
    EXPECT_FALSE(checked.checkpoint);
    ASSERT_EQ(checked.findings.size(), 1) << describe(checked.findings);
    EXPECT_NE(checked.findings[0].message.find(part), std::string::npos)
        << describe(checked.findings);
    EXPECT_EQ(checked.findings[0].file, "global_step3/" + made_->model_name());
  };
  const auto group = [](const Py& key, const Py& shape) {
    Py mapping = Py::ordered_dict();
    mapping.set(key, shape);
    return Py::list({mapping, Py::ordered_dict()});
  };
  refuse(7, "expected a list of mappings");
  refuse(Py::list({Py::list({1, 2}), 3}), "expected names with shapes");
  refuse(Py::list({Py(), Py()}), "expected names with shapes");
  refuse(group(7, Py::size({1})), "is no string");
  refuse(group("w", 7), "expected a shape");
  refuse(group("w", Py::tuple({"a"})), "no size");
  refuse(group("w", Py::tuple({-1})), "no size");
  const int64_t big = int64_t{1} << 40;
  refuse(group("w", Py::tuple({big, big})), "exceeds 64 bits");
}

TEST_F(ModelContents, RefusesAModuleThatIsNoDict) {
  const auto checked = read(Writer::Stage2, 2, {}, [](ZeroCheckpoint& made) {
    made.model().root.set("module", Py::list({1, 2, 3}));
  });
  EXPECT_FALSE(checked.checkpoint);
  EXPECT_FALSE(checked.findings.empty());
}

TEST_F(ModelContents, ReadsShapesThatAreLists) {
  const auto checked = read(Writer::Stage2, 2, {}, [](ZeroCheckpoint& made) {
    Py groups = made.model().root.at("param_shapes");
    Py first = Py::ordered_dict();
    first.set("embed.weight", Py::list({11, 6}));
    first.set("up.weight", Py::tuple({5, 6}));
    Py second = Py::ordered_dict();
    second.set("gain", Py::list({1}));
    second.set("up.bias", Py::list({5}));
    second.set("norm.weight", Py::list({7}));
    made.model().root.set("param_shapes", Py::list({first, second}));
  });
  ASSERT_TRUE(checked.checkpoint) << describe(checked.findings);
  expect_truth(*checked.checkpoint, made_->truth());
}

TEST_F(ModelContents, NeedsParamShapes) {
  for (const Writer writer :
       {Writer::Stage2, Writer::Stage3, Writer::OldStage1}) {
    const auto checked = read(writer, 2, {}, [&](ZeroCheckpoint& made) {
      for (uint32_t r = 0; r < (writer == Writer::Stage3 ? 2 : 1); ++r) {
        made.model(r).root.set("param_shapes", Py());
      }
    });
    EXPECT_FALSE(checked.checkpoint);
    ASSERT_EQ(checked.findings.size(), 1);
    EXPECT_NE(checked.findings[0].message.find("param_shapes"),
              std::string::npos);
  }
}

// -- stage 0: masters without names

TEST_F(ModelContents, NamesNoMastersThatFitTwice) {
  const auto checked = read(
      Writer::Stage0, 1,
      [](ZeroRun& run) {
        run.groups = {{{"a", {4}}}};
        run.frozen.clear();
        run.aliases.clear();
      },
      [](ZeroCheckpoint& made) {
        // A frozen weight of the same values.
        made.model().root.at("module").set(
            "b", made.model().archive.tensor(
                     DType::BF16, {4}, encode(DType::BF16, values_of("a", 4))));
      });
  ASSERT_TRUE(checked.checkpoint);
  EXPECT_EQ(checked.checkpoint->find("a", Role::Master), nullptr);
  EXPECT_NE(checked.checkpoint->find("a", Role::Model), nullptr);
  ASSERT_FALSE(checked.checkpoint->facts().notes.empty());
}

// Weights that all look alike once made the search try every order.
TEST_F(ModelContents, EndsWhereEveryMasterFitsEveryName) {
  const auto checked = read(
      Writer::Stage0, 1,
      [](ZeroRun& run) {
        run.groups = {{{"a", {1}}}, {{"b", {1}}}};
        run.frozen.clear();
        run.aliases.clear();
        run.buffers.clear();
      },
      [](ZeroCheckpoint& made) {
        auto& shard = made.model();
        Py module = Py::ordered_dict();
        for (int i = 0; i < 800; ++i) {
          module.set(
              "w" + std::to_string(i),
              shard.archive.tensor(DType::BF16, {1}, std::vector<uint16_t>{0}));
        }
        shard.root.set("module", module);
        const auto zeros = [&](size_t numel) {
          return shard.archive.tensor(DType::F32, {static_cast<int64_t>(numel)},
                                      std::vector<float>(numel));
        };
        shard.root.set("optimizer",
                       Py::dict({{"fp32_groups_flat",
                                  Py::list({zeros(300), zeros(300)})}}));
      });
  ASSERT_TRUE(checked.checkpoint);
  EXPECT_EQ(checked.checkpoint->find("w0", Role::Master), nullptr);
}

}  // namespace
}  // namespace zckpt::test
