// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/zip_directory.h"

#include <gtest/gtest.h>

#include <string>

#include "format/zip.h"
#include "support/caught.h"
#include "support/memory_source.h"
#include "support/sparse_source.h"
#include "support/torch_archive.h"
#include "zckpt/error.h"

namespace zckpt::test {
namespace {

using Built = TorchArchive::Built;

TorchArchive two_storages() {
  TorchArchive archive("ckpt");
  archive.add_storage("first storage");
  archive.add_storage("the second");
  archive.add_storage("");
  return archive;
}

// Counts reads and the bytes they fetch.
class CountingSource final : public ByteSource {
 public:
  explicit CountingSource(const ByteSource& inner) : inner_(inner) {}
  uint64_t size() const override { return inner_.size(); }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    ++reads;
    bytes += out.size();
    inner_.read_at(offset, out);
  }
  const std::string& name() const override { return inner_.name(); }

  mutable int reads = 0;
  mutable uint64_t bytes = 0;

 private:
  const ByteSource& inner_;
};

void expect_intact(const Built& built) {
  const MemorySource source(built.bytes);
  const ZipDirectory directory(source);
  ASSERT_EQ(directory.entries().size(), built.places.size());
  ZipWindow window;
  for (const auto& [name, place] : built.places) {
    const ZipEntry* entry = directory.find("ckpt/" + name);
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(entry->header_offset, place.header_offset);
    EXPECT_EQ(directory.payload_offset(*entry), place.payload_offset);
  }
  for (const ZipEntry& entry : directory.entries()) {
    const std::string name(entry.name.substr(5));
    EXPECT_EQ(directory.payload_offset(entry, &window),
              built.places.at(name).payload_offset);
  }
  EXPECT_EQ(directory.read(*directory.find("ckpt/data/1"), 100), "the second");
}

TEST(ZipDirectory, ReadsWhatTorchWrites) {
  expect_intact(two_storages().build());
}

TEST(ZipDirectory, AlignsPayloadsAsTorchDoes) {
  const Built built = two_storages().build();
  for (const auto& [name, place] : built.places) {
    EXPECT_EQ(place.payload_offset % 64, 0U) << name;
  }
}

TEST(ZipDirectory, FindsEndBeforeComment) {
  for (const size_t length : {1U, 100U, 1000U, 65535U}) {
    TorchArchive archive = two_storages();
    archive.end().comment = std::string(length, 'c');
    expect_intact(archive.build());
  }
}

TEST(ZipDirectory, TakesSizesFromZip64Fields) {
  TorchArchive archive = two_storages();
  archive.use_zip64("data/0").use_zip64("data/1");
  // Another field comes first.
  archive.record("data/1").central_extra = std::string("\x77\x77\x02\0ab", 6);
  expect_intact(archive.build());
}

TEST(ZipDirectory, TakesEndFromZip64Record) {
  TorchArchive archive = two_storages();
  archive.end().sentinels = true;
  expect_intact(archive.build());
}

TEST(ZipDirectory, DoesWithoutZip64Record) {
  TorchArchive archive = two_storages();
  archive.end().zip64 = false;
  expect_intact(archive.build());
}

TEST(ZipDirectory, KeepsFileOrderWhateverTheDirectorySays) {
  Built built = two_storages().build();
  // Exchanges two entries of equal length in the directory.
  const uint64_t a = built.places.at("data/0").central_offset;
  const uint64_t b = built.places.at("data/1").central_offset;
  const std::string first = built.bytes.substr(a, b - a);
  built.bytes.replace(a, b - a, built.bytes.substr(b, b - a));
  built.bytes.replace(b, b - a, first);
  const MemorySource source(built.bytes);
  const ZipDirectory directory(source);
  EXPECT_EQ(directory.entries()[4].name, "ckpt/data/0");
  EXPECT_EQ(directory.entries()[5].name, "ckpt/data/1");
}

TEST(ZipDirectory, AcceptsWideDescriptorsOfSmallEntries) {
  TorchArchive archive = two_storages();
  archive.record("data/1").wide_descriptor = true;
  expect_intact(archive.build());
}

TEST(ZipDirectory, AcceptsEntriesWithoutDescriptor) {
  TorchArchive archive = two_storages();
  archive.record("data/1").no_descriptor = true;
  expect_intact(archive.build());
}

TEST(ZipDirectory, NamesSurviveMove) {
  const MemorySource source(two_storages().bytes());
  ZipDirectory first(source);
  const ZipDirectory second(std::move(first));
  EXPECT_NE(second.find("ckpt/data/1"), nullptr);
  EXPECT_EQ(second.find("ckpt/data/7"), nullptr);
  EXPECT_EQ(second.find(""), nullptr);
}

TEST(ZipDirectory, AcceptsAnArchiveOfNothing) {
  TorchArchive archive("ckpt");
  archive.records().clear();
  const MemorySource source(archive.bytes());
  const ZipDirectory directory(source);
  EXPECT_TRUE(directory.entries().empty());
  EXPECT_EQ(directory.find("x"), nullptr);
}

TEST(ZipDirectory, ReadsNeighbouringHeadersTogether) {
  TorchArchive archive("ckpt");
  for (int i = 0; i < 1000; ++i) archive.add_storage("0123456789");
  const MemorySource memory(archive.bytes());
  const CountingSource source(memory);
  const ZipDirectory directory(source);
  // The tail, the zip64 record and the directory.
  EXPECT_EQ(source.reads, 3);
  ZipWindow window;
  for (const ZipEntry& entry : directory.entries()) {
    directory.payload_offset(entry, &window);
  }
  EXPECT_LE(source.reads, 3 + 4);
}

TEST(ZipDirectory, ReadsNoPayloadOnTheWayToAHeader) {
  TorchArchive archive("ckpt");
  for (int i = 0; i < 4; ++i) archive.add_storage(std::string(100'000, 'x'));
  const MemorySource memory(archive.bytes());
  const CountingSource source(memory);
  const ZipDirectory directory(source);
  const uint64_t before = source.bytes;
  ZipWindow window;
  for (int i = 0; i < 4; ++i) {
    directory.payload_offset(*directory.find("ckpt/data/" + std::to_string(i)),
                             &window);
  }
  EXPECT_LE(source.bytes - before, 1000);
}

TEST(ZipDirectory, ReadRefusesLargeEntry) {
  const Built built = two_storages().build();
  const MemorySource source(built.bytes);
  const ZipDirectory directory(source);
  const ZipEntry& entry = *directory.find("ckpt/data/0");
  EXPECT_EQ(directory.read(entry, 13), "first storage");
  expect_error(ErrorCode::Limit, built.places.at("data/0").header_offset,
               "exceeds the limit", [&] { directory.read(entry, 12); });
}

TEST(ZipDirectory, ReadChecksCrc) {
  TorchArchive archive = two_storages();
  archive.wrong_crc("data/0").no_crc("data/1");
  const Built built = archive.build();
  const MemorySource source(built.bytes);
  const ZipDirectory directory(source);
  expect_error(ErrorCode::Corrupt, built.places.at("data/0").payload_offset,
               "CRC",
               [&] { directory.read(*directory.find("ckpt/data/0"), 99); });
  EXPECT_EQ(directory.read(*directory.find("ckpt/data/1"), 99), "the second");
  EXPECT_EQ(directory.read(*directory.find("ckpt/data/2"), 0), "");
}

TEST(ZipDirectory, RefusesEntryOfAnotherDirectory) {
  const MemorySource source(two_storages().bytes());
  const ZipDirectory directory(source);
  const ZipEntry stranger{.name = "x", .header_offset = 1};
  expect_error(ErrorCode::Internal, {}, "another directory",
               [&] { directory.payload_offset(stranger); });
}

TEST(ZipDirectory, RefusesDirectoryAboveTheLimit) {
  // A directory that fills the file up to the end records.
  constexpr uint64_t kDirectory = (uint64_t{1} << 30) + 1;
  TorchArchive archive;
  archive.records().clear();
  archive.end().zip64 = false;
  archive.end().directory_size = kDirectory;
  const std::string end = archive.bytes();
  const SparseSource source("", kDirectory + end.size(), end);
  expect_error(ErrorCode::Limit, 0, "exceeds the limit",
               [&] { const ZipDirectory directory(source); });
}

TEST(ZipDirectory, HasZipEnd) {
  const std::string bytes = two_storages().bytes();
  EXPECT_TRUE(has_zip_end(MemorySource(bytes)));
  EXPECT_FALSE(has_zip_end(MemorySource(bytes.substr(0, bytes.size() - 1))));
  EXPECT_FALSE(has_zip_end(MemorySource("")));
}

}  // namespace
}  // namespace zckpt::test
