// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/caught.h"
#include "support/checkpoint_tools.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

class Discovery : public testing::Test {
 protected:
  // Only names count here, so shards are empty files.
  void shards(const std::string& folder) const {
    write_bytes(folder_ / (folder + "/mp_rank_00_model_states.pt"), "");
  }
  void file(const std::string& name, const std::string& text = "") const {
    write_bytes(folder_ / name, text);
  }
  std::vector<CheckpointPath> find(const std::string& path,
                                   const OpenOptions& options = {}) const {
    return find_checkpoints(folder_ / path, options);
  }
  // "folder:tag" below the test's folder.
  std::vector<std::string> names(const std::string& path,
                                 const OpenOptions& options = {}) const {
    std::vector<std::string> list;
    for (const CheckpointPath& found : find(path, options)) {
      list.push_back(
          fs::path(found.folder).lexically_relative(folder_.path()).string() +
          ":" + found.tag);
    }
    return list;
  }
  static std::string codes(const CheckpointPath& found) {
    std::string text;
    for (const Finding& finding : found.findings) text += finding.code + " ";
    return text;
  }
  void refuse(const std::string& path, ErrorCode code, const std::string& part,
              const OpenOptions& options = {}) const {
    expect_error(code, {}, part, [&] { find(path, options); });
  }
  static OpenOptions with_tag(const std::string& tag) {
    OpenOptions options;
    options.tag = tag;
    return options;
  }

  TempFolder folder_;
};

using testing::ElementsAre;

TEST_F(Discovery, TakesTheFolderWithLatest) {
  shards("run/global_step7");
  file("run/latest", " global_step7\n");
  EXPECT_THAT(names("run"), ElementsAre("run:global_step7"));
  const CheckpointPath found = find("run").front();
  EXPECT_EQ(found.tag_folder, folder_ / "run/global_step7");
  EXPECT_EQ(found.framework, Framework::DeepSpeed);
  EXPECT_EQ(found.step, 7);
  EXPECT_EQ(codes(found), "");
  EXPECT_THAT(found.notes, testing::IsEmpty());
}

TEST_F(Discovery, TakesTheTagFolderItself) {
  shards("run/global_step7");
  for (const char* path : {"run/global_step7", "run/global_step7/",
                           "run/global_step7/.", "run/x/../global_step7"}) {
    fs::create_directories(folder_ / "run/x");
    EXPECT_THAT(names(path), ElementsAre("run:global_step7")) << path;
  }
  const fs::path before = fs::current_path();
  fs::current_path(folder_ / "run/global_step7");
  const auto found = find_checkpoints(".", {});
  fs::current_path(before);
  EXPECT_EQ(found.front().tag, "global_step7");
  EXPECT_THAT(names("run/global_step7", with_tag("global_step7")),
              ElementsAre("run:global_step7"));
  refuse("run/global_step7", ErrorCode::Invalid, "itself the tag folder",
         with_tag("global_step8"));
}

TEST_F(Discovery, TakesTheTagThatIsAskedFor) {
  shards("run/global_step7");
  shards("run/global_step9");
  file("run/latest", "global_step9");
  EXPECT_THAT(names("run", with_tag("global_step7")),
              ElementsAre("run:global_step7"));
  refuse("run", ErrorCode::Invalid, "there are: global_step7 global_step9",
         with_tag("global_step8"));
  for (const char* tag :
       {"..", ".", "../run/global_step7", "/tmp", "global_step7/"}) {
    refuse("run", ErrorCode::Invalid, "there is no folder", with_tag(tag));
  }
}

TEST_F(Discovery, OrdersTagsAsNumbers) {
  for (const char* tag : {"global_step900", "global_step1000", "global_step20"})
    shards(std::string("run/") + tag);
  file("run/latest", "global_step900");
  EXPECT_THAT(names("run"),
              ElementsAre("run:global_step1000", "run:global_step900",
                          "run:global_step20"));
  // What latest says otherwise is told.
  const CheckpointPath taken = find("run").front();
  EXPECT_EQ(codes(taken), "");
  ASSERT_EQ(taken.notes.size(), 1);
  EXPECT_NE(taken.notes[0].find("latest names global_step900"),
            std::string::npos);
}

TEST_F(Discovery, SaysThatLatestIsMissing) {
  shards("run/global_step7");
  EXPECT_EQ(codes(find("run").front()), "latest-missing ");
  EXPECT_EQ(find("run").front().findings[0].file, "latest");
}

TEST_F(Discovery, SaysThatLatestDangles) {
  shards("run/global_step7");
  fs::create_directories(folder_ / "run/global_step9");
  for (const char* text :
       {"global_step8", "global_step9", "", "../run/global_step7", "/etc", ".",
        "global_step7/../global_step7"}) {
    file("run/latest", text);
    EXPECT_EQ(codes(find("run").front()), "latest-dangling ") << text;
    EXPECT_THAT(names("run"), ElementsAre("run:global_step7"));
  }
  file("run/latest", std::string("global_step7\0x", 14));
  EXPECT_EQ(codes(find("run").front()), "latest-dangling ");
}

TEST_F(Discovery, RefusesALatestWithoutAnyShards) {
  file("run/latest", "global_step7");
  refuse("run", ErrorCode::Invalid, "latest names the tag folder");
}

TEST_F(Discovery, RefusesTagsThatNothingOrders) {
  shards("run/best");
  shards("run/last");
  refuse("run", ErrorCode::Invalid, "choose one with --tag");
  file("run/latest", "last");
  EXPECT_THAT(names("run"), ElementsAre("run:last"));
}

TEST_F(Discovery, OrdersTheCheckpointsOfARunAsNumbers) {
  for (const char* step : {"900", "1000", "20"}) {
    shards("run/checkpoint-" + std::string(step) + "/global_step1");
    file("run/checkpoint-" + std::string(step) + "/latest", "global_step1");
  }
  file("run/runs/events.out", "");
  EXPECT_THAT(names("run"), ElementsAre("run/checkpoint-1000:global_step1",
                                        "run/checkpoint-900:global_step1",
                                        "run/checkpoint-20:global_step1"));
  EXPECT_EQ(find("run").front().framework, Framework::HfTrainer);
  EXPECT_EQ(find("run/checkpoint-900/").front().framework,
            Framework::HfTrainer);
}

TEST_F(Discovery, OffersTheFinalSaveBesideTheCheckpoints) {
  shards("run/global_step5");
  file("run/latest", "global_step5");
  file("run/trainer_state.json", R"({"global_step": 20})");
  shards("run/checkpoint-20/global_step20");
  file("run/checkpoint-20/latest", "global_step20");
  // On a tie the folder itself.
  EXPECT_THAT(names("run"), ElementsAre("run:global_step5",
                                        "run/checkpoint-20:global_step20"));
  file("run/trainer_state.json", R"({"global_step": 19})");
  EXPECT_THAT(names("run"), ElementsAre("run/checkpoint-20:global_step20",
                                        "run:global_step5"));
}

TEST_F(Discovery, ReadsNoStepFromATrainerStateThatMakesNoSense) {
  shards("run/global_step5");
  for (const char* text :
       {"", "[]", "{", R"({"global_step": -3})", R"({"global_step": "7"})",
        R"({"global_step": 1e3})"}) {
    file("run/trainer_state.json", text);
    EXPECT_EQ(find("run").front().step, 5) << text;
  }
}

TEST_F(Discovery, FindsCheckpointsBelowARunThatMakesNoSense) {
  file("run/latest", "global_step9");
  shards("run/checkpoint-3/global_step3");
  file("run/checkpoint-3/latest", "global_step3");
  EXPECT_THAT(names("run"), ElementsAre("run/checkpoint-3:global_step3"));
  ASSERT_FALSE(find("run").front().notes.empty());
  EXPECT_NE(find("run").front().notes[0].find("global_step9"),
            std::string::npos);
}

TEST_F(Discovery, SeesACheckpointThatWasCutShort) {
  shards("run/checkpoint-3/global_step3");
  file("run/checkpoint-3/latest", "global_step3");
  file("run/checkpoint-4/latest", "global_step4");
  const auto found = find("run");
  ASSERT_EQ(found.size(), 2);
  EXPECT_NE(found[0].problem.find("global_step4"), std::string::npos);
  EXPECT_EQ(found[1].problem, "");
}

TEST_F(Discovery, KnowsTheFrameworks) {
  shards("state/pytorch_model");
  file("state/latest", "pytorch_model");
  EXPECT_EQ(find("state").front().framework, Framework::Accelerate);
  shards("runs/last.ckpt/checkpoint");
  file("runs/last.ckpt/latest", "checkpoint");
  EXPECT_EQ(find("runs/last.ckpt").front().framework, Framework::Lightning);
  EXPECT_THAT(names("runs"), ElementsAre("runs/last.ckpt:checkpoint"));
  shards("save/checkpoint_2/pytorch_model");
  EXPECT_THAT(names("save"), ElementsAre("save/checkpoint_2:pytorch_model"));
  EXPECT_EQ(find("save").front().step, 2);
}

TEST_F(Discovery, TakesFoldersOfWeights) {
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json",
        "pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    file(std::string(name) + ".d/" + name);
    const CheckpointPath found = find(std::string(name) + ".d").front();
    EXPECT_EQ(found.framework, Framework::Weights) << name;
    EXPECT_EQ(found.tag, "");
  }
}

TEST_F(Discovery, PrefersShardsToTheWeightsBesideThem) {
  shards("run/global_step7");
  file("run/latest", "global_step7");
  file("run/model.safetensors");
  EXPECT_THAT(names("run"), ElementsAre("run:global_step7"));
}

TEST_F(Discovery, SaysWhatElseAFolderIs) {
  fs::create_directories(folder_ / "empty");
  refuse("empty", ErrorCode::Invalid, "found none");
  file("adapter/adapter_config.json");
  refuse("adapter", ErrorCode::Invalid, "PEFT adapter");
  file("fsdp/__0_0.distcp");
  refuse("fsdp", ErrorCode::Invalid, "FSDP");
  fs::create_directories(folder_ / "megatron/iter_0000100");
  refuse("megatron", ErrorCode::Invalid, "Megatron");
  file("universal/latest_universal");
  refuse("universal", ErrorCode::Invalid, "universal");
  fs::create_directories(folder_ / "universal2/zero");
  refuse("universal2", ErrorCode::Invalid, "universal");
}

TEST_F(Discovery, RefusesWhatIsNoFolder) {
  refuse("nothing", ErrorCode::Io, "no such file or folder");
  file("file.pt");
  refuse("file.pt", ErrorCode::Invalid, "this is a file");
  refuse(std::string(5000, 'x'), ErrorCode::Io, "no such file");
  fs::create_symlink("loop", folder_ / "loop");
  refuse("loop", ErrorCode::Io, "no such file");
}

TEST_F(Discovery, IgnoresLinksThatLeadNowhere) {
  shards("run/global_step7");
  file("run/latest", "global_step7");
  fs::create_symlink("gone", folder_ / "run/dangling");
  fs::create_symlink("loop", folder_ / "run/loop");
  EXPECT_THAT(names("run"), ElementsAre("run:global_step7"));
}

// -- --also

TEST_F(Discovery, ResolvesAlso) {
  shards("run/global_step7");
  file("run/latest", "global_step7");
  shards("node1/global_step7");
  for (const char* also : {"node1", "node1/global_step7"}) {
    OpenOptions options;
    options.also = {folder_ / also};
    EXPECT_THAT(find("run", options).front().also,
                ElementsAre(folder_ / "node1/global_step7"));
  }
}

TEST_F(Discovery, RefusesAnAlsoThatHoldsNothing) {
  shards("run/global_step7");
  fs::create_directories(folder_ / "node1/global_step8");
  OpenOptions options;
  options.also = {folder_ / "node1"};
  refuse("run", ErrorCode::Invalid, "no folder global_step7", options);
  options.also = {folder_ / "node2"};
  refuse("run", ErrorCode::Io, "no such folder (--also)", options);
  options.also = {folder_ / std::string(5000, 'x')};
  refuse("run", ErrorCode::Io, "no such folder (--also)", options);
}

TEST_F(Discovery, NeedsAlsoForOneTagOnly) {
  shards("run/global_step7");
  shards("run/global_step9");
  shards("node1/global_step9");
  OpenOptions options;
  options.also = {folder_ / "node1"};
  const auto found = find("run", options);
  ASSERT_EQ(found.size(), 2);
  EXPECT_THAT(found[0].also, ElementsAre(folder_ / "node1/global_step9"));
  EXPECT_THAT(found[1].also, testing::IsEmpty());
}

}  // namespace
}  // namespace zckpt::test
