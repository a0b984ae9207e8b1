// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/python_regex.h"

#include <gtest/gtest.h>

#include "support/caught.h"
#include "zckpt/error.h"

namespace zckpt::test {
namespace {

TEST(MatchesModule, AnswersAsPythonsReMatch) {
  // key, module, bool(re.match(rf"(.*\.)?({key})$", module)) of Python 3.11
  const struct {
    const char* key;
    const char* module;
    bool matches;
  } cases[] = {
      {"q_proj", "model.layers.0.self_attn.q_proj", true},
      {"q_proj", "q_proj", true},
      {"q_proj", "model.xq_proj", false},
      {"q_proj", "model.q_proj.x", false},
      {"layers.1.mlp", "model.layers.1.mlp", true},
      {"layers.1.mlp", "model.layers.11.mlp", false},
      {"layers.1.q", "model.layersx1xq", true},
      {"layers.1.q", "model.layers.1xq", true},
      {"layers\\.1\\..*_proj", "model.layers.1.mlp.up_proj", true},
      {"layers\\.1\\..*_proj", "model.layers.10.mlp.up_proj", false},
      {"a|b", "x.b", true},
      {"^model\\.q", "model.q", true},
      {"^model\\.q", "x.model.q", false},
      {"(?:up|down)_proj", "m.down_proj", true},
      {"layers\\.(\\d)\\.q", "m.layers.7.q", true},
      {"", "", true},
      {"", "x", false},
  };
  for (const auto& tested : cases) {
    EXPECT_EQ(matches_module(tested.key, tested.module), tested.matches)
        << tested.key << " " << tested.module;
  }
}

TEST(MatchesModule, RefusesWhatIsNoPattern) {
  EXPECT_EQ(caught([] { matches_module("(", "q"); })->code(),
            ErrorCode::Unsupported);
}

TEST(MatchesModule, EndsWhatWouldTakeForEver) {
  const std::string module(60, 'a');
  EXPECT_EQ(caught([&] { matches_module("(a|aa)+[bc]", module); })->code(),
            ErrorCode::Limit);
}

}  // namespace
}  // namespace zckpt::test
