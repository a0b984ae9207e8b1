// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/output.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "writer/output_calls.h"
#include "writer/output_tools.h"

namespace zckpt {
namespace {

using testing::HasSubstr;

class OutputTest : public OutputTestBase {};

TEST_F(OutputTest, MakesAFolderAppearAtOnce) {
  {
    Output output(out_, {});
    Output::File& file = output.create("a.bin", 6);
    write_text(file, "abcdef");
    output.create("empty", 0);
    EXPECT_FALSE(fs::exists(out_));
    output.commit();
    EXPECT_EQ(tree_of(out_), (Tree{{"a.bin", "abcdef"}, {"empty", ""}}));
  }
  EXPECT_EQ(tree_of(folder_).size(), 3U);
}

TEST_F(OutputTest, MakesOneFile) {
  {
    Output output(out_, {.single_file = true});
    write_text(output.create("ignored", 3), "abc");
    EXPECT_FALSE(fs::exists(out_));
    output.commit();
  }
  EXPECT_EQ(tree_of(folder_), (Tree{{"out", "abc"}}));
}

TEST_F(OutputTest, RemovesWhatWasNotCommitted) {
  for (const bool single_file : {false, true}) {
    const std::string path = (folder_ / "a" / "b" / "out").string();
    {
      Output output(path, {.single_file = single_file});
      write_text(output.create("x", 3), "abc");
      EXPECT_EQ(tree_of(folder_).size(), single_file ? 3U : 4U);
    }
    EXPECT_EQ(tree_of(folder_), Tree{});
  }
}

TEST_F(OutputTest, KeepsTheFoldersAboveThatItMade) {
  write_files(*std::make_unique<Output>(out_ + "/b/c", OutputOptions{}),
              {{"x", "abc"}});
  EXPECT_EQ(tree_of(out_), (Tree{{"b", "/"}, {"b/c", "/"}, {"b/c/x", "abc"}}));
}

TEST_F(OutputTest, KeepsFoldersAboveThatSomebodyElseUses) {
  {
    const Output output(out_ + "/b/c", {});
    write_all(out_ + "/other", "text");
  }
  EXPECT_EQ(tree_of(folder_), (Tree{{"out", "/"}, {"out/other", "text"}}));
}

TEST_F(OutputTest, TakesPathsAsPeopleWriteThem) {
  fs::create_directories(folder_ / "d");
  for (const std::string path : {"/x/", "/d/../y", "/./z//"}) {
    write_files(
        *std::make_unique<Output>(folder_.string() + path, OutputOptions{}),
        {{"f", "1"}});
  }
  EXPECT_EQ(tree_of(folder_), (Tree{{"d", "/"},
                                    {"x", "/"},
                                    {"x/f", "1"},
                                    {"y", "/"},
                                    {"y/f", "1"},
                                    {"z", "/"},
                                    {"z/f", "1"}}));
}

TEST_F(OutputTest, FillsAnEmptyFolderAndKeepsItsMode) {
  fs::create_directories(out_);
  fs::permissions(out_, fs::perms(0750));
  Output output(out_, {});
  write_files(output, {{"f", "1"}});
  EXPECT_EQ(tree_of(out_), (Tree{{"f", "1"}}));
  EXPECT_EQ(fs::status(out_).permissions(), fs::perms(0750));
}

TEST_F(OutputTest, WritesThroughALink) {
  make_tree(folder_ / "real", {});
  fs::create_symlink("real", out_);
  Output output(out_, {});
  write_files(output, {{"f", "1"}});
  EXPECT_TRUE(fs::is_symlink(out_));
  EXPECT_EQ(tree_of(folder_ / "real"), (Tree{{"f", "1"}}));

  write_all(folder_ / "file", "old");
  fs::create_symlink("file", folder_ / "link");
  Output single((folder_ / "link").string(),
                {.single_file = true, .force = true});
  write_text(single.create("", 3), "new");
  single.commit();
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_all(folder_ / "file"), "new");
}

TEST_F(OutputTest, ReplacesWithForce) {
  make_tree(out_, old_);
  Output output(out_, {.force = true});
  EXPECT_EQ(tree_of(out_), old_);
  write_files(output, new_);
  EXPECT_EQ(tree_of(out_), new_);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(OutputTest, ReplacesOneFileWithForce) {
  write_all(out_, "old");
  fs::permissions(out_, fs::perms(0640));
  Output output(out_, {.single_file = true, .force = true});
  write_text(output.create("", 3), "new");
  EXPECT_EQ(read_all(out_), "old");
  output.commit();
  EXPECT_EQ(tree_of(folder_), (Tree{{"out", "new"}}));
  EXPECT_EQ(fs::status(out_).permissions(), fs::perms(0640));
}

TEST_F(OutputTest, RefusesWhatAppearedMeanwhile) {
  Output output(out_, {});
  write_text(output.create("f", 1), "1");
  make_tree(out_, old_);
  EXPECT_EQ(error_of([&] { output.commit(); }).code(), ErrorCode::Conflict);
  EXPECT_EQ(tree_of(out_), old_);

  const std::string path = (folder_ / "file").string();
  Output single(path, {.single_file = true});
  write_text(single.create("", 1), "1");
  write_all(path, "theirs");
  EXPECT_EQ(error_of([&] { single.commit(); }).code(), ErrorCode::Conflict);
  EXPECT_EQ(read_all(path), "theirs");
}

TEST_F(OutputTest, RefusesToCommitAFileThatLacksBytes) {
  {
    Output output(out_, {});
    Output::File& file = output.create("f", 4);
    write_text(file, "abc");
    const Error error = error_of([&] { output.commit(); });
    EXPECT_EQ(error.code(), ErrorCode::Internal);
    EXPECT_THAT(error.what(), HasSubstr("expected 4 bytes to be written"));
  }
  EXPECT_EQ(tree_of(folder_), Tree{});
}

TEST_F(OutputTest, RefusesMisuse) {
  Output output(out_, {});
  Output::File& file = output.create("f", 4);
  for (const char* name :
       {"", ".", "..", "a/b", "/a", "f", ".zckpt-partial", ".zckpt-commit"}) {
    EXPECT_EQ(error_of([&] { output.create(name, 1); }).code(),
              ErrorCode::Internal)
        << name;
  }
  EXPECT_EQ(error_of([&] { write_text(file, "abcde"); }).code(),
            ErrorCode::Internal);
  EXPECT_EQ(error_of([&] { file.write_at(5, {}); }).code(),
            ErrorCode::Internal);
  write_text(file, "abcd");
  output.commit();
  EXPECT_EQ(error_of([&] { output.commit(); }).code(), ErrorCode::Internal);
  Output single(out_ + "2", {.single_file = true});
  single.create("", 1);
  EXPECT_EQ(error_of([&] { single.create("", 1); }).code(),
            ErrorCode::Internal);
}

TEST_F(OutputTest, TakesWritesOfManyThreadsInAnyOrder) {
  std::string text(1'000'003, '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 7 % 251);
  }
  Output output(out_, {});
  Output::File& file = output.create("f", text.size());
  {
    std::vector<std::jthread> threads;
    for (size_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        constexpr size_t kStep = 4999;
        for (size_t at = thread * kStep; at < text.size(); at += 4 * kStep) {
          const auto bytes = std::as_bytes(std::span(text)).subspan(at);
          file.write_at(at, bytes.first(std::min(kStep, bytes.size())));
        }
      });
    }
  }
  output.commit();
  EXPECT_EQ(read_all(out_ + "/f"), text);
}

TEST_F(OutputTest, HoldsNoDescriptorForWaitingOrFinishedFiles) {
  const size_t before = open_descriptors();
  Output output(out_, {.sync = false});
  std::vector<Output::File*> files;
  for (int i = 0; i < 300; ++i) {
    files.push_back(&output.create("f" + std::to_string(i), 2));
  }
  for (Output::File* file : files) write_text(*file, "ab");
  EXPECT_LE(open_descriptors(), before + 2);
  output.commit();
}

// Files and disks.

OutputCalls calls_with(std::function<int(int, off_t)> fallocate) {
  OutputCalls calls = system_calls();
  calls.fallocate = std::move(fallocate);
  return calls;
}

TEST_F(OutputTest, NamesTheFileAndTheBytesThatAFullDiskLacks) {
  const OutputCalls calls = calls_with([](int, off_t) {
    errno = ENOSPC;
    return -1;
  });
  Output output(out_, {}, calls);
  const Error error = error_of([&] { output.create("f.bin", 123456); });
  EXPECT_EQ(error.code(), ErrorCode::Io);
  EXPECT_THAT(error.what(), HasSubstr("f.bin"));
  EXPECT_THAT(error.what(), HasSubstr("123456 bytes"));
  EXPECT_THAT(error.what(), HasSubstr("free"));
}

TEST_F(OutputTest, DoesWithoutFallocate) {
  const OutputCalls calls = calls_with([](int, off_t) {
    errno = EOPNOTSUPP;
    return -1;
  });
  Output output(out_, {}, calls);
  write_text(output.create("f", 3), "abc");
  // Free space is asked for instead.
  EXPECT_THAT(error_of([&] { output.create("g", uint64_t{1} << 60); }).what(),
              HasSubstr("1152921504606846976 bytes"));
}

TEST_F(OutputTest, RepeatsAnInterruptedAllocation) {
  int calls_left = 3;
  const OutputCalls calls = calls_with([&](int fd, off_t size) {
    errno = EINTR;
    return --calls_left > 0 ? -1 : ::ftruncate(fd, size);
  });
  Output output(out_, {}, calls);
  output.create("f", 3);
  EXPECT_EQ(calls_left, 0);
}

// Runs `body` in a child; true where it returned true.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(OutputTest, LeavesNothingWhenALimitStopsIt) {
  EXPECT_TRUE(in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    try {
      Output output(out_, {});
      output.create("small", 10);
      output.create("large", 2000);
    } catch (const Error& error) {
      return error.code() == ErrorCode::Io &&
             std::string(error.what()).find("2000 bytes") != std::string::npos;
    }
    return false;
  }));
  EXPECT_EQ(tree_of(folder_), Tree{});
}

TEST_F(OutputTest, LeavesNothingOnADiskThatIsFull) {
  fs::create_directories(out_);
  if (::mount("none", out_.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  const std::string path = out_ + "/model";
  {
    Output output(path, {});
    write_text(output.create("small", 3), "abc");
    const Error error = error_of([&] { output.create("large", 2 << 20); });
    EXPECT_EQ(error.code(), ErrorCode::Io);
    EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
    EXPECT_THAT(error.what(), HasSubstr("2097152 bytes"));
  }
  EXPECT_EQ(tree_of(out_), Tree{});
  // The same where files go without fallocate.
  const OutputCalls calls = calls_with([](int, off_t) {
    errno = EOPNOTSUPP;
    return -1;
  });
  {
    Output output(path, {}, calls);
    EXPECT_THAT(error_of([&] { output.create("large", 2 << 20); }).what(),
                HasSubstr("No space left on device"));
  }
  EXPECT_EQ(tree_of(out_), Tree{});
  EXPECT_EQ(::umount(out_.c_str()), 0);
}

TEST_F(OutputTest, SyncsFilesAndFoldersUnlessTold) {
  std::vector<std::string> synced;
  OutputCalls calls = system_calls();
  calls.fsync = [&](int fd) {
    const std::string path =
        fs::read_symlink("/proc/self/fd/" + std::to_string(fd)).string();
    synced.push_back(fs::path(path).lexically_relative(folder_).string());
    return ::fsync(fd);
  };
  {
    Output output(out_ + "/made", {}, calls);
    write_files(output, {{"f", "1"}, {"g", ""}});
  }
  EXPECT_EQ(synced,
            (std::vector<std::string>{"out/.made.zckpt-partial/f",
                                      "out/.made.zckpt-partial/g",
                                      "out/.made.zckpt-partial", "out", "."}));
  synced.clear();
  Output output(out_ + "/second", {.sync = false}, calls);
  write_files(output, {{"f", "1"}});
  EXPECT_TRUE(synced.empty());
}

TEST_F(OutputTest, ReportsDataThatDoesNotReachTheDisk) {
  OutputCalls calls = system_calls();
  calls.fsync = [](int) {
    errno = EIO;
    return -1;
  };
  {
    Output output(out_, {}, calls);
    Output::File& file = output.create("f", 1);
    EXPECT_EQ(error_of([&] { write_text(file, "1"); }).code(), ErrorCode::Io);
  }
  EXPECT_EQ(tree_of(folder_), Tree{});
}

TEST_F(OutputTest, ForgivesFoldersThatCannotBeSynced) {
  OutputCalls calls = system_calls();
  calls.fsync = [](int fd) {
    struct stat status {};
    ::fstat(fd, &status);
    if (!S_ISDIR(status.st_mode)) return 0;
    errno = EINVAL;
    return -1;
  };
  Output output(out_, {}, calls);
  write_files(output, {{"f", "1"}});
  EXPECT_EQ(tree_of(out_), (Tree{{"f", "1"}}));
}

}  // namespace
}  // namespace zckpt
