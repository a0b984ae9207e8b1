// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "support/checkpoint_tools.h"
#include "support/zero_checkpoint.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

uint64_t bytes_of(const std::vector<ContentBytes>& contents,
                  const std::string& content) {
  for (const ContentBytes& part : contents) {
    if (part.content == content) return part.bytes;
  }
  return 0;
}

// Every file of the folder is listed with its size, which its contents add up
// to; the totals add up to all of them.
void expect_every_byte(const Inspection& inspection, const fs::path& folder) {
  std::map<std::string, uint64_t> sizes;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      sizes[entry.path().lexically_relative(folder).string()] =
          entry.file_size();
    }
  }
  uint64_t total = 0;
  for (const FileBytes& file : inspection.files) {
    ASSERT_TRUE(sizes.contains(file.file)) << file.file;
    EXPECT_EQ(file.bytes, sizes[file.file]) << file.file;
    uint64_t sum = 0;
    for (const ContentBytes& part : file.contents) sum += part.bytes;
    EXPECT_EQ(sum, file.bytes) << file.file;
    total += file.bytes;
    sizes.erase(file.file);
  }
  EXPECT_THAT(sizes, testing::IsEmpty());
  EXPECT_EQ(inspection.total_bytes, total);
  uint64_t sum = 0;
  for (const ContentBytes& part : inspection.totals) sum += part.bytes;
  EXPECT_EQ(sum, total);
}

std::vector<std::string> fixture_cases() {
  std::vector<std::string> cases;
  for (const auto& entry : fs::directory_iterator(ZCKPT_FIXTURES "/zero")) {
    cases.push_back(entry.path().filename().string());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

class Fixtures : public testing::TestWithParam<std::string> {};

// The sizes come from case.json, which was written from the run's memory.
TEST_P(Fixtures, EveryByteIsAccountedFor) {
  const fs::path folder = fs::path(ZCKPT_FIXTURES "/zero") / GetParam();
  const auto facts =
      nlohmann::json::parse(read_bytes(folder / "case.json"), nullptr, false);
  const Inspection inspection = inspect((folder / "ckpt").string());
  expect_every_byte(inspection, folder / "ckpt");
  if (!inspection.checkpoint || facts["stage"] == 0) return;

  uint64_t trained = 0;
  for (const auto& [name, shape] : facts["parameters"].items()) {
    uint64_t numel = 1;
    for (const auto& size : shape) numel *= size.get<uint64_t>();
    trained += numel;
  }
  const bool narrow = GetParam().find("bf16masters") != std::string::npos;
  const uint64_t size = narrow ? 2 : 4;
  EXPECT_EQ(bytes_of(inspection.totals, "masters"), trained * size);
  for (const auto& state : facts["optimizer_states"]) {
    EXPECT_EQ(bytes_of(inspection.totals, state.get<std::string>()),
              trained * size)
        << state;
  }
}

INSTANTIATE_TEST_SUITE_P(Zero, Fixtures, testing::ValuesIn(fixture_cases()),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) ==
                                 0) {
                               c = '_';
                             }
                           }
                           return name;
                         });

TEST(Inspect, CountsStage3PaddingPerRank) {
  ZeroRun run;
  run.writer = Writer::Stage3;
  run.ranks = 3;
  run.groups = {{{"a", {7}}, {"b", {1}}}};  // 3 + 1 elements on each rank
  TempFolder folder;
  ZeroCheckpoint(run).write(folder.path());
  const Inspection inspection = inspect(folder.path().string());
  expect_every_byte(inspection, folder.path());
  // 3 ranks x 4 elements of masters and two moments; 8 are no padding.
  EXPECT_EQ(bytes_of(inspection.totals, "masters"), 8U * 4);
  EXPECT_EQ(bytes_of(inspection.totals, "padding"), 3 * (12U - 8) * 4);
}

TEST(Inspect, TellsWhatItIsAndWhatIsTied) {
  TempFolder folder;
  ZeroCheckpoint(sample_run(Writer::Stage2, 3)).write(folder.path());
  const Inspection inspection = inspect(folder.path().string());
  EXPECT_EQ(inspection.facts.layout, "ZeRO-2");
  EXPECT_EQ(inspection.facts.world_size, 3U);
  EXPECT_EQ(inspection.facts.step, 3);
  EXPECT_EQ(inspection.facts.deepspeed_version, "0.19.8");
  EXPECT_FALSE(inspection.facts.aliases.empty());
  EXPECT_TRUE(inspection.checkpoint.has_value());
}

TEST(Inspect, DamageIsAFindingAndItsBytesAreUnread) {
  TempFolder folder;
  const ZeroCheckpoint checkpoint(sample_run(Writer::Stage2, 2));
  checkpoint.write(folder.path());
  const fs::path damaged =
      folder.path() / "global_step3" / checkpoint.optim_name(1);
  truncate_file(damaged, 100);
  const Inspection inspection = inspect(folder.path().string());
  expect_every_byte(inspection, folder.path());
  EXPECT_FALSE(inspection.checkpoint.has_value());
  EXPECT_EQ(bytes_of(inspection.totals, "unread"), 100U);
  ASSERT_FALSE(inspection.findings.empty());
  EXPECT_EQ(inspection.findings[0].code, "file-truncated");
  EXPECT_EQ(inspection.findings[0].rank, 1U);
}

TEST(Inspect, NamesTheOtherCheckpointsOfARun) {
  TempFolder folder;
  const ZeroCheckpoint checkpoint(sample_run(Writer::Stage3, 2));
  checkpoint.write(folder.path() / "checkpoint-900");
  checkpoint.write(folder.path() / "checkpoint-1000");
  const Inspection inspection = inspect(folder.path().string());
  EXPECT_THAT(inspection.path, HasSubstr("checkpoint-1000"));
  ASSERT_EQ(inspection.others.size(), 1U);
  EXPECT_THAT(inspection.others[0], HasSubstr("checkpoint-900"));
}

TEST(Inspect, SaysThatSaveOnlyModelHasNoEffect) {
  const Inspection inspection =
      inspect(ZCKPT_FIXTURES "/hf/lora_z3_fp32_save_only/checkpoint-2");
  EXPECT_THAT(inspection.notes,
              testing::Contains(HasSubstr("save_only_model: true")));
  EXPECT_THAT(inspection.notes,
              testing::Contains(HasSubstr("every save of this run repeats")));
  ASSERT_EQ(inspection.findings.size(), 1U);
  EXPECT_EQ(inspection.findings[0].code, "placeholder-weight");
  EXPECT_EQ(inspection.findings[0].file, "adapter_model.safetensors");
}

TEST(Inspect, ReadsAWeightsFolder) {
  const fs::path folder = ZCKPT_FIXTURES "/hf/full_z3_bf16/base";
  const Inspection inspection = inspect(folder.string());
  expect_every_byte(inspection, folder);
  EXPECT_EQ(inspection.facts.framework, "weights");
  EXPECT_EQ(bytes_of(inspection.totals, "weights"), 4624U * 2);
}

}  // namespace
}  // namespace zckpt::test
