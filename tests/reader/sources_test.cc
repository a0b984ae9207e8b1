// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/sources.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/caught.h"
#include "support/checkpoint_tools.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       fs::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

std::string content(const FileSource& file) {
  std::string bytes(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(SourceSet, NamesFilesFromTheFolder) {
  SourceSet sources("/a/b");
  EXPECT_EQ(sources.add("/a/b/tag/x.pt", 3), 0);
  EXPECT_EQ(sources.add("/a/c/y.pt", 4), 1);
  EXPECT_EQ(sources.list()[0].name, "tag/x.pt");
  EXPECT_EQ(sources.list()[0].size_bytes, 3);
  EXPECT_EQ(sources.list()[1].name, "../c/y.pt");
  EXPECT_EQ(sources.path(1), "/a/c/y.pt");
}

TEST(SourceSet, KeepsFewFilesOpen) {
  TempFolder folder;
  SourceSet sources(folder.path().string(), 4);
  for (uint32_t i = 0; i < 20; ++i) {
    const std::string text = "file " + std::to_string(i);
    write_bytes(folder / std::to_string(i), text);
    sources.add(folder / std::to_string(i), text.size());
  }
  const size_t before = open_descriptors();
  const auto held = sources.open(0);
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < 20; ++i) {
      EXPECT_EQ(content(*sources.open(i)), "file " + std::to_string(i));
      EXPECT_LE(open_descriptors(), before + 5);
    }
  }
  // What a caller holds stays open.
  EXPECT_EQ(content(*held), "file 0");
}

TEST(SourceSet, MayBeUsedByManyThreads) {
  TempFolder folder;
  SourceSet sources(folder.path().string(), 2);
  for (uint32_t i = 0; i < 6; ++i) {
    write_bytes(folder / std::to_string(i), std::string(10, char('a' + i)));
    sources.add(folder / std::to_string(i), 10);
  }
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t k = 0; k < 300; ++k) {
        const uint32_t i = (k * 7 + t) % 6;
        EXPECT_EQ(content(*sources.open(i)), std::string(10, char('a' + i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SourceSet, RefusesAFileThatChanged) {
  TempFolder folder;
  SourceSet sources(folder.path().string());
  write_bytes(folder / "x.pt", "four");
  sources.add(folder / "x.pt", 4);
  write_bytes(folder / "x.pt", "three");
  const auto error = caught([&] { sources.open(0); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Conflict);
  EXPECT_EQ(error->file(), "x.pt");
}

// Saves of one run have files of the same size.
TEST(SourceSet, RefusesAFileOfTheSameSizeThatWasReplaced) {
  TempFolder folder;
  write_bytes(folder / "x.pt", "four");
  write_bytes(folder / "new", "FOUR");
  SourceSet sources(folder.path().string(), 1);
  sources.add(folder / "x.pt", 4, FileSource(folder / "x.pt").stamp());
  sources.add(folder / "new", 4);
  EXPECT_EQ(content(*sources.open(0)), "four");
  sources.open(1);  // closes the other one
  fs::rename(folder / "new", folder / "x.pt");
  const auto error = caught([&] { sources.open(0); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Conflict);
}

TEST(SourceSet, RefusesAnOpenFileThatWasWrittenTo) {
  TempFolder folder;
  write_bytes(folder / "x.pt", "four");
  SourceSet sources(folder.path().string());
  sources.add(folder / "x.pt", 4);
  sources.open(0);
  sources.check_unchanged();
  fs::last_write_time(folder / "x.pt", fs::last_write_time(folder / "x.pt") +
                                           std::chrono::seconds(1));
  const auto error = caught([&] { sources.check_unchanged(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Conflict);
  EXPECT_EQ(error->file(), "x.pt");
}

TEST(SourceSet, RelativePathsStayWhereTheyWere) {
  TempFolder folder;
  const fs::path before = fs::current_path();
  write_bytes(folder / "x.pt", "four");
  fs::create_directories(folder / "other");
  write_bytes(folder / "other/x.pt", "FOUR");
  fs::current_path(folder.path());
  SourceSet sources("");
  sources.add("x.pt", 4);
  fs::current_path(folder / "other");
  const std::string found = content(*sources.open(0));
  fs::current_path(before);
  EXPECT_EQ(found, "four");
}

TEST(SourceSet, RefusesAFileThatIsGone) {
  TempFolder folder;
  SourceSet sources(folder.path().string());
  sources.add(folder / "gone.pt", 4);
  const auto error = caught([&] { sources.open(0); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Io);
}

}  // namespace
}  // namespace zckpt::test
