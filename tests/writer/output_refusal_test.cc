// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <pwd.h>
#include <sys/mount.h>
#include <unistd.h>

#include "writer/output.h"
#include "writer/output_tools.h"

namespace zckpt {
namespace {

using testing::HasSubstr;

class OutputRefusalTest : public OutputTestBase {
 protected:
  // Both the early check and the run itself refuse, say why, and leave
  // everything as it was.
  void expect_refused(const std::string& path, const OutputOptions& options,
                      const std::string& why,
                      ErrorCode code = ErrorCode::Conflict) {
    const Tree before = tree_of(folder_);
    const Error early = error_of([&] { check_output(path, options); });
    EXPECT_EQ(early.code(), code);
    EXPECT_THAT(early.what(), HasSubstr(why));
    const Error late = error_of([&] { const Output output(path, options); });
    EXPECT_STREQ(late.what(), early.what());
    EXPECT_EQ(tree_of(folder_), before);
  }
  void expect_accepted(const std::string& path, const OutputOptions& options) {
    const Tree before = tree_of(folder_);
    check_output(path, options);
    EXPECT_EQ(tree_of(folder_), before);
    { const Output output(path, options); }
    EXPECT_EQ(tree_of(folder_), before);
  }
};

TEST_F(OutputRefusalTest, NothingThere) {
  expect_accepted(out_, {});
  expect_accepted(out_ + "/a/b", {});
  expect_accepted(out_ + "/a/b", {.single_file = true});
}

TEST_F(OutputRefusalTest, ExistsAndIsNotEmpty) {
  make_tree(out_, old_);
  expect_refused(out_, {}, "--force replaces it");
  expect_accepted(out_, {.force = true});
  write_all(folder_ / "file", "text");
  expect_refused((folder_ / "file").string(), {.single_file = true},
                 "--force replaces it");
  expect_accepted((folder_ / "file").string(),
                  {.single_file = true, .force = true});
}

TEST_F(OutputRefusalTest, IsOfTheOtherKind) {
  write_all(folder_ / "file", "text");
  expect_refused((folder_ / "file").string(), {.force = true}, "is no folder");
  fs::create_directories(out_);
  expect_refused(out_, {.single_file = true, .force = true}, "is a folder");
  expect_refused("/dev/null", {.single_file = true, .force = true},
                 "not a regular file");
}

TEST_F(OutputRefusalTest, LiesBelowAFile) {
  write_all(folder_ / "file", "text");
  expect_refused((folder_ / "file" / "out").string(), {}, "is not a folder");
  expect_refused((folder_ / "file" / "x" / "out").string(), {},
                 "is not a folder");
}

TEST_F(OutputRefusalTest, IsALinkToNothing) {
  fs::create_symlink("missing", out_);
  expect_refused(out_, {.force = true}, "symbolic link to nothing");
  expect_refused(out_, {.single_file = true, .force = true},
                 "symbolic link to nothing");
}

TEST_F(OutputRefusalTest, HasNoName) {
  expect_refused("", {}, "no name", ErrorCode::Invalid);
}

TEST_F(OutputRefusalTest, IsTheRoot) {
  expect_refused("/", {.force = true}, "root folder");
  expect_refused("//", {}, "root folder");
}

TEST_F(OutputRefusalTest, HoldsAnInput) {
  write_all(out_ + "/a/b/c.pt", "input");
  fs::create_symlink(out_ + "/a/b/c.pt", folder_ / "link");
  const std::string input = out_ + "/a/b/c.pt";
  expect_refused(out_, {.force = true, .inputs = {input}}, input);
  expect_refused(out_, {.force = false, .inputs = {input}}, input);
  // Under another name.
  expect_refused(out_, {.force = true, .inputs = {(folder_ / "link").string()}},
                 "read to make it");
  expect_refused(out_, {.force = true, .inputs = {out_ + "/a/../a/b/c.pt"}},
                 "read to make it");
  expect_refused(input, {.single_file = true, .force = true, .inputs = {input}},
                 "read to make it");
  // Beside, and inside a folder of inputs.
  expect_accepted(out_ + "/a/b/new", {.inputs = {input}});
  expect_accepted(out_ + "/a/b/c.p", {.inputs = {input}});
}

TEST_F(OutputRefusalTest, HoldsAnInputThatAKilledRunLeft) {
  const std::string input =
      (folder_ / ".out.zckpt-partial" / "model.safetensors").string();
  write_all(input, "input");
  expect_refused(out_, {.inputs = {input}}, "read to make it");
}

TEST_F(OutputRefusalTest, HoldsACheckpoint) {
  for (const std::string name :
       {"latest", "run/checkpoint-5/latest", "mp_rank_00_model_states.pt",
        "a/b/zero_pp_rank_0_mp_rank_00_optim_states.pt"}) {
    make_tree(out_, {{name, "x"}, {"other", "y"}});
    expect_refused(out_, {.force = true}, "part of a checkpoint");
    fs::remove_all(out_);
  }
  make_tree(out_, {{"latest.txt", "x"}, {"latest", "/"}, {"states.pt", "y"}});
  expect_accepted(out_, {.force = true});
  write_all(folder_ / "latest", "global_step5");
  expect_refused((folder_ / "latest").string(),
                 {.single_file = true, .force = true}, "part of a checkpoint");
}

TEST_F(OutputRefusalTest, IsOrHoldsTheHome) {
  const passwd* user = ::getpwuid(::geteuid());
  if (user == nullptr || !fs::is_directory(user->pw_dir) ||
      fs::is_empty(user->pw_dir)) {
    GTEST_SKIP() << "needs a home with something in it";
  }
  for (fs::path path = fs::canonical(user->pw_dir); path.has_relative_path();
       path = path.parent_path()) {
    const Error error =
        error_of([&] { check_output(path.string(), {.force = true}); });
    EXPECT_EQ(error.code(), ErrorCode::Conflict);
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("home folder"),
                                             HasSubstr("mount point")));
  }
}

TEST_F(OutputRefusalTest, IsAMountPointWithSomethingInIt) {
  fs::create_directories(out_ + "/below");
  const auto mounted = [](const std::string& path) {
    return ::mount("none", path.c_str(), "tmpfs", 0, "size=1m") == 0;
  };
  if (!mounted(out_)) GTEST_SKIP() << "needs the right to mount";
  // As mkfs leaves it.
  fs::create_directories(out_ + "/lost+found");
  expect_accepted(out_, {});
  write_all(out_ + "/file", "text");
  expect_refused(out_, {.force = true}, "is a mount point");
  EXPECT_EQ(::umount(out_.c_str()), 0);
  ASSERT_TRUE(mounted(out_ + "/below"));
  expect_refused(out_, {.force = true}, "mounted below");
  EXPECT_EQ(::umount((out_ + "/below").c_str()), 0);
  // A bind mount has the device of what is around it.
  make_tree(folder_ / "source", old_);
  ASSERT_EQ(
      ::mount((folder_ / "source").c_str(), out_.c_str(), "", MS_BIND, nullptr),
      0);
  expect_refused(out_, {.force = true}, "is a mount point");
  EXPECT_EQ(::umount(out_.c_str()), 0);
}

TEST_F(OutputRefusalTest, CannotBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::create_directories(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms(0555));
  expect_refused((folder_ / "closed" / "out").string(), {}, "cannot write",
                 ErrorCode::Io);
}

}  // namespace
}  // namespace zckpt
