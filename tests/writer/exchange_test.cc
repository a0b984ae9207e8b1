// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
// Outputs that replace others: each way of doing so, ended at each step.
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "writer/output_calls.h"
#include "writer/output_tools.h"

namespace zckpt {
namespace {

using testing::HasSubstr;

// How a file system may force the hand of a commit.
enum class Way { OneStep, TwoSteps, Inside, MovedInside };

std::string name_of(const testing::TestParamInfo<Way>& info) {
  constexpr std::array kNames{"OneStep", "TwoSteps", "Inside", "MovedInside"};
  return kNames[static_cast<size_t>(info.param)];
}

// The system's calls, but for those that `way` does without. `step` is called
// before each call that changes something; an answer other than 0 is the errno
// that the call fails with.
OutputCalls calls_for(Way way, const std::string& out,
                      std::function<int()> step) {
  const OutputCalls system = system_calls();
  const auto fail = [](int error) {
    errno = error;
    return -1;
  };
  OutputCalls calls = system;
  calls.mkdir = [=](const char* path, mode_t mode) {
    if (const int error = step(); error != 0) return fail(error);
    const bool beside = fs::path(path).parent_path() != out;
    if (way == Way::Inside && beside) return fail(EACCES);
    return system.mkdir(path, mode);
  };
  calls.rename = [=](const char* from, const char* to, unsigned flags) {
    if (const int error = step(); error != 0) return fail(error);
    if (way == Way::TwoSteps && flags != 0) return fail(EINVAL);
    const bool of_output = from == out || to == out;
    if (way == Way::MovedInside && of_output) return fail(EBUSY);
    return system.rename(from, to, flags);
  };
  calls.remove_all = [=](const std::string& path) {
    if (const int error = step(); error != 0) return fail(error);
    return system.remove_all(path);
  };
  calls.fsync = [=](int fd) {
    if (const int error = step(); error != 0) return fail(error);
    return fd < 0 ? fail(EBADF) : 0;  // nothing here outlives the machine
  };
  return calls;
}

int no_step() { return 0; }

class ExchangeTest : public OutputTestBase,
                     public testing::WithParamInterface<Way> {
 protected:
  void run(const OutputCalls& calls, const Tree& files) {
    Output output(out_, {.force = true}, calls);
    write_files(output, files);
  }
  // A run that ends, as if killed, before its step number `last`; false where
  // it was through before that.
  bool run_until(int last, const Tree& files) {
    const pid_t child = ::fork();
    if (child == 0) {
      int steps = 0;
      const OutputCalls calls = calls_for(GetParam(), out_, [&] {
        if (steps++ == last) ::_exit(77);
        return 0;
      });
      try {
        run(calls, files);
      } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 1);
    return WEXITSTATUS(status) == 77;
  }
  void expect_nothing_beside() {
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  }
};

TEST_P(ExchangeTest, ReplacesTheOldOutput) {
  for (const Tree& before : {old_, Tree{}}) {
    make_tree(out_, before);
    run(calls_for(GetParam(), out_, no_step), new_);
    EXPECT_EQ(tree_of(out_), new_);
    expect_nothing_beside();
    fs::remove_all(out_);
  }
}

TEST_P(ExchangeTest, IsCompletedOrUndoneAfterAKillAtAnyStep) {
  const Tree third{{"model.safetensors", "third"}};
  int completed = 0;
  int undone = 0;
  bool killed = true;
  for (int last = 0; killed; ++last) {
    make_tree(out_, old_);
    killed = run_until(last, new_);
    // A run without --force ends what the killed one began, and says what is
    // there.
    const OutputCalls calls = calls_for(GetParam(), out_, no_step);
    const Error error = error_of([&] { const Output output(out_, {}, calls); });
    EXPECT_EQ(error.code(), ErrorCode::Conflict);
    EXPECT_THAT(error.what(), HasSubstr("--force"));
    Tree found = tree_of(out_);
    std::erase_if(found, [](const auto& entry) {
      return entry.first.starts_with(".zckpt-");
    });
    EXPECT_TRUE(found == old_ || found == new_) << "step " << last;
    ++(found == new_ ? completed : undone);
    // One with it leaves nothing of either.
    run(calls, third);
    EXPECT_EQ(tree_of(out_), third) << "step " << last;
    expect_nothing_beside();
    fs::remove_all(out_);
  }
  EXPECT_GT(completed, 1);
  EXPECT_GT(undone, 3);
}

TEST_P(ExchangeTest, IsCompletedOrUndoneWhenAnyStepFails) {
  int failures = 0;
  for (int last = 0; failures == last; ++last) {
    make_tree(out_, old_);
    int steps = 0;
    try {
      run(calls_for(GetParam(), out_,
                    [&] { return steps++ == last ? EIO : 0; }),
          new_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Io) << error.what();
      ++failures;
    }
    const OutputCalls calls = calls_for(GetParam(), out_, no_step);
    error_of([&] { const Output output(out_, {}, calls); });
    const Tree found = tree_of(out_);
    EXPECT_TRUE(found == old_ || found == new_) << "step " << last;
    { const Output output(out_, {.force = true}, calls); }
    expect_nothing_beside();
    fs::remove_all(out_);
  }
  EXPECT_GT(failures, 5);
}

INSTANTIATE_TEST_SUITE_P(Ways, ExchangeTest,
                         testing::Values(Way::OneStep, Way::TwoSteps,
                                         Way::Inside, Way::MovedInside),
                         name_of);

// Locks.

class OutputLockTest : public OutputTestBase {};

TEST_F(OutputLockTest, KeepsASecondRunOut) {
  for (const bool single_file : {false, true}) {
    const OutputOptions options{.single_file = single_file};
    {
      Output first(out_, options);
      const Error error = error_of([&] { const Output second(out_, options); });
      EXPECT_EQ(error.code(), ErrorCode::Conflict);
      EXPECT_THAT(error.what(), HasSubstr("another zckpt run is writing"));
      write_text(first.create("f", 1), "1");
      first.commit();
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
    fs::remove_all(out_);
  }
}

TEST_F(OutputLockTest, KeepsASecondRunOutOfTheInside) {
  fs::create_directories(out_);
  const OutputCalls calls = calls_for(Way::Inside, out_, no_step);
  Output first(out_, {}, calls);
  EXPECT_EQ(error_of([&] { const Output second(out_, {}, calls); }).code(),
            ErrorCode::Conflict);
  // One that could write beside it, too.
  EXPECT_EQ(error_of([&] { const Output second(out_, {}); }).code(),
            ErrorCode::Conflict);
  write_files(first, new_);
  EXPECT_EQ(tree_of(out_), new_);
}

TEST_F(OutputLockTest, RemovesTheLeavingsOfAKilledRun) {
  make_tree(folder_ / ".out.zckpt-partial", old_);
  { const Output output(out_, {}); }
  EXPECT_EQ(tree_of(folder_), Tree{});
  // Of the other kind.
  write_all(folder_ / ".out.zckpt-partial", "half a model");
  write_files(*std::make_unique<Output>(out_, OutputOptions{}), new_);
  EXPECT_EQ(tree_of(out_), new_);
  make_tree(folder_ / ".one.zckpt-partial", old_);
  Output output((folder_ / "one").string(), {.single_file = true});
  write_text(output.create("", 3), "abc");
  output.commit();
  EXPECT_EQ(read_all(folder_ / "one"), "abc");
}

TEST_F(OutputLockTest, DoesNotTakeAnOutputThatWasJustCommittedForLeavings) {
  // The other run renames its folder into place between our open and our lock.
  make_tree(folder_ / ".out.zckpt-partial", old_);
  OutputCalls calls = system_calls();
  bool first = true;
  calls.flock = [&](int fd, int operation) {
    if (first) fs::rename(folder_ / ".out.zckpt-partial", out_);
    first = false;
    return ::flock(fd, operation);
  };
  const Error error = error_of([&] { const Output output(out_, {}, calls); });
  EXPECT_EQ(error.code(), ErrorCode::Conflict);
  EXPECT_THAT(error.what(), HasSubstr("--force"));
  EXPECT_EQ(tree_of(folder_).size(), old_.size() + 1);
  EXPECT_EQ(tree_of(out_), old_);
}

TEST_F(OutputLockTest, DoesNotTakeLeavingsForItsOwn) {
  // Between our mkdir and our lock another run took the folder for leavings,
  // made its own, and was killed.
  OutputCalls calls = system_calls();
  bool first = true;
  calls.mkdir = [&](const char* path, mode_t mode) {
    const int result = system_calls().mkdir(path, mode);
    if (first) write_all(fs::path(path) / "theirs", "half a file");
    first = false;
    return result;
  };
  Output output(out_, {}, calls);
  write_files(output, {{"f", "1"}});
  EXPECT_EQ(tree_of(out_), (Tree{{"f", "1"}}));
}

TEST_F(OutputLockTest, HoldsTheOldOutputWhileItIsBeingRemoved) {
  for (const Way way : {Way::OneStep, Way::TwoSteps}) {
    make_tree(out_, old_);
    OutputCalls calls = calls_for(way, out_, no_step);
    int removals = 0;
    calls.remove_all = [&](const std::string& path) {
      ++removals;
      EXPECT_EQ(tree_of(out_), new_);
      const Error error =
          error_of([&] { const Output second(out_, {.force = true}); });
      EXPECT_THAT(error.what(), HasSubstr("another zckpt run is writing"));
      return system_calls().remove_all(path);
    };
    Output output(out_, {.force = true}, calls);
    write_files(output, new_);
    EXPECT_EQ(removals, 1);
    fs::remove_all(out_);
  }
}

TEST_F(OutputLockTest, DoesWithoutLocksWhereThereIsNothingToConfuse) {
  OutputCalls calls = system_calls();
  calls.flock = [](int, int) {
    errno = ENOLCK;
    return -1;
  };
  {
    Output output(out_, {}, calls);
    write_files(output, {{"f", "1"}});
  }
  {
    Output output(out_, {.force = true}, calls);
    write_files(output, new_);
  }
  EXPECT_EQ(tree_of(out_), new_);
  // A live run or a dead one?
  make_tree(folder_ / ".out.zckpt-partial", old_);
  const Error error =
      error_of([&] { const Output output(out_, {.force = true}, calls); });
  EXPECT_EQ(error.code(), ErrorCode::Conflict);
  EXPECT_THAT(error.what(), HasSubstr("has no locks"));
  EXPECT_EQ(tree_of(folder_ / ".out.zckpt-partial"), old_);
}

// Inside the output.

class OutputInsideTest : public OutputTestBase {};

TEST_F(OutputInsideTest, FillsAMountPoint) {
  fs::create_directories(out_);
  if (::mount("none", out_.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  fs::create_directories(out_ + "/lost+found");
  {
    Output output(out_, {});
    write_files(output, {{"f", "1"}, {"g", ""}});
  }
  EXPECT_EQ(tree_of(out_), (Tree{{"f", "1"}, {"g", ""}, {"lost+found", "/"}}));
  EXPECT_EQ(::umount(out_.c_str()), 0);
}

TEST_F(OutputInsideTest, LeavesTheWorkingFolderTheWorkingFolder) {
  const fs::path home = fs::current_path();
  make_tree(out_, old_);
  fs::current_path(out_);
  {
    Output output(".", {.force = true});
    write_files(output, new_);
  }
  EXPECT_EQ(tree_of("."), new_);
  fs::current_path(home);
  EXPECT_EQ(tree_of(out_), new_);
}

TEST_F(OutputInsideTest, FollowsNoJournalOutOfItsFolder) {
  const std::string head("zckpt-commit 1\0", 15);
  const std::string tail("end\0", 4);
  for (const std::string& record :
       {std::string("R../keep"), std::string("M../keep"), std::string("R.."),
        std::string("R"), std::string("X"), std::string(),
        std::string("R.zckpt-partial"), std::string("R/keep")}) {
    write_all(folder_ / "keep", "text");
    make_tree(out_, {{".zckpt-commit", head + record + '\0' + tail}});
    const Error error = error_of([&] { const Output output(out_, {}); });
    EXPECT_EQ(error.code(), ErrorCode::Conflict) << record;
    EXPECT_THAT(error.what(), HasSubstr("damaged"));
    EXPECT_EQ(tree_of(folder_).size(), 3U) << record;
  }
  for (const std::string& text :
       {std::string(), head, std::string("Rkeep"), head + "Rf" + '\0'}) {
    make_tree(out_, {{".zckpt-commit", text}});
    EXPECT_THAT(error_of([&] { const Output output(out_, {}); }).what(),
                HasSubstr("damaged"));
  }
}

TEST_F(OutputInsideTest, EarlyCheckLeavesAHalfReplacedOutputToTheRun) {
  make_tree(folder_ / ".out.zckpt-old", old_);
  check_output(out_, {});
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_EQ(error_of([&] { const Output output(out_, {}); }).code(),
            ErrorCode::Conflict);
  EXPECT_EQ(tree_of(out_), old_);
  // What was undone may still hold an input.
  fs::rename(out_, folder_ / ".out.zckpt-old");
  const std::string input =
      (folder_ / ".out.zckpt-old" / "model.safetensors").string();
  EXPECT_EQ(error_of([&] {
              check_output(out_, {.force = true, .inputs = {input}});
            }).code(),
            ErrorCode::Conflict);
}

}  // namespace
}  // namespace zckpt
