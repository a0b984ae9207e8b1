// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <limits>

#include "support/caught.h"
#include "support/stored_weights.h"
#include "support/zero_partitions.h"
#include "verify/resumable.h"

// verify with --full: what only reading every byte can tell.

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class Full : public Resumable {
 protected:
  static VerifyOptions full(Question question = Question::Resume) {
    VerifyOptions options;
    options.full = true;
    options.question = question;
    return options;
  }

  // Findings above notes.
  static std::vector<std::string> troubles(const Verification& judged) {
    std::vector<std::string> lines = places(judged);
    std::erase_if(lines, [](const auto& l) { return l.starts_with("note"); });
    return lines;
  }
  static const Finding& finding(const Verification& judged,
                                const std::string& code) {
    for (const Finding& found : judged.findings) {
      if (found.code == code) return found;
    }
    ADD_FAILURE() << "no " << code;
    return judged.findings.at(0);
  }

  struct Place {
    std::string file;  // relative to the folder
    uint64_t offset = 0;
  };
  Place place(const std::string& name, Role role, uint64_t element,
              const std::string& state = "") const {
    const Checkpoint checkpoint = Checkpoint::open(folder().string());
    Place found;
    checkpoint.extents(
        *checkpoint.find(name, role, state), element, 1,
        [&](const Extent& extent) {
          found = {checkpoint.sources()[extent.source].name, extent.offset};
        });
    return found;
  }
  std::string stem(const Place& at) const {
    return fs::path(at.file).filename().string();
  }

  // Changes one element and writes the file again, with true CRCs: what a
  // training run gone wrong would have saved.
  void set(const std::string& name, Role role, uint64_t element, DType dtype,
           float value, const std::string& state = "") {
    const Place at = place(name, role, element, state);
    ZeroCheckpoint::Shard& shard = made_->shards().at(stem(at));
    TorchArchive archive = shard.archive;
    const auto built = archive.set_root(shard.root).build();
    const std::string bytes = encode(dtype, {value});
    for (TorchArchive::Record& record : shard.archive.records()) {
      const uint64_t begin = built.places.at(record.name).payload_offset;
      if (at.offset < begin || at.offset >= begin + record.bytes.size()) {
        continue;
      }
      record.bytes.replace(at.offset - begin, bytes.size(), bytes);
    }
    made_->write(folder());
  }
  // Damage on the disk, behind the back of the CRC.
  void damage(const Place& at) const {
    flip_byte(folder() / at.file, at.offset);
  }

  // The weights as a run that gathers them would write them beside the shards.
  std::map<std::string, StoredTensor> gathered(DType dtype) const {
    std::map<std::string, StoredTensor> tensors;
    for (const Truth& truth : made_->truth()) {
      if (truth.role != Role::Master) continue;
      std::vector<float> values(truth.bytes.size() / 4);
      std::memcpy(values.data(), truth.bytes.data(), truth.bytes.size());
      tensors[truth.name] = {dtype == DType::F32 ? "F32" : "BF16", truth.shape,
                             encode(dtype, values)};
    }
    return tensors;
  }
  void gather(const std::map<std::string, StoredTensor>& tensors) const {
    write_bytes(folder() / "model.safetensors", stored_file(tensors));
  }
};

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

TEST_F(Full, CountsNanAndInfinityOfEachTensor) {
  write(Writer::Stage3);
  set("up.weight", Role::Master, 7, DType::F32, kNan);
  set("up.weight", Role::Master, 20, DType::F32, -kNan);
  set("up.weight", Role::Master, 25, DType::F32, -kInf);
  set("norm.weight", Role::State, 6, DType::F32, kInf, "exp_avg_sq");
  const Place first = place("up.weight", Role::Master, 7);
  const Verification judged = judge(full());
  EXPECT_TRUE(judged.can_resume);
  EXPECT_THAT(
      troubles(judged),
      ElementsAre(HasSubstr("warning nan " + first.file + " tensor up.weight"),
                  HasSubstr("warning inf " + first.file + " tensor up.weight"),
                  HasSubstr("tensor norm.weight")));
  const Finding& nan = finding(judged, "nan");
  EXPECT_EQ(nan.offset, first.offset);
  EXPECT_THAT(nan.message, HasSubstr("2 of 30 elements (master) are NaN"));
  EXPECT_THAT(nan.message, HasSubstr("element 7"));
  EXPECT_THAT(judged.findings[2].message,
              HasSubstr("1 of 7 elements (optimizer state exp_avg_sq)"));
  VerifyOptions strict = full();
  strict.strict = true;
  EXPECT_FALSE(judge(strict).can_resume);
}

TEST_F(Full, ListsSomeTensorsAndCountsTheRest) {
  write(Writer::Stage3, {}, 2, [](ZeroRun& run) {
    run.groups = {{}};
    for (int i = 0; i < 20; ++i) {
      run.groups[0].push_back({"w" + std::to_string(i), {3}});
    }
    run.aliases.clear();
  });
  for (int i = 0; i < 20; ++i) {
    set("w" + std::to_string(i), Role::Master, 1, DType::F32, kNan);
  }
  const Verification judged = judge(full());
  EXPECT_EQ(troubles(judged).size(), 17);
  EXPECT_THAT(judged.findings[16].message, HasSubstr("4 more tensors"));
}

TEST_F(Full, CountsNoPadding) {
  write(Writer::Stage3, [](ZeroCheckpoint& made) {
    const std::string garbage = encode(DType::F32, {kGarbage});
    uint64_t replaced = 0;
    for (auto& record : made.optim(1).archive.records()) {
      if (!record.name.starts_with("data/")) continue;
      for (size_t at = 0; at + 4 <= record.bytes.size(); at += 4) {
        if (record.bytes.compare(at, 4, garbage) != 0) continue;
        record.bytes.replace(at, 4, encode(DType::F32, {kNan}));
        ++replaced;
      }
    }
    EXPECT_GT(replaced, 0);
  });
  EXPECT_THAT(troubles(judge(full())), IsEmpty());
}

TEST_F(Full, TakesInfinityInABufferForAMask) {
  write(Writer::Stage2);
  set("table", Role::Buffer, 1, DType::F32, -kInf);
  const Verification judged = judge(full());
  EXPECT_THAT(troubles(judged), IsEmpty());
  EXPECT_EQ(finding(judged, "inf").tensor, "table");
}

TEST_F(Full, NamesTheFirstElementThatItsCopyContradicts) {
  write(Writer::Stage2);
  set("up.weight", Role::Model, 17, DType::BF16, 123.0F);
  const Place master = place("up.weight", Role::Master, 17);
  Verification judged = judge(full());
  EXPECT_EQ(judged.verdict, Verdict::Damaged);
  EXPECT_THAT(troubles(judged), ElementsAre("error weights-disagree " +
                                            master.file + " tensor up.weight"));
  const Finding& found = finding(judged, "weights-disagree");
  EXPECT_EQ(found.offset, master.offset);
  EXPECT_THAT(found.message, HasSubstr("element 17 of"));

  set("adapter.bias", Role::Frozen, 4, DType::BF16, 9.0F);
  judged = judge(full());
  EXPECT_THAT(finding(judged, "weights-disagree").message,
              HasSubstr("of 7 tensors that were compared 2 differ"));
}

TEST_F(Full, TakesNanForNanWhateverItsBits) {
  write(Writer::Stage2);
  set("up.weight", Role::Master, 3, DType::F32,
      std::bit_cast<float>(0x7fa00001U));
  set("up.weight", Role::Model, 3, DType::BF16, kNan);
  EXPECT_THAT(troubles(judge(full())),
              ElementsAre(HasSubstr("warning nan"), HasSubstr("warning nan")));
  set("up.weight", Role::Model, 4, DType::BF16, 3.0F);
  EXPECT_THAT(troubles(judge(full())),
              Contains(HasSubstr("error weights-disagree")));
}

TEST_F(Full, ComparesGatheredWeights) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    use(std::string(short_name(dtype)));
    write(Writer::Stage3, {}, 3);
    gather(gathered(dtype));
    const Verification judged = judge(full());
    EXPECT_THAT(troubles(judged), IsEmpty());
    EXPECT_EQ(judged.scan->compared_with_sidecar, 5);
  }
}

TEST_F(Full, WarnsOfGatheredWeightsOfAnotherStep) {
  write(Writer::Stage3, {}, 3);
  auto tensors = gathered(DType::BF16);
  tensors.at("up.weight")
      .bytes.replace(2 * 11, 2, encode(DType::BF16, {77.0F}));
  tensors.at("norm.weight").bytes.replace(0, 2, encode(DType::BF16, {77.0F}));
  gather(tensors);
  const Verification judged = judge(full());
  EXPECT_THAT(
      troubles(judged),
      ElementsAre(HasSubstr("warning sidecar-disagree model.safetensors")));
  const Finding& found = finding(judged, "sidecar-disagree");
  EXPECT_THAT(found.message, HasSubstr("2 differ"));
  EXPECT_TRUE(judged.can_resume);
}

TEST_F(Full, WarnsOfGatheredWeightsOfAnotherShape) {
  write(Writer::Stage3);
  auto tensors = gathered(DType::BF16);
  tensors.at("up.weight").shape = {6, 5};
  gather(tensors);
  EXPECT_THAT(troubles(judge(full())),
              ElementsAre("warning sidecar-disagree tensor up.weight"));
}

TEST_F(Full, FindsSwappedShardsThatOnlyGatheredWeightsTell) {
  write(Writer::Stage3, {}, 2, [](ZeroRun& run) { run.archive_prefix = true; });
  gather(gathered(DType::BF16));
  swap_files(optim(0), optim(1));
  EXPECT_THAT(troubles(judge(full())),
              Contains(HasSubstr("warning sidecar-disagree")));
}

TEST_F(Full, ReadsGatheredBinFiles) {
  write(Writer::Stage3);
  TorchArchive archive("pytorch_model");
  Py root = Py::dict();
  for (const auto& [name, tensor] : gathered(DType::BF16)) {
    root.set(name,
             archive.tensor(DType::BF16,
                            Py::Shape(tensor.shape.begin(), tensor.shape.end()),
                            tensor.bytes));
  }
  const auto built = archive.set_root(root).build();
  std::string bytes = built.bytes;
  write_bytes(folder() / "pytorch_model.bin", bytes);
  EXPECT_EQ(judge(full()).scan->compared_with_sidecar, 5);
  bytes[built.places.at("data/1").payload_offset] ^= 1;
  write_bytes(folder() / "pytorch_model.bin", bytes);
  EXPECT_THAT(
      troubles(judge(full())),
      ElementsAre(HasSubstr("warning sidecar-disagree pytorch_model.bin"),
                  HasSubstr("warning sidecar-disagree pytorch_model.bin")));
}

TEST_F(Full, SaysThatGatheredWeightsCouldNotBeCompared) {
  write(Writer::Stage3);
  gather({{"other", {"F32", {1}, std::string(4, '\0')}}});
  EXPECT_THAT(judge(full()).facts.notes,
              Contains(HasSubstr("name none of their tensors")));
  write_bytes(folder() / "model.safetensors", "short");
  EXPECT_THAT(troubles(judge(full())),
              ElementsAre("warning sidecar-disagree model.safetensors"));
}

TEST_F(Full, LeavesPlaceholdersToTheirOwnFinding) {
  write(Writer::Stage3);
  auto tensors = gathered(DType::BF16);
  for (auto& [name, tensor] : tensors) tensor = {"BF16", {0}, ""};
  gather(tensors);
  EXPECT_THAT(troubles(judge(full())),
              ElementsAre("warning placeholder-weight model.safetensors"));
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
      EXPECT_EQ(judged.scan->compared_with_sidecar, 4);
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
