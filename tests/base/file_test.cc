// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "base/arithmetic.h"
#include "support/caught.h"
#include "zckpt/dtype.h"

namespace zckpt {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string name = testing::TempDir() + "zckpt-file-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }
  std::string make(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }

  std::string folder_;
};

TEST_F(FileTest, ReadsWhereAsked) {
  const FileSource source(make("a", "0123456789"));
  EXPECT_EQ(source.size(), 10U);
  std::array<char, 4> bytes{};
  source.read_at(3, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(std::string(bytes.data(), 4), "3456");
  source.read_at(10, {});
}

TEST_F(FileTest, RefusesToReadPastTheEnd) {
  const FileSource source(make("a", "0123456789"));
  std::array<std::byte, 4> bytes{};
  test::expect_error(ErrorCode::Corrupt, 7, "found the file's end at 10",
                     [&] { source.read_at(7, bytes); });
  test::expect_error(ErrorCode::Corrupt, UINT64_MAX, "expected 4 bytes",
                     [&] { source.read_at(UINT64_MAX, bytes); });
}

TEST_F(FileTest, NoticesAFileThatShrinks) {
  const std::string path = make("a", "0123456789");
  const FileSource source(path);
  std::filesystem::resize_file(path, 5);
  std::array<std::byte, 4> bytes{};
  test::expect_error(ErrorCode::Corrupt, 6, "became shorter",
                     [&] { source.read_at(6, bytes); });
}

TEST_F(FileTest, OpensRegularFilesOnly) {
  test::expect_error(ErrorCode::Io, std::nullopt, "cannot open",
                     [&] { FileSource(folder_ + "/none"); });
  test::expect_error(ErrorCode::Io, std::nullopt, "not a regular file",
                     [&] { FileSource{folder_}; });
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  test::expect_error(ErrorCode::Io, std::nullopt, "not a regular file",
                     [&] { FileSource{pipe}; });
}

TEST_F(FileTest, CapsTextFiles) {
  const std::string path = make("a", "0123456789");
  EXPECT_EQ(read_text_file(path, 10), "0123456789");
  test::expect_error(ErrorCode::Limit, std::nullopt, "at most 9 bytes",
                     [&] { read_text_file(path, 9); });
}

TEST_F(FileTest, SaysWhenItCannotWrite) {
  const std::string path = make("a", "");
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::array<std::byte, 1> bytes{};
  test::expect_error(ErrorCode::Io, std::nullopt, "cannot write",
                     [&] { write_at(fd.get(), 0, bytes, path); });
}

TEST(Arithmetic, RefusesToWrap) {
  EXPECT_EQ(checked_add(1, 2, "a sum"), 3U);
  EXPECT_EQ(checked_mul(3, 4, "a product"), 12U);
  EXPECT_EQ(checked_cast<uint8_t>(255, "a byte"), 255);
  test::expect_error(ErrorCode::Corrupt, std::nullopt, "a sum exceeds 64 bits",
                     [] { checked_add(UINT64_MAX, 1, "a sum"); });
  test::expect_error(ErrorCode::Corrupt, std::nullopt, "a product exceeds",
                     [] { checked_mul(UINT64_MAX, 2, "a product"); });
  test::expect_error(ErrorCode::Corrupt, std::nullopt, "a byte is out of range",
                     [] { checked_cast<uint8_t>(256, "a byte"); });
  EXPECT_EQ(ceil_div(UINT64_MAX, 2), (UINT64_MAX / 2) + 1);
  EXPECT_EQ(align_up(13, 8), 16U);
}

TEST(ErrorText, PutsThePlaceFirst) {
  EXPECT_STREQ(Error(ErrorCode::Io, "gone").what(), "gone");
  EXPECT_STREQ(Error(ErrorCode::Corrupt, "bad",
                     {.file = "a", .tensor = "t", .offset = 7})
                   .what(),
               "a: t @7: bad");
  EXPECT_STREQ(Error(ErrorCode::Corrupt, "bad", {.file = "a\n"}).what(),
               "a\\x0a: bad");
  Error error(ErrorCode::Corrupt, "bad", {.file = "inner"});
  EXPECT_EQ(error.in_file("outer").in_tensor("t").file(), "inner");
  EXPECT_STREQ(error.what(), "inner: t: bad");
}

TEST(DTypes, NameEachOther) {
  EXPECT_EQ(dtype_from_torch("bfloat16"), DType::BF16);
  EXPECT_EQ(dtype_from_torch("half"), DType::F16);
  EXPECT_EQ(dtype_from_torch("qint8"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("F8_E4M3"), DType::F8E4M3);
  EXPECT_EQ(dtype_from_safetensors("F4"), std::nullopt);
  EXPECT_EQ(size_of(DType::I64), 8U);
  EXPECT_TRUE(is_floating(DType::F8E5M2));
  EXPECT_FALSE(is_floating(DType::C64));
  EXPECT_EQ(short_name(DType::BF16), "bf16");
  EXPECT_EQ(safetensors_name(DType::Bool), "BOOL");
}

}  // namespace
}  // namespace zckpt
