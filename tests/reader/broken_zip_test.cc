// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "reader/zip_directory.h"
#include "support/caught.h"
#include "support/memory_source.h"
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

// What is broken, and where that is found.
struct Broken {
  std::string bytes;
  uint64_t offset = 0;
};

struct Case {
  const char* name;
  ErrorCode code;
  const char* part;
  std::function<Broken()> make;
};

Broken at_entry(TorchArchive archive, const char* name) {
  const Built built = archive.build();
  return {built.bytes, built.places.at(name).central_offset};
}

Broken at_header(TorchArchive archive, const char* name) {
  const Built built = archive.build();
  return {built.bytes, built.places.at(name).header_offset};
}

Broken at_end(TorchArchive archive) {
  const Built built = archive.build();
  return {built.bytes, built.end_offset};
}

Broken at_zip64(TorchArchive archive) {
  const Built built = archive.build();
  return {built.bytes, built.zip64_offset};
}

class BrokenZip : public testing::TestWithParam<Case> {};

// Opens the directory and looks up every payload.
TEST_P(BrokenZip, IsRefused) {
  const Broken broken = GetParam().make();
  const MemorySource source(broken.bytes, "broken.pt");
  const auto open = [&] {
    const ZipDirectory directory(source);
    for (const ZipEntry& e : directory.entries()) directory.payload_offset(e);
  };
  expect_error(GetParam().code, broken.offset, GetParam().part, open);
  EXPECT_EQ(caught(open)->file(), "broken.pt");
}

const Case kEndCases[] = {
    {"Torn", ErrorCode::Corrupt, "truncated (its size is 500 bytes)",
     [] {
       return Broken{two_storages().bytes().substr(0, 500), 500};
     }},
    {"Empty", ErrorCode::Corrupt, "its size is 0 bytes",
     [] {
       return Broken{"", 0};
     }},
    {"BytesAfterEnd", ErrorCode::Corrupt, "no end record",
     [] {
       const std::string bytes = two_storages().bytes() + "x";
       return Broken{bytes, bytes.size()};
     }},
    {"SplitEnd", ErrorCode::Unsupported, "split",
     [] {
       TorchArchive archive = two_storages();
       archive.end().zip64 = false;
       archive.end().disk = 1;
       return at_end(archive);
     }},
    {"SplitZip64", ErrorCode::Unsupported, "split",
     [] {
       Built built = two_storages().build();
       built.bytes[built.zip64_offset + 16] = 1;
       return Broken{built.bytes, built.zip64_offset};
     }},
    {"SplitLocator", ErrorCode::Unsupported, "split",
     [] {
       TorchArchive archive = two_storages();
       archive.end().disks = 2;
       const Built built = archive.build();
       return Broken{built.bytes, built.locator_offset};
     }},
    {"CountedTwice", ErrorCode::Corrupt, "counts entries twice",
     [] {
       Built built = two_storages().build();
       ++built.bytes[built.end_offset + 8];
       return Broken{built.bytes, built.end_offset};
     }},
    {"CountedTwiceWide", ErrorCode::Corrupt, "counts entries twice",
     [] {
       TorchArchive archive = two_storages();
       archive.end().wide_count = 3;
       return at_zip64(archive);
     }},
    {"LocatorPastItself", ErrorCode::Corrupt, "no end record fits",
     [] {
       TorchArchive archive = two_storages();
       archive.end().locator_offset = UINT64_MAX;
       const Built built = archive.build();
       return Broken{built.bytes, built.locator_offset};
     }},
    {"LocatorElsewhere", ErrorCode::Corrupt, "expected a zip64 end record",
     [] {
       TorchArchive archive = two_storages();
       archive.end().locator_offset = 7;
       return Broken{archive.bytes(), 7};
     }},
    {"Zip64RecordSize", ErrorCode::Corrupt, "does not reach up to",
     [] {
       TorchArchive archive = two_storages();
       archive.end().wide_record_size = 45;
       return at_zip64(archive);
     }},
    {"EndsDisagree", ErrorCode::Corrupt, "contradict each other",
     [] {
       Built built = two_storages().build();
       ++built.bytes[built.end_offset + 12];
       return Broken{built.bytes, built.zip64_offset};
     }},
    {"DirectoryOffset", ErrorCode::Corrupt, "does not end where",
     [] {
       TorchArchive archive = two_storages();
       archive.end().directory_offset = UINT32_MAX - 1;
       return at_zip64(archive);
     }},
    {"DirectorySize", ErrorCode::Corrupt, "does not end where",
     [] {
       TorchArchive archive = two_storages();
       archive.end().directory_size = 46;
       return at_zip64(archive);
     }},
    {"GapAfterDirectory", ErrorCode::Corrupt, "does not end where",
     [] {
       TorchArchive archive = two_storages();
       archive.end().gap = "gap";
       return at_zip64(archive);
     }},
    {"TooManyEntries", ErrorCode::Corrupt, "do not fit",
     [] {
       TorchArchive archive = two_storages();
       archive.end().sentinels = true;
       archive.end().count = UINT64_MAX;
       return at_zip64(archive);
     }},
};

const Case kEntryCases[] = {
    {"TooFewEntries", ErrorCode::Corrupt, "bytes between",
     [] {
       TorchArchive archive = two_storages();
       archive.end().count = archive.records().size() - 1;
       return at_entry(archive, ".data/serialization_id");
     }},
    {"OneEntryMore", ErrorCode::Corrupt, "expected entry 9 of 10",
     [] {
       TorchArchive archive = two_storages();
       archive.end().count = archive.records().size() + 1;
       return Broken{archive.bytes(), archive.build().zip64_offset};
     }},
    {"EntrySignature", ErrorCode::Corrupt, "expected entry 4 of 9",
     [] {
       Built built = two_storages().build();
       ++built.bytes[built.places.at("data/0").central_offset];
       return Broken{built.bytes, built.places.at("data/0").central_offset};
     }},
    {"NamePastDirectory", ErrorCode::Corrupt, "past the end of the directory",
     [] {
       Built built = two_storages().build();
       const uint64_t at =
           built.places.at(".data/serialization_id").central_offset;
       ++built.bytes[at + 28];
       return Broken{built.bytes, at};
     }},
    {"Encrypted", ErrorCode::Unsupported, "encrypted",
     [] { return at_entry(two_storages().encrypt("data/1"), "data/1"); }},
    {"Compressed", ErrorCode::Unsupported, "compressed",
     [] { return at_entry(two_storages().compress("data/1"), "data/1"); }},
    {"OnAnotherDisk", ErrorCode::Unsupported, "split",
     [] {
       TorchArchive archive = two_storages();
       archive.record("data/1").disk = 1;
       return at_entry(archive, "data/1");
     }},
    {"SizesDiffer", ErrorCode::Corrupt, "two sizes differ: 9 and 10",
     [] {
       TorchArchive archive = two_storages();
       archive.record("data/1").stored_size = 9;
       return at_entry(archive, "data/1");
     }},
    {"NoZip64Field", ErrorCode::Corrupt, "malformed extra field",
     [] {
       TorchArchive archive = two_storages();
       archive.oversize("data/1", UINT32_MAX);
       return at_entry(archive, "data/1");
     }},
    {"ShortZip64Field", ErrorCode::Corrupt, "malformed extra field",
     [] {
       TorchArchive archive = two_storages();
       archive.oversize("data/1", UINT32_MAX);
       archive.record("data/1").central_extra =
           std::string("\x01\0\x04\0abcd", 8);
       return at_entry(archive, "data/1");
     }},
    {"ExtraPastItself", ErrorCode::Corrupt, "malformed extra field",
     [] {
       TorchArchive archive = two_storages();
       archive.record("data/1").central_extra = std::string("FB\x09\0a", 5);
       return at_entry(archive, "data/1");
     }},
    {"ExtraWithTail", ErrorCode::Corrupt, "malformed extra field",
     [] {
       TorchArchive archive = two_storages();
       archive.record("data/1").central_extra = "FB";
       return at_entry(archive, "data/1");
     }},
    {"ListedTwice", ErrorCode::Corrupt, "reaches into what follows",
     [] { return at_header(two_storages().list_twice("data/1"), "data/1"); }},
    {"Duplicate", ErrorCode::Corrupt, "ckpt/data/1 occurs twice",
     [] { return at_header(two_storages().duplicate("data/1"), "data/1"); }},
    {"Overlap", ErrorCode::Corrupt, "reaches into what follows",
     [] {
       const uint64_t last =
           two_storages().build().places.at("version").header_offset;
       TorchArchive archive = two_storages();
       // Into the payload of the record before.
       archive.record("data/1").bytes = std::string(1000, 'x');
       archive.record("version").header_offset = last;
       return at_header(archive, "data/1");
     }},
    {"PastDirectory", ErrorCode::Corrupt, "reaches into what follows",
     [] {
       TorchArchive archive = two_storages();
       archive.oversize(".data/serialization_id", 400);
       return at_header(archive, ".data/serialization_id");
     }},
    {"HugeZip64Size", ErrorCode::Corrupt, "reaches into what follows",
     [] {
       TorchArchive archive = two_storages();
       archive.use_zip64("data/0").oversize("data/0", UINT64_MAX);
       return at_header(archive, "data/0");
     }},
    {"HugeZip64Offset", ErrorCode::Corrupt, "reaches into what follows",
     [] {
       TorchArchive archive = two_storages();
       archive.use_zip64("data/0");
       archive.record("data/0").header_offset = UINT64_MAX - 1;
       return Broken{archive.bytes(), UINT64_MAX - 1};
     }},
};

const Case kHeaderCases[] = {
    {"LocalSignature", ErrorCode::Corrupt, "expected the header",
     [] {
       TorchArchive archive = two_storages();
       archive.record("data/1").local_signature = 7;
       return at_header(archive, "data/1");
     }},
    {"LocalName", ErrorCode::Corrupt, "found that of another one",
     [] {
       return at_header(two_storages().rename_locally("data/1", "ckpt/data/7"),
                        "data/1");
     }},
    {"LocalNameLength", ErrorCode::Corrupt, "found that of another one",
     [] {
       return at_header(two_storages().rename_locally("data/1", "ckpt/data/12"),
                        "data/1");
     }},
    {"SwappedNames", ErrorCode::Corrupt, "found that of another one",
     [] {
       return at_header(two_storages().swap_names("data/0", "data/1"),
                        "data/1");
     }},
    {"LocallyCompressed", ErrorCode::Corrupt, "contradicts the directory",
     [] {
       TorchArchive archive = two_storages();
       archive.record("data/1").local_method = 8;
       return at_header(archive, "data/1");
     }},
    {"OffByOne", ErrorCode::Corrupt, "15 bytes before what follows",
     [] { return at_header(two_storages().overlap("data/1"), "data/0"); }},
    {"Shifted", ErrorCode::Corrupt, "13 bytes before what follows",
     [] {
       Built built = two_storages().build();
       built.bytes[built.places.at("data/1").header_offset + 28] += 3;
       return Broken{built.bytes, built.places.at("data/1").header_offset};
     }},
    {"ShiftedLikeAWideDescriptor", ErrorCode::Corrupt, "24 bytes before",
     [] {
       Built built = two_storages().build();
       built.bytes[built.places.at("data/1").header_offset + 28] -= 8;
       return Broken{built.bytes, built.places.at("data/1").header_offset};
     }},
    {"NoDescriptor", ErrorCode::Corrupt, "16 bytes before what follows",
     [] {
       Built built = two_storages().build();
       built.bytes[built.places.at("data/1").central_offset + 8] = 0;
       return Broken{built.bytes, built.places.at("data/1").header_offset};
     }},
    {"LocalExtraPastNext", ErrorCode::Corrupt, "reaches into what follows",
     [] {
       TorchArchive archive = two_storages();
       archive.record("data/1").local_extra_size = 0xffff;
       return at_header(archive, "data/1");
     }},
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(End, BrokenZip, testing::ValuesIn(kEndCases),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Entry, BrokenZip, testing::ValuesIn(kEntryCases),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Header, BrokenZip, testing::ValuesIn(kHeaderCases),
                         case_name);

}  // namespace
}  // namespace zckpt::test
