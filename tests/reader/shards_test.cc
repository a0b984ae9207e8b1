// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/shards.h"

#include <gtest/gtest.h>

#include <set>

#include "reader/layout.h"
#include "support/caught.h"
#include "support/checkpoint_tools.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

class Shards : public testing::Test {
 protected:
  ShardSet read(const ZeroRun& run, int threads = 0) {
    made_ = std::make_unique<ZeroCheckpoint>(run);
    made_->write(folder_ / "run");
    OpenOptions options;
    options.threads = threads;
    return read_shards(find_checkpoints(folder_ / "run", options).front(),
                       options);
  }

  TempFolder folder_;
  std::unique_ptr<ZeroCheckpoint> made_;
};

// As text, rank 10 comes before rank 2.
TEST_F(Shards, OrdersRanksAsNumbers) {
  const ShardSet shards = read(sample_run(Writer::Stage3, 12));
  EXPECT_EQ(world_size(shards), 12);
  const auto ranks = ranked_optim(shards);
  ASSERT_EQ(ranks.size(), 12);
  for (uint32_t r = 0; r < 12; ++r) {
    EXPECT_EQ(ranks[r]->name.rank, r);
    EXPECT_EQ(fs::path(ranks[r]->path).filename(), made_->optim_name(r));
    EXPECT_EQ(shards.optim(r), ranks[r]);
    ASSERT_NE(shards.model(r), nullptr);
    EXPECT_EQ(shards.model(r)->archive_prefix + ".pt", made_->model_name(r));
  }
  EXPECT_EQ(shards.model(std::nullopt), nullptr);
  EXPECT_EQ(shards.optim(12), nullptr);
  EXPECT_EQ(shards.leading_model(), shards.model(0));
}

TEST_F(Shards, ReadsTheSameWithAnyNumberOfThreads) {
  const ZeroRun run = sample_run(Writer::Stage2, 8);
  const ShardSet one = read(run, 1);
  const ShardSet many = read(run, 8);
  ASSERT_EQ(one.files.size(), many.files.size());
  for (size_t i = 0; i < one.files.size(); ++i) {
    EXPECT_EQ(one.files[i].path, many.files[i].path);
    EXPECT_EQ(one.sources->list()[one.files[i].source].name,
              many.sources->list()[many.files[i].source].name);
    EXPECT_EQ(*one.files[i].vectors, *many.files[i].vectors);
  }
}

// Memory grows with parameters plus ranks: equal tables are one object.
TEST_F(Shards, SharesTheTablesOfRanks) {
  const ShardSet shards = read(sample_run(Writer::Stage3, 9));
  std::set<const VectorTable*> tables;
  for (const ShardFile& file : shards.files) tables.insert(file.vectors.get());
  EXPECT_LE(tables.size(), 4);
}

TEST_F(Shards, ReadsTheFactsOfAShard) {
  for (const StageForm form :
       {StageForm::Enum, StageForm::Getattr, StageForm::Integer}) {
    for (const Writer writer :
         {Writer::Stage1, Writer::Stage2, Writer::Stage3}) {
      fs::remove_all(folder_ / "run");
      ZeroRun run = sample_run(writer, 2);
      run.stage_form = form;
      const ShardSet shards = read(run);
      const OptimFacts& optim = *shards.optim(1)->optim;
      EXPECT_EQ(optim.zero_stage, writer == Writer::Stage1   ? 1
                                  : writer == Writer::Stage2 ? 2
                                                             : 3);
      EXPECT_EQ(optim.kind, writer == Writer::Stage3 ? OptimKind::Zero3
                                                     : OptimKind::Zero12);
      EXPECT_EQ(optim.step, 3);
      EXPECT_EQ(optim.ds_version, "0.19.8");
      const ModelFacts& model = *shards.leading_model()->model;
      EXPECT_EQ(model.global_steps, 3);
      EXPECT_EQ(model.dp_world_size, 2);
      EXPECT_TRUE(model.has_module);
      EXPECT_FALSE(model.has_optimizer);
    }
  }
}

TEST_F(Shards, FindsSwapFilesByRank) {
  ZeroRun run = sample_run(Writer::Stage3, 12);
  run.swapped = {0};
  const ShardSet shards = read(run);
  for (uint32_t r = 0; r < 12; ++r) {
    const auto source = shards.swap_source(r, "0_0");
    ASSERT_TRUE(source) << r;
    const std::string part = (r < 10 ? "rank0" : "rank") + std::to_string(r);
    EXPECT_EQ(shards.sources->list()[*source].name,
              "global_step3/offloaded_tensors/" + part + "/0_0.tensor.swp");
  }
  EXPECT_FALSE(shards.swap_source(12, "0_0"));
  EXPECT_FALSE(shards.swap_source(0, "1_1"));
  // An id is somebody else's text.
  EXPECT_FALSE(shards.swap_source(0, "../rank00/0_0"));
}

TEST_F(Shards, GoesOnPastDamage) {
  read(sample_run(Writer::Stage3, 3));
  truncate_file(folder_ / ("run/global_step3/" + made_->optim_name(1)), 7);
  const ShardSet shards =
      read_shards(find_checkpoints(folder_ / "run", {}).front(), {});
  EXPECT_TRUE(shards.optim(1)->fault);
  EXPECT_FALSE(shards.optim(1)->optim);
  EXPECT_TRUE(shards.optim(2)->optim);
  const auto error = caught([&] { ranked_optim(shards); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->file(), "global_step3/" + made_->optim_name(1));
}

TEST_F(Shards, RefusesAGapAmongRanks) {
  read(sample_run(Writer::Stage3, 3));
  fs::remove(folder_ / ("run/global_step3/" + made_->optim_name(1)));
  const ShardSet shards =
      read_shards(find_checkpoints(folder_ / "run", {}).front(), {});
  expect_error(ErrorCode::Corrupt, {}, "rank 1 of 3 is missing",
               [&] { ranked_optim(shards); });
}

TEST_F(Shards, RefusesAFolderThatIsGone) {
  CheckpointPath where;
  where.folder = folder_ / "gone";
  where.tag_folder = folder_ / "gone/tag";
  expect_error(ErrorCode::Io, {}, "cannot list",
               [&] { read_shards(where, {}); });
}

TEST_F(Shards, StopsWhenAsked) {
  read(sample_run(Writer::Stage3, 3));
  StopToken stop;
  stop.request_stop();
  OpenOptions options;
  options.stop = &stop;
  const auto where = find_checkpoints(folder_ / "run", options).front();
  const auto error = caught([&] { read_shards(where, options); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Interrupted);
}

}  // namespace
}  // namespace zckpt::test
