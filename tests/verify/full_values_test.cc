// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/full.h"

#include <atomic>
#include <bit>

#include "support/caught.h"

// What reading every byte finds in values: NaN, copies, gathered weights.

namespace zckpt::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
    EXPECT_EQ(judged.scan->compared_with_sidecar, 7);
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

TEST_F(Full, WarnsOfGatheredWeightsThatLackSome) {
  write(
      Writer::Stage3, [](ZeroCheckpoint&) {}, 2,
      [](ZeroRun& run) { run.frozen.clear(); });
  auto tensors = gathered(DType::BF16);
  tensors.erase("up.weight");
  tensors.erase("gain");
  gather(tensors);
  const Verification judged = judge(full());
  EXPECT_THAT(troubles(judged), ElementsAre(HasSubstr("sidecar-disagree")));
  EXPECT_THAT(finding(judged, "sidecar-disagree").message,
              HasSubstr("and 1 more tensor"));
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
  EXPECT_EQ(judge(full()).scan->compared_with_sidecar, 7);
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

}  // namespace
}  // namespace zckpt::test
