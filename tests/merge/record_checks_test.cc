// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "merge/record_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/crc32.h"
#include "merge/windows.h"
#include "support/caught.h"
#include "support/torch_archive.h"
#include "writer/output_tools.h"

namespace zckpt {
namespace {

using test::caught;
using test::Py;
using test::TorchArchive;

// One torch file with three storages of 4000, 52 and 4 bytes, and an empty
// one.
class RecordChecksTest : public OutputTestBase {
 protected:
  void write(const std::function<void(TorchArchive&)>& damage = {}) {
    TorchArchive archive("shard");
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i) * 0.37F;
    }
    const Py a = archive.tensor(DType::F32, {1000}, values);
    const Py b = archive.tensor(DType::F32, {13}, std::string(52, 'b'));
    const Py c = archive.tensor(DType::F32, {0}, "");
    const Py d = archive.tensor(DType::F32, {1}, std::string(4, 'd'));
    archive.set_root(Py::dict({{"a", a}, {"b", b}, {"c", c}, {"d", d}}));
    if (damage) damage(archive);
    const TorchArchive::Built built = archive.build();
    bytes_ = built.bytes;
    a_ = built.places.at("data/0").payload_offset;
    b_ = built.places.at("data/1").payload_offset;
    d_ = built.places.at("data/3").payload_offset;
    store();
  }
  // Writes bytes_ and begins anew.
  void store() {
    const fs::path path = folder_ / "shard.pt";
    write_all(path, bytes_);
    checks_.reset();
    sources_.emplace(folder_.string());
    sources_->add(path.string(), bytes_.size());
    checks_.emplace(*sources_);
    checks_->enter(0);
    for (const uint64_t record : {a_, b_, d_}) checks_->want(record);
  }
  void TearDown() override {
    checks_.reset();
    sources_.reset();
    OutputTestBase::TearDown();
  }

  std::vector<ByteRange> claim(uint64_t begin, uint64_t end) {
    std::vector<ByteRange> ranges;
    checks_->claim(begin, end, ranges);
    return ranges;
  }
  uint32_t crc(const ByteRange& range) const {
    return crc32_update(0, std::as_bytes(std::span(bytes_).subspan(
                               static_cast<size_t>(range.begin),
                               static_cast<size_t>(range.end - range.begin))));
  }
  void add(const std::vector<ByteRange>& ranges) {
    for (const ByteRange& range : ranges) checks_->add(range, crc(range));
  }

  std::string bytes_;
  uint64_t a_ = 0;
  uint64_t b_ = 0;
  uint64_t d_ = 0;
  std::optional<SourceSet> sources_;
  std::optional<RecordChecks> checks_;
};

TEST_F(RecordChecksTest, OneReadOfEverything) {
  write();
  const std::vector<ByteRange> ranges = claim(0, bytes_.size());
  ASSERT_EQ(ranges.size(), 3U);
  EXPECT_EQ(ranges[0].begin, a_);
  EXPECT_EQ(ranges[0].end, a_ + 4000);
  add(ranges);
  EXPECT_EQ(checks_->checked(), 3U);
  EXPECT_EQ(checks_->unchecked(), 0U);
  EXPECT_TRUE(checks_->missing(true).empty());
}

TEST_F(RecordChecksTest, PartsInAnyOrder) {
  std::mt19937 random(77);
  for (int round = 0; round < 200; ++round) {
    write();
    std::vector<ByteRange> ranges;
    for (uint64_t at = a_; at < a_ + 4000;) {
      const uint64_t end = std::min(a_ + 4000, at + 1 + random() % 900);
      checks_->claim(at, end, ranges);
      at = end;
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    for (size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_EQ(checks_->checked(), 0U);
      add({ranges[i]});
    }
    EXPECT_EQ(checks_->checked(), 1U) << "round " << round;
  }
}

TEST_F(RecordChecksTest, PartsFromManyThreads) {
  for (int round = 0; round < 20; ++round) {
    write();
    std::vector<ByteRange> ranges;
    for (uint64_t at = a_; at < a_ + 4000; at += 8) {
      checks_->claim(at, at + 8, ranges);
    }
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < ranges.size(); i += 8) add({ranges[i]});
      });
    }
    threads.clear();
    EXPECT_EQ(checks_->checked(), 1U);
  }
}

// Tensors that share data: nothing is counted twice, nothing left out.
TEST_F(RecordChecksTest, OverlappingClaimsAreTakenOnce) {
  std::mt19937 random(78);
  for (int round = 0; round < 200; ++round) {
    write();
    std::vector<bool> taken(4000);
    std::vector<ByteRange> all;
    const auto take = [&](uint64_t begin, uint64_t end) {
      for (const ByteRange& range : claim(begin, end)) {
        ASSERT_LT(range.begin, range.end);
        ASSERT_GE(range.begin, std::max(begin, a_));
        ASSERT_LE(range.end, std::min(end, a_ + 4000));
        for (uint64_t i = range.begin - a_; i < range.end - a_; ++i) {
          ASSERT_FALSE(taken[static_cast<size_t>(i)]);
          taken[static_cast<size_t>(i)] = true;
        }
        all.push_back(range);
      }
    };
    for (int i = 0; i < 12; ++i) {
      const uint64_t begin = a_ + random() % 4000;
      take(begin, std::min(a_ + 4000, begin + random() % 1500));
      if (i % 3 == 0) {
        add(all);
        all.clear();
      }
    }
    take(a_, a_ + 4000);
    add(all);
    EXPECT_EQ(checks_->checked(), 1U) << "round " << round;
    // Complete: not begun again by another tensor.
    EXPECT_TRUE(claim(a_, a_ + 4000).empty());
    EXPECT_TRUE(checks_->missing(true).empty());
  }
}

TEST_F(RecordChecksTest, EveryDamagedByteIsFound) {
  write();
  const std::string intact = bytes_;
  for (uint64_t i = 0; i < 52; ++i) {
    bytes_ = intact;
    bytes_[static_cast<size_t>(b_ + i)] ^= 0x10;
    store();
    const std::vector<ByteRange> ranges = claim(b_, b_ + 52);
    const std::optional<Error> error = caught([&] { add(ranges); });
    ASSERT_TRUE(error) << "byte " << i;
    EXPECT_EQ(error->code(), ErrorCode::Corrupt);
    EXPECT_EQ(error->file(), "shard.pt");
    EXPECT_EQ(error->offset(), b_);
    ASSERT_EQ(error->findings().size(), 1U);
    EXPECT_EQ(error->findings()[0].code, "crc-mismatch");
    EXPECT_EQ(error->findings()[0].file, "shard.pt");
    EXPECT_THAT(error->message(), testing::HasSubstr("storage 1"));
  }
}

TEST_F(RecordChecksTest, AMissingCrcIsCountedNotRefused) {
  write([](TorchArchive& archive) { archive.no_crc("data/1"); });
  add(claim(0, bytes_.size()));
  EXPECT_EQ(checks_->checked(), 2U);
  EXPECT_EQ(checks_->unchecked(), 1U);
}

TEST_F(RecordChecksTest, OnlyWantedRecordsAreClaimed) {
  write();
  checks_.emplace(*sources_);
  checks_->enter(0);
  EXPECT_TRUE(claim(0, bytes_.size()).empty());
  checks_->want(b_ + 51);
  checks_->want(b_ + 52);        // behind it: nothing there
  checks_->want(bytes_.size());  // nor there
  const std::vector<ByteRange> ranges = claim(0, bytes_.size());
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0].begin, b_);
}

TEST_F(RecordChecksTest, WhatIsMissingIsNamedOnce) {
  write();
  add(claim(a_ + 100, a_ + 3000));
  add(claim(a_ + 3100, a_ + 3990));
  const std::vector<ByteRange> ranges = checks_->missing(false);
  ASSERT_EQ(ranges.size(), 3U);
  EXPECT_EQ(ranges[0].begin, a_);
  EXPECT_EQ(ranges[0].end, a_ + 100);
  EXPECT_EQ(ranges[1].begin, a_ + 3000);
  EXPECT_EQ(ranges[2].end, a_ + 4000);
  EXPECT_TRUE(checks_->missing(true).empty());  // claimed by the first call
  add(ranges);
  EXPECT_EQ(checks_->checked(), 1U);
}

// A wrong merge of the same record by two sources would go unseen if their
// records were mixed up.
TEST_F(RecordChecksTest, SourcesAreKeptApart) {
  write();
  write_all(folder_ / "other.pt", bytes_);
  sources_->add((folder_ / "other.pt").string(), bytes_.size());
  add(claim(a_, a_ + 2000));
  checks_->enter(1);
  checks_->want(a_);
  std::vector<ByteRange> second = claim(a_ + 2000, a_ + 4000);
  add(second);
  EXPECT_EQ(checks_->checked(), 0U);
  add(claim(a_, a_ + 2000));
  EXPECT_EQ(checks_->checked(), 1U);
  checks_->enter(0);  // back again: what was begun is still known
  checks_->want(a_);
  add(claim(a_, a_ + 4000));
  EXPECT_EQ(checks_->checked(), 2U);
}

// Windows of any capacity claim all of what they read.
TEST_F(RecordChecksTest, WindowsClaimEachByteOnce) {
  for (const uint64_t capacity : {8U, 12U, 100U, 4000U, 1U << 20U}) {
    write();
    std::vector<Piece> pieces{{.offset = a_, .destination = 0, .numel = 1000},
                              {.offset = b_, .destination = 4000, .numel = 13},
                              {.offset = d_, .destination = 4052, .numel = 1}};
    const WindowList list = make_windows(pieces, capacity, &*checks_);
    for (const Window& window : list.windows) {
      for (size_t i = 0; i < window.range_count; ++i) {
        const ByteRange& range = list.ranges[window.first_range + i];
        EXPECT_GE(range.begin, window.begin);
        EXPECT_LE(range.end, window.end);
      }
    }
    add(list.ranges);
    EXPECT_EQ(checks_->checked(), 3U) << capacity;
  }
}

}  // namespace
}  // namespace zckpt
