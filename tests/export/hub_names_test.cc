// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/hub_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace zckpt::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

NamedTensor tensor(const std::string& name, std::vector<uint64_t> shape = {2}) {
  uint64_t numel = 1;
  for (const uint64_t size : shape) numel *= size;
  return {.name = name,
          .shape = std::move(shape),
          .runs = {{.tensor = 0, .first = 0, .numel = numel}},
          .change = std::nullopt};
}

std::vector<std::string> names(const Model& model) {
  std::vector<std::string> list;
  for (const NamedTensor& it : model.tensors()) list.push_back(it.name);
  return list;
}

TEST(HubNames, PrefixesOfVisionModels) {
  const std::pair<std::string, std::string> expected[] = {
      {"model.language_model.layers.0.q.weight", "model.layers.0.q.weight"},
      {"model.visual.patch.weight", "visual.patch.weight"},
      {"lm_head.weight", "lm_head.weight"}};
  for (const auto& [memory, hub] : expected) {
    EXPECT_EQ(hub_name("qwen2_5_vl", memory), hub);
    EXPECT_EQ(hub_name("qwen2_5_vl", hub), hub);
    EXPECT_EQ(hub_name("llama", memory), memory);
  }
  EXPECT_EQ(hub_name("llava", "model.language_model.norm.weight"),
            "language_model.model.norm.weight");
  EXPECT_EQ(hub_name("gemma3", "lm_head.weight"),
            "language_model.lm_head.weight");
}

TEST(HubNames, TheBaseDecidesWhichNamesAreMeant) {
  const std::set<std::string> files{"model.language_model.norm.weight"};
  Model model;
  model.add(tensor("model.language_model.norm.weight"));
  std::vector<std::string> notes;
  convert_to_hub_names(
      "qwen2_vl", [&](const std::string& name) { return files.contains(name); },
      model, notes);
  EXPECT_THAT(names(model), ElementsAre("model.language_model.norm.weight"));
  EXPECT_THAT(notes, IsEmpty());
}

TEST(HubNames, ExpertsAreTakenApart) {
  Model model;
  model.add(tensor("model.layers.0.mlp.experts.gate_up_proj", {2, 4, 3}));
  model.add(tensor("model.layers.0.mlp.experts.down_proj", {2, 3, 5}));
  std::vector<std::string> notes;
  convert_to_hub_names("qwen3_moe", {}, model, notes);
  EXPECT_THAT(names(model),
              ElementsAre("model.layers.0.mlp.experts.0.gate_proj.weight",
                          "model.layers.0.mlp.experts.0.up_proj.weight",
                          "model.layers.0.mlp.experts.1.gate_proj.weight",
                          "model.layers.0.mlp.experts.1.up_proj.weight",
                          "model.layers.0.mlp.experts.0.down_proj.weight",
                          "model.layers.0.mlp.experts.1.down_proj.weight"));
  const NamedTensor& up = model.tensors()[3];
  EXPECT_THAT(up.shape, ElementsAre(2, 3));
  EXPECT_EQ(up.runs[0].first, 18U);
  EXPECT_EQ(up.runs[0].numel, 6U);
  const NamedTensor& down = model.tensors()[5];
  EXPECT_THAT(down.shape, ElementsAre(3, 5));
  EXPECT_EQ(down.runs[0].first, 15U);
}

TEST(HubNames, FusedExpertsOfAnUnknownModelStayAndAreSaid) {
  Model model;
  model.add(tensor("model.layers.0.mlp.experts.gate_up_proj", {2, 4, 3}));
  std::vector<std::string> notes;
  convert_to_hub_names("new_moe", {}, model, notes);
  EXPECT_EQ(model.tensors().size(), 1U);
  EXPECT_THAT(notes, ElementsAre(testing::HasSubstr("new_moe")));
}

TEST(HubNames, TiesAreRenamedToo) {
  Model model;
  model.add(tensor("model.language_model.embed_tokens.weight"));
  model.ties = {{"lm_head.weight", "model.language_model.embed_tokens.weight"}};
  std::vector<std::string> notes;
  convert_to_hub_names("llava", {}, model, notes);
  ASSERT_EQ(model.ties.size(), 1U);
  EXPECT_EQ(model.ties[0].first, "language_model.lm_head.weight");
  EXPECT_EQ(model.ties[0].second, "language_model.model.embed_tokens.weight");
}

}  // namespace
}  // namespace zckpt::test
