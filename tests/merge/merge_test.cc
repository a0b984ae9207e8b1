// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// What merge() promises beside right values: checks, refusals, faults, and
// that nothing is left of a run that failed.
#include "zckpt/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "reader/torch_file.h"
#include "support/caught.h"
#include "support/stored_weights.h"
#include "support/zero_checkpoint.h"
#include "writer/output_tools.h"

namespace zckpt {
namespace {

using test::caught;
using test::ZeroRun;
using testing::HasSubstr;

// A copy of a fixture that tests may damage.
class MergeTest : public OutputTestBase {
 protected:
  void take(const std::string& name) {
    fs::create_directories(folder_ / "in");
    fs::copy(fs::path(ZCKPT_FIXTURES) / "zero" / name / "ckpt",
             folder_ / "in" / "ckpt", fs::copy_options::recursive);
    checkpoint_ = (folder_ / "in" / "ckpt").string();
    options_.output = out_;
    options_.sync = false;
    options_.open.threads = 2;
  }
  // The same for a made one.
  void build(const ZeroRun& run) {
    checkpoint_ = (folder_ / "in" / "ckpt").string();
    test::ZeroCheckpoint(run).write(checkpoint_);
    options_.output = out_;
    options_.sync = false;
    options_.open.threads = 2;
  }
  fs::path file(const std::string& part) const {
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint_)) {
      if (entry.path().filename().string().find(part) != std::string::npos) {
        return entry.path();
      }
    }
    ADD_FAILURE() << "no file like " << part;
    return {};
  }
  static void flip(const fs::path& path, uint64_t offset, char mask = 1) {
    std::string bytes = read_all(path);
    bytes.at(static_cast<size_t>(offset)) ^= mask;
    write_all(path, bytes);
  }
  // Where the element of a tensor lies.
  std::pair<fs::path, uint64_t> place(const std::string& name, Role role,
                                      uint64_t element) const {
    const Checkpoint checkpoint = Checkpoint::open(checkpoint_);
    const Tensor* tensor = checkpoint.find(name, role);
    std::pair<fs::path, uint64_t> place;
    checkpoint.extents(*tensor, element, 1, [&](const Extent& extent) {
      place = {fs::path(checkpoint_) / checkpoint.sources()[extent.source].name,
               extent.offset};
    });
    return place;
  }
  void flip_element(const std::string& name, Role role, uint64_t element) {
    const auto [path, offset] = place(name, role, element);
    flip(path, offset + 1, 0x40);
  }
  MergeResult merge() const { return zckpt::merge(checkpoint_, options_); }
  // The error of a merge, of which nothing may be left.
  Error refused() const {
    const Error error = error_of([&] { merge(); });
    EXPECT_EQ(entries(), std::vector<std::string>{"in"});
    return error;
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  static std::string code(const Error& error) {
    return error.findings().empty() ? "" : error.findings()[0].code;
  }

  std::string checkpoint_;
  MergeOptions options_;
};

// ---- damage ----

TEST_F(MergeTest, EveryDamagedByteOfARecordReadWholeIsRefused) {
  take("v0.19.8-z3-bf16-n2");
  const auto [path, begin] = place("embed.weight", Role::Master, 0);
  const std::string intact = read_all(path);
  StorageRecord record;
  const TorchFile shard = TorchFile::open(FileSource(path.string()));
  for (const StorageRecord& r : shard.storages()) {
    if (r.offset <= begin && begin < r.offset + r.size_bytes) record = r;
  }
  ASSERT_GT(record.size_bytes, 1000U);
  for (uint64_t i = 0; i < record.size_bytes; i += 13) {
    flip(path, record.offset + i);
    options_.chunk_bytes = 8 + i % 400;
    const Error error = refused();
    EXPECT_EQ(error.code(), ErrorCode::Corrupt) << i;
    EXPECT_EQ(code(error), "crc-mismatch") << i;
    EXPECT_THAT(error.file(), HasSubstr(path.filename().string()));
    EXPECT_EQ(error.offset(), record.offset);
    write_all(path, intact);
  }
  // The old output stays as it was.
  options_.output = out_;
  merge();
  const Tree before = tree_of(out_);
  flip(path, record.offset);
  options_.force = true;
  EXPECT_EQ(error_of([&] { merge(); }).code(), ErrorCode::Corrupt);
  EXPECT_TRUE(tree_of(out_) == before);
  options_.check = Check::None;
  merge();
  EXPECT_FALSE(tree_of(out_) == before);
}

TEST_F(MergeTest, DamagedPaddingIsNoticedToo) {
  // The shard's record goes on behind its last tensor.
  take("v0.19.8-z3-bf16-n3-plain");
  const auto [path, element] = place("embed.weight", Role::Master, 480);
  EXPECT_THAT(path.string(), HasSubstr("rank_2"));
  uint64_t last = 0;
  const TorchFile shard = TorchFile::open(FileSource(path.string()));
  for (const StorageRecord& r : shard.storages()) {
    if (r.offset <= element && element < r.offset + r.size_bytes) {
      last = r.offset + r.size_bytes - 1;
    }
  }
  flip(path, last);
  EXPECT_EQ(refused().code(), ErrorCode::Corrupt);
}

TEST_F(MergeTest, ACrcThatWasNotComputedIsCounted) {
  take("v0.19.8-z3-bf16-n2");
  const MergeResult before = merge();
  EXPECT_GT(before.checked_records, 0U);
  EXPECT_EQ(before.unchecked_records, 0U);
  // Zero in the directory and in the descriptor: all CRCs of one shard.
  const fs::path path = file("rank_1_mp_rank_00_optim_states");
  std::string bytes = read_all(path);
  for (size_t at = 0; (at = bytes.find("PK\x01\x02", at)) != std::string::npos;
       at += 4) {
    const size_t name = bytes.find("data/", at);
    if (name == std::string::npos || name > at + 120) continue;
    bytes.replace(at + 16, 4, std::string(4, '\0'));
  }
  write_all(path, bytes);
  options_.force = true;
  const MergeResult after = merge();
  EXPECT_GT(after.unchecked_records, 0U);
  EXPECT_EQ(after.checked_records + after.unchecked_records,
            before.checked_records);
}

TEST_F(MergeTest, MastersAndCopiesThatDisagreeAreRefused) {
  for (const Role role : {Role::Master, Role::Model}) {
    take("v0.19.8-z2-bf16-n2");
    EXPECT_GE(merge().checked_elements, 1000U);
    fs::remove_all(out_);
    const auto [path, offset] = place("up.weight", role, 37);
    // The exponent: a low bit of a master would round away, and be left to
    // the CRC.
    flip(path, offset + (role == Role::Master ? 3 : 1), 0x40);
    for (const Check check : {Check::Sample, Check::Full}) {
      options_.check = check;
      const Error error = refused();
      EXPECT_EQ(error.code(), ErrorCode::Corrupt);
      EXPECT_EQ(code(error), "weights-disagree");
      EXPECT_EQ(error.tensor(), "up.weight");
      EXPECT_THAT(error.message(), HasSubstr("element 37"));
    }
    options_.check = Check::None;
    const MergeResult result = merge();
    EXPECT_EQ(result.checked_elements, 0U);
    EXPECT_EQ(result.checked_records, 0U);
    fs::remove_all(folder_ / "in");
    fs::remove_all(out_);
    options_.check = Check::Sample;
  }
}

TEST_F(MergeTest, FullFindsWhatASampleMisses) {
  ZeroRun run = test::sample_run(test::Writer::Stage2, 2);
  run.groups[0].push_back({"large", {100, 61}});
  run.module_order.clear();
  build(run);
  flip_element("large", Role::Model, 700);
  const MergeResult sampled = merge();
  EXPECT_LT(sampled.checked_elements, 6100U);
  fs::remove_all(out_);
  options_.check = Check::Full;
  const Error error = refused();
  EXPECT_EQ(code(error), "weights-disagree");
  EXPECT_EQ(error.tensor(), "large");
  EXPECT_THAT(error.message(), HasSubstr("element 700"));
}

// The first and the last element, and both sides of every rank boundary.
TEST_F(MergeTest, ASampleTakesTheEndsAndTheBoundaries) {
  ZeroRun run = test::sample_run(test::Writer::Stage2, 3);
  run.groups = {{{"large", {100, 61}}}};
  run.aliases.clear();
  run.module_order.clear();
  build(run);
  std::vector<uint64_t> elements{0, 6099};
  {
    const Checkpoint checkpoint = Checkpoint::open(checkpoint_);
    uint64_t boundary = 0;
    checkpoint.extents(*checkpoint.find("large"), 0, 6100,
                       [&](const Extent& extent) {
                         boundary += extent.numel;
                         if (boundary == 6100) return;
                         elements.push_back(boundary - 1);
                         elements.push_back(boundary);
                       });
  }
  EXPECT_EQ(elements.size(), 6U);  // three ranks
  for (const uint64_t element : elements) {
    flip_element("large", Role::Model, element);
    const Error error = refused();
    EXPECT_EQ(code(error), "weights-disagree") << element;
    flip_element("large", Role::Model, element);
  }
  const MergeResult result = merge();
  EXPECT_GE(result.checked_elements, 64U);
}

// ---- outputs ----

TEST_F(MergeTest, ADryRunWritesNothing) {
  take("v0.19.8-z2-bf16-n2");
  options_.dry_run = true;
  options_.output = (folder_ / "new" / "out").string();
  const MergeResult result = merge();
  EXPECT_EQ(result.plan.tensor_count, 15U);
  EXPECT_EQ(result.bytes_read, 0U);
  EXPECT_EQ(entries(), std::vector<std::string>{"in"});
  options_.output.clear();  // it needs none
  EXPECT_EQ(merge().plan.tensor_count, 15U);
  // What the real run would refuse.
  write_all(out_ + "/file", "there");
  options_.output = out_;
  EXPECT_EQ(error_of([&] { merge(); }).code(), ErrorCode::Conflict);
}

TEST_F(MergeTest, OutputsThatAreInTheWayAreConflicts) {
  take("v0.19.8-z2-bf16-n2");
  write_all(out_ + "/file", "there");
  EXPECT_EQ(error_of([&] { merge(); }).code(), ErrorCode::Conflict);
  EXPECT_EQ(read_all(out_ + "/file"), "there");
  const Tree before = tree_of(folder_ / "in");
  options_.force = true;
  for (const std::string& path :
       {checkpoint_, (folder_ / "in").string(),
        fs::path(place("up.weight", Role::Master, 0).first)
            .parent_path()
            .string()}) {
    options_.output = path;
    EXPECT_EQ(error_of([&] { merge(); }).code(), ErrorCode::Conflict) << path;
  }
  EXPECT_TRUE(tree_of(folder_ / "in") == before);
  options_.output = checkpoint_ + "/merged";  // inside is fine
  options_.force = false;
  EXPECT_EQ(merge().plan.tensor_count, 15U);
}

TEST_F(MergeTest, ABudgetThatIsTooSmallIsSaidSo) {
  take("v0.19.8-z2-bf16-n2");
  options_.memory_bytes = 63;
  EXPECT_EQ(refused().code(), ErrorCode::Limit);
  options_.memory_bytes = 64;
  EXPECT_EQ(merge().plan.tensor_count, 15U);
}

// ---- ends before time ----

class StopAfter : public Observer {
 public:
  StopAfter(StopToken& token, int calls) : token_(token), left_(calls) {}
  void progress(uint64_t, uint64_t) override {
    if (left_.fetch_sub(1) == 1) token_.request_stop();
  }

 private:
  StopToken& token_;
  std::atomic<int> left_;
};

TEST_F(MergeTest, AStoppedMergeLeavesNothing) {
  take("v0.19.8-z3-bf16-n12");
  options_.chunk_bytes = 64;
  for (const int threads : {1, 4}) {
    for (const int calls : {1, 5, 20}) {
      StopToken token;
      StopAfter observer(token, calls);
      options_.open.threads = threads;
      options_.open.stop = &token;
      options_.observer = &observer;
      EXPECT_EQ(refused().code(), ErrorCode::Interrupted);
    }
  }
  StopToken token;
  token.request_stop();
  options_.observer = nullptr;
  options_.open.stop = &token;
  EXPECT_EQ(refused().code(), ErrorCode::Interrupted);
}

// Runs `body` in a child, where limits and mounts do no harm; threads of
// OpenMP do not survive a fork, so the child has one thread.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_F(MergeTest, AFileSizeLimitIsAnIoError) {
  take("v0.19.8-z2-bf16-n2");
  options_.open.threads = 1;
  const int code = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 3000, .rlim_max = 3000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::optional<Error> error = caught([&] { merge(); });
    return error && error->code() == ErrorCode::Io &&
                   error->file().find("model.safetensors") != std::string::npos
               ? 0
               : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(entries(), std::vector<std::string>{"in"});
}

TEST_F(MergeTest, AFullDiskIsAnIoErrorAndLeavesNothing) {
  take("v0.19.8-z2-bf16-n2");
  options_.open.threads = 1;
  constexpr int kSkipped = 77;
  const fs::path disk = folder_ / "in" / "disk";
  fs::create_directory(disk);
  const int code = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", disk.c_str(), "tmpfs", 0, "size=4k") != 0) {
      return kSkipped;
    }
    // Room for one shard of many; not enough for the only file.
    for (const uint64_t shard : {uint64_t{1000}, uint64_t{1} << 30U}) {
      options_.max_shard_bytes = shard;
      options_.output = (disk / "out").string();
      const std::optional<Error> error = caught([&] { merge(); });
      if (!error || error->code() != ErrorCode::Io) {
        std::fprintf(stderr, "%s\n", error ? error->what() : "no error");
        return 1;
      }
      if (error->message().find("No space left") == std::string::npos) return 2;
      if (!fs::is_empty(disk)) return 3;
    }
    return 0;
  });
  if (code == kSkipped) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(code, 0);
}

// ---- descriptors ----

class CountDescriptors : public Observer {
 public:
  void progress(uint64_t, uint64_t) override {
    const size_t now = open_descriptors();
    size_t seen = most_.load();
    while (now > seen && !most_.compare_exchange_weak(seen, now)) {
    }
  }
  size_t most() const { return most_; }

 private:
  std::atomic<size_t> most_{0};
};

TEST_F(MergeTest, FewFilesAreOpenAtATime) {
  ZeroRun run = test::sample_run(test::Writer::Stage3, 150);
  for (int i = 0; i < 300; ++i) {
    run.groups[0].push_back({"more." + std::to_string(i), {7}});
  }
  run.module_order.clear();
  build(run);
  CountDescriptors observer;
  options_.observer = &observer;
  options_.max_shard_bytes = 1;
  options_.chunk_bytes = 64;
  const size_t before = open_descriptors();
  const MergeResult result = merge();
  EXPECT_GT(result.plan.files.size(), 300U);
  EXPECT_GT(observer.most(), before);
  EXPECT_LE(observer.most(), before + 128);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(test::read_stored_folder(out_).tensors.size(),
            result.plan.tensor_count);
}

}  // namespace
}  // namespace zckpt
