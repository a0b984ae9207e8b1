// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/full.h"

#include <atomic>
#include <bit>

#include "support/caught.h"

// What reading every byte finds in files: CRCs, ends, side files.

namespace zckpt::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Full, ProvesASoundCheckpointOfEveryKind) {
  for (const Writer writer : {Writer::Stage1, Writer::Stage2,
                              Writer::Bf16Optimizer, Writer::Stage3}) {
    use("run" + std::to_string(static_cast<int>(writer)));
    write(writer, {}, 3);
    uint64_t bytes = 0;
    uint64_t records = 0;
    for (const auto& entry : fs::directory_iterator(tag())) {
      bytes += entry.file_size();
      const ZeroCheckpoint::Shard& shard =
          made_->shards().at(entry.path().filename().string());
      TorchArchive archive = shard.archive;
      archive.set_root(shard.root);
      for (const auto& record : archive.records()) {
        if (!record.bytes.empty()) ++records;
      }
    }
    const Verification judged = judge(full());
    EXPECT_THAT(troubles(judged), IsEmpty());
    EXPECT_TRUE(judged.can_resume);
    ASSERT_TRUE(judged.scan);
    EXPECT_EQ(judged.scan->bytes, bytes);
    EXPECT_EQ(judged.scan->checked_records, records);
    EXPECT_EQ(judged.scan->unchecked_records, 0);
    // Stage 2 has copies of five trained and two frozen weights.
    EXPECT_EQ(judged.scan->compared_tensors, writer == Writer::Stage3   ? 0
                                             : writer == Writer::Stage2 ? 7
                                                                        : 5);
  }
}

TEST_F(Full, IsAskedFor) {
  write(Writer::Stage2);
  damage(place("up.weight", Role::State, 3, "exp_avg"));
  const Verification judged = judge();
  EXPECT_TRUE(judged.can_resume);
  EXPECT_FALSE(judged.scan);
}

TEST_F(Full, FindsADamagedMoment) {
  write(Writer::Stage3);
  const Place at = place("up.weight", Role::State, 29, "exp_avg_sq");
  damage(at);
  const Verification judged = judge(full());
  EXPECT_THAT(places(judged),
              Contains("error crc-mismatch " + at.file + " rank 1"));
  EXPECT_FALSE(judged.can_resume);
  EXPECT_EQ(judged.verdict, Verdict::WeightsOnly);
  const Finding& found = finding(judged, "crc-mismatch");
  EXPECT_THAT(found.message, HasSubstr("expected CRC"));
  EXPECT_THAT(found.message, HasSubstr("it holds 2 tensors"));
  EXPECT_LE(*found.offset, at.offset);

  const Verification merge = judge(full(Question::Merge));
  EXPECT_TRUE(merge.can_merge);
  EXPECT_THAT(places(merge),
              Contains("warning crc-mismatch " + at.file + " rank 1"));
}

TEST_F(Full, FindsADamagedMaster) {
  write(Writer::Stage3);
  const Place at = place("up.weight", Role::Master, 0);
  damage(at);
  for (const Question question : {Question::Resume, Question::Merge}) {
    const Verification judged = judge(full(question));
    EXPECT_EQ(judged.verdict, Verdict::Damaged);
    EXPECT_THAT(places(judged),
                Contains("error crc-mismatch " + at.file + " rank 0"));
  }
}

TEST_F(Full, NamesTheTensorOfARecordThatHoldsOne) {
  write(Writer::Stage2);
  const Place at = place("table", Role::Buffer, 2);
  damage(at);
  EXPECT_THAT(places(judge(full())),
              Contains("error crc-mismatch " + at.file + " tensor table"));
}

TEST_F(Full, ReportsEveryDamagedFileAtOnce) {
  write(Writer::Stage3);
  damage(place("up.weight", Role::Master, 0));
  damage(place("up.weight", Role::Master, 29));
  truncate_file(model(0), fs::file_size(model(0)) / 2);
  EXPECT_THAT(troubles(judge(full())),
              ElementsAre(HasSubstr("file-truncated"),
                          HasSubstr("optim_states.pt rank 0"),
                          HasSubstr("optim_states.pt rank 1")));
}

TEST_F(Full, ReadsWhatTheTrainerReadsBesideTheShards) {
  write(Writer::Stage2);
  add_trainer_files();
  EXPECT_THAT(troubles(judge(full())), IsEmpty());
  TorchArchive archive("archive");
  archive.set_root(Py::dict(
      {{"a", archive.tensor(DType::F32, {2}, std::vector<float>{1, 2})}}));
  const auto built = archive.build();
  std::string bytes = built.bytes;
  bytes[built.places.at("data/0").payload_offset] ^= 1;
  write_bytes(folder() / "rng_state_1.pth", bytes);
  EXPECT_THAT(troubles(judge(full())),
              ElementsAre("error rng-damaged rng_state_1.pth"));
}

TEST_F(Full, SaysWhereNoChecksumIs) {
  write(Writer::Stage2,
        [](ZeroCheckpoint& made) { made.optim(1).archive.no_crc("data/0"); });
  const Verification judged = judge(full());
  EXPECT_THAT(troubles(judged), IsEmpty());
  EXPECT_THAT(places(judged),
              Contains(HasSubstr("note crc-unchecked global_step3/")));
  EXPECT_THAT(finding(judged, "crc-unchecked").message,
              HasSubstr("1 record of"));
  EXPECT_EQ(judged.scan->unchecked_records, 1);

  use("legacy");
  write(Writer::Stage2, {}, 2,
        [](ZeroRun& run) { run.legacy_container = true; });
  const Verification legacy = judge(full());
  EXPECT_TRUE(legacy.can_resume);
  EXPECT_EQ(legacy.scan->checked_records, 0);
  EXPECT_THAT(finding(legacy, "crc-unchecked").message,
              HasSubstr("holds no checksums"));
}

TEST_F(Full, ScansWhatItCannotPutTogether) {
  write(Writer::Stage3);
  damage(place("up.weight", Role::Master, 0));
  fs::remove(model(0));
  fs::remove(model(1));
  const Verification judged = judge(full());
  EXPECT_THAT(troubles(judged), Contains(HasSubstr("error crc-mismatch")));
}

TEST_F(Full, LeavesAMissingMomentToItsOwnFinding) {
  write(Writer::Stage3, [](ZeroCheckpoint& made) {
    made.inner(1)
        .at("optimizer_state_dict")
        .set("state", Py::dict({{0, Py::dict()}, {1, Py::dict()}}));
  });
  EXPECT_THAT(troubles(judge(full())),
              Contains(HasSubstr("error moment-missing")));
}

TEST_F(Full, FindsPaddingThatIsNotZero) {
  write(
      Writer::Bf16Optimizer,
      [](ZeroCheckpoint& made) {
        // The last element of the last rank's longest storage.
        TorchArchive::Record* longest = nullptr;
        for (auto& record : made.optim(1).archive.records()) {
          if (record.name.starts_with("data/") &&
              (longest == nullptr ||
               record.bytes.size() > longest->bytes.size())) {
            longest = &record;
          }
        }
        longest->bytes.replace(longest->bytes.size() - 4, 4,
                               encode(DType::F32, {1}));
      },
      2,
      [](ZeroRun& run) {
        run.groups = {{{"w", {9}}}};
        run.aliases.clear();
      });
  EXPECT_THAT(troubles(judge(full())),
              ElementsAre(HasSubstr("error padding-nonzero")));
}

TEST_F(Full, LooksAtLargeTensorsPieceByPiece) {
  const auto large = [](ZeroRun& run) {
    run.groups = {{{"a", {3, 70001}}, {"b", {5}}, {"c", {131, 1001}}},
                  {{"d", {65537}}}};
    run.aliases.clear();
  };
  for (const Writer writer : {Writer::Stage2, Writer::Stage3}) {
    use("large" + std::to_string(static_cast<int>(writer)));
    write(writer, {}, 3, large);
    gather(gathered(DType::BF16));
    set("c", Role::Master, 131 * 1001 - 1, DType::F32, kInf);
    set("a", Role::State, 100'000, DType::F32, kNan, "exp_avg");
    std::vector<std::string> expected;
    for (const uint64_t memory :
         {uint64_t{1}, uint64_t{300'000}, uint64_t{1} << 26}) {
      VerifyOptions options = full();
      options.memory_bytes = memory;
      options.open.threads = 2;
      const Verification judged = judge(options);
      EXPECT_EQ(judged.scan->compared_with_sidecar, 6);
      EXPECT_THAT(finding(judged, "nan").message, HasSubstr("1 of 210,003"));
      EXPECT_THAT(finding(judged, "nan").message, HasSubstr("element 100000"));
      EXPECT_THAT(finding(judged, "inf").message, HasSubstr("element 131130"));
      EXPECT_THAT(finding(judged, "sidecar-disagree").message,
                  HasSubstr("element 131130"));
      if (expected.empty()) expected = places(judged);
      EXPECT_EQ(places(judged), expected);
    }
  }
}

TEST_F(Full, HoldsARecordBehindAViewForNeeded) {
  const auto with_view = [](ZeroCheckpoint& made) {
    auto& shard = made.model();
    const std::string key =
        shard.archive.add_storage(encode(DType::F32, {1, 2, 3, 4, 5, 6}), 4);
    shard.root.at("module").set(
        "turned", Py::tensor(DType::F32, {3, 2}, key, 0, Py::Shape{1, 3}, 6));
    shard.root.at("buffer_names").append("turned");
  };
  write(Writer::Stage2, with_view);
  const Place at = place("turned", Role::Buffer, 1);
  damage(at);
  const Verification judged = judge(full(Question::Merge));
  EXPECT_FALSE(judged.can_merge);
  EXPECT_THAT(places(judged),
              Contains("error crc-mismatch " + at.file + " tensor turned"));
}

TEST_F(Full, EndsOnAViewThatRepeatsItselfForEver) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    auto& shard = made.model();
    const std::string key =
        shard.archive.add_storage(encode(DType::F32, {kNan}), 4);
    const int64_t many = int64_t{1} << 30;
    shard.root.at("module").set(
        "endless",
        Py::tensor(DType::F32, {many, many}, key, 0, Py::Shape{0, 0}, 1));
    shard.root.at("buffer_names").append("endless");
  });
  EXPECT_THAT(troubles(judge(full())), ElementsAre(HasSubstr("warning nan")));
}

TEST_F(Full, WeighsASurplusShardLightly) {
  write(Writer::Stage3, {}, 3);
  const std::string bytes = read_bytes(optim(2));
  const std::string name = optim(2).filename().string();
  use("smaller");
  write(Writer::Stage3, {}, 2);
  const fs::path stale = tag() / name;
  write_bytes(stale, bytes);
  flip_byte(stale, bytes.size() / 2);
  const Verification judged = judge(full());
  EXPECT_TRUE(judged.can_resume) << testing::PrintToString(places(judged));
  EXPECT_TRUE(judged.can_merge);
}

TEST_F(Full, ComparesGatheredWeightsWithTheirOwnTagOnly) {
  write(Writer::Stage3);
  gather(gathered(DType::BF16));
  write(Writer::Stage3, {}, 2, [](ZeroRun& run) { run.tag = "global_step9"; });
  VerifyOptions options = full();
  options.open.tag = "global_step3";
  const Verification judged = judge(options);
  EXPECT_EQ(judged.scan->compared_with_sidecar, 0);
  EXPECT_THAT(judged.facts.notes, Contains(HasSubstr("global_step9")));
}

TEST_F(Full, LooksAtViewsThatAreNotContiguous) {
  write(Writer::Stage2, [](ZeroCheckpoint& made) {
    auto& shard = made.model();
    const std::string key =
        shard.archive.add_storage(encode(DType::F32, {1, 2, kNan, 4, 5, 6}), 4);
    shard.root.at("module").set(
        "turned", Py::tensor(DType::F32, {3, 2}, key, 0, Py::Shape{1, 3}, 6));
    shard.root.at("buffer_names").append("turned");
  });
  const Verification judged = judge(full());
  EXPECT_THAT(troubles(judged), ElementsAre(HasSubstr("warning nan")));
  EXPECT_THAT(finding(judged, "nan").message,
              HasSubstr("1 of the elements behind this view"));
}

TEST_F(Full, SaysTheSameForAnyThreadsAndMemory) {
  write(Writer::Stage2, {}, 5);
  set("up.weight", Role::Model, 17, DType::BF16, 123.0F);
  set("embed.weight", Role::Master, 40, DType::F32, kInf);
  damage(place("embed.weight", Role::State, 0, "exp_avg"));
  std::vector<std::string> expected;
  for (const int threads : {1, 2, 8}) {
    for (const uint64_t memory : {uint64_t{1}, uint64_t{1} << 26}) {
      VerifyOptions options = full();
      options.open.threads = threads;
      options.memory_bytes = memory;
      const auto found = places(judge(options));
      if (expected.empty()) expected = found;
      EXPECT_EQ(found, expected);
    }
  }
  EXPECT_EQ(expected.size(), 4) << testing::PrintToString(expected);
}

TEST_F(Full, TellsHowFarItIs) {
  struct Watch : Observer {
    std::atomic<uint64_t> last{0};
    std::atomic<uint64_t> total{0};
    void progress(uint64_t done, uint64_t all) override {
      if (done > last) last = done;
      total = all;
    }
  } watch;
  write(Writer::Stage2);
  VerifyOptions options = full();
  options.observer = &watch;
  const Verification judged = judge(options);
  EXPECT_EQ(watch.last, judged.scan->bytes);
  EXPECT_EQ(watch.total, judged.scan->bytes);
}

TEST_F(Full, StopsWhenAsked) {
  write(Writer::Stage2);
  StopToken stop;
  struct Stopper : Observer {
    explicit Stopper(StopToken& token) : stop(token) {}
    void progress(uint64_t, uint64_t) override { stop.request_stop(); }
    StopToken& stop;
  } stopper(stop);
  VerifyOptions options = full();
  options.observer = &stopper;
  options.open.stop = &stop;
  options.open.threads = 1;
  EXPECT_EQ(caught([&] { judge(options); })->code(), ErrorCode::Interrupted);
}

TEST_F(Full, StopsAtTheNewestThatResumes) {
  for (const char* name : {"run/checkpoint-1", "run/checkpoint-2"}) {
    use(name);
    write(Writer::Stage2);
    add_trainer_files();
  }
  use("run");
  VerifyOptions options = full();
  EXPECT_EQ(verify(folder().string(), options).checkpoints.size(), 2);
  options.newest_only = true;
  const VerifyResult result = verify(folder().string(), options);
  ASSERT_EQ(result.checkpoints.size(), 1);
  EXPECT_THAT(result.checkpoints[0].path, testing::EndsWith("checkpoint-2"));
  EXPECT_TRUE(result.newest_resumable);
}

}  // namespace
}  // namespace zckpt::test
