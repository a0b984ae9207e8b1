// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/torch_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "reader/legacy_file.h"
#include "reader/torch_tensor.h"
#include "support/caught.h"
#include "support/memory_source.h"
#include "support/sparse_source.h"
#include "support/torch_archive.h"
#include "zckpt/error.h"

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

TorchArchive small_archive(std::string prefix = "archive") {
  TorchArchive archive(std::move(prefix));
  const Py a = archive.tensor(DType::F32, {2}, std::vector<float>{1, 2});
  const Py b = archive.tensor(DType::I64, {0}, "");
  const Py c = archive.tensor(DType::BF16, {2, 2}, "ABCDEFGH");
  archive.set_root(Py::dict({{"a", a}, {"b", b}, {"c", c}}));
  return archive;
}

std::string payload(const std::string& bytes, const StorageRecord& record) {
  return bytes.substr(record.offset, record.size_bytes);
}

void expect_small(const TorchFile& file, const std::string& bytes) {
  EXPECT_EQ(file.file_bytes(), bytes.size());
  EXPECT_EQ(file.root().size(), 3);
  ASSERT_EQ(file.storages().size(), 3);
  const std::optional<TorchTensor> c = as_tensor(*file.root().find("c"));
  ASSERT_TRUE(c);
  const std::optional<uint32_t> index = file.find_storage(c->key);
  ASSERT_TRUE(index);
  EXPECT_EQ(payload(bytes, file.storages()[*index]), "ABCDEFGH");
  EXPECT_EQ(c->storage_bytes, 8);
  EXPECT_FALSE(file.find_storage("3"));
  EXPECT_FALSE(file.find_storage(""));
}

TEST(TorchFile, ReadsZipContainer) {
  for (const char* prefix : {"archive", "bf16_zero_pp_rank_0", "a/b", ""}) {
    const TorchArchive archive = small_archive(prefix);
    const std::string bytes = archive.bytes();
    const MemorySource source(bytes);
    const TorchFile file = TorchFile::open(source);
    EXPECT_FALSE(file.is_legacy());
    EXPECT_EQ(file.prefix(), prefix);
    expect_small(file, bytes);
    for (const StorageRecord& record : file.storages()) {
      EXPECT_TRUE(record.has_crc);
    }
    EXPECT_EQ(file.storages()[1].offset, 0);
    EXPECT_EQ(file.storages()[1].size_bytes, 0);
  }
}

TEST(TorchFile, ReadsLegacyContainer) {
  const std::string bytes = small_archive().legacy_bytes();
  const MemorySource source(bytes);
  ASSERT_TRUE(is_legacy_file(source));
  const TorchFile file = TorchFile::open(source);
  EXPECT_TRUE(file.is_legacy());
  EXPECT_EQ(file.prefix(), "");
  expect_small(file, bytes);
  EXPECT_FALSE(file.storages()[0].has_crc);
  // Nothing but the storages and their counts follows the pickles.
  EXPECT_EQ(file.pickle_bytes(), bytes.size() - 3 * 8 - 8 - 8);
}

TEST(TorchFile, ReadsArchivesOfOldTorch) {
  TorchArchive archive = small_archive();
  archive.drop("byteorder").drop(".format_version");
  archive.drop(".storage_alignment").drop(".data/serialization_id");
  const std::string bytes = archive.bytes();
  const MemorySource source(bytes);
  expect_small(TorchFile::open(source), bytes);
}

TEST(TorchFile, OrderOfRecordsDoesNotMatter) {
  TorchArchive archive = small_archive();
  std::reverse(archive.records().begin(), archive.records().end());
  const std::string bytes = archive.bytes();
  const MemorySource source(bytes);
  const TorchFile file = TorchFile::open(source);
  expect_small(file, bytes);
  EXPECT_EQ(file.storages()[0].key, "2");
}

TEST(TorchFile, FindsKeysOfAnyForm) {
  TorchArchive archive;
  const std::vector<std::string> keys{"94012345678", "b", "10", "9", "ab/c"};
  for (const std::string& key : keys) archive.add_storage(key, 1, key);
  const std::string bytes = archive.bytes();
  const MemorySource source(bytes);
  const TorchFile file = TorchFile::open(source);
  for (const std::string& key : keys) {
    ASSERT_TRUE(file.find_storage(key)) << key;
    EXPECT_EQ(payload(bytes, file.storages()[*file.find_storage(key)]), key);
  }
}

TEST(TorchFile, IgnoresTheEntryOfTheFolder) {
  TorchArchive archive = small_archive();
  archive.records().insert(archive.records().begin() + 1, {.name = "data/"});
  const std::string bytes = archive.bytes();
  const MemorySource source(bytes);
  expect_small(TorchFile::open(source), bytes);
}

TEST(TorchFile, ReadsStorageRecordsWithoutThePickle) {
  TorchArchive archive = small_archive();
  archive.set_pickle("no pickle");
  const MemorySource source(archive.bytes());
  const std::vector<StorageRecord> records = read_storage_records(source);
  const MemorySource intact_source(small_archive().bytes());
  const TorchFile intact = TorchFile::open(intact_source);
  ASSERT_EQ(records.size(), intact.storages().size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].key, intact.storages()[i].key);
    EXPECT_EQ(records[i].crc, intact.storages()[i].crc);
    EXPECT_EQ(records[i].size_bytes, intact.storages()[i].size_bytes);
  }
  const MemorySource legacy(small_archive().legacy_bytes());
  EXPECT_TRUE(read_storage_records(legacy).empty());
}

TEST(TorchFile, SaysWhereNoCrcWasComputed) {
  TorchArchive archive = small_archive();
  archive.no_crc("data/0");
  const MemorySource source(archive.bytes());
  const TorchFile file = TorchFile::open(source);
  EXPECT_FALSE(file.storages()[0].has_crc);
  EXPECT_TRUE(file.storages()[1].has_crc);
  EXPECT_TRUE(file.storages()[2].has_crc);
}

void expect_refused(const std::string& bytes, ErrorCode code, uint64_t offset,
                    std::string_view part) {
  const MemorySource source(bytes, "x.pt");
  const auto open = [&] { TorchFile::open(source); };
  expect_error(code, offset, part, open);
  if (const auto error = caught(open)) {
    EXPECT_EQ(error->file(), "x.pt");
  }
}

TEST(TorchFile, RefusesArchiveWithoutPickle) {
  TorchArchive archive = small_archive();
  expect_refused(archive.drop("data.pkl").bytes(), ErrorCode::Corrupt, 0,
                 "without a record data.pkl");
}

TEST(TorchFile, RefusesTwoPickles) {
  TorchArchive archive = small_archive();
  archive.records().push_back({.name = "other/data.pkl", .bytes = "x"});
  const auto built = archive.build();
  expect_refused(built.bytes, ErrorCode::Corrupt,
                 built.places.at("other/data.pkl").header_offset,
                 "archive/data.pkl and archive/other/data.pkl");
}

TEST(TorchFile, RefusesPrograms) {
  TorchArchive archive = small_archive();
  archive.records().push_back({.name = "constants.pkl", .bytes = "x"});
  const auto built = archive.build();
  expect_refused(built.bytes, ErrorCode::Unsupported,
                 built.places.at("constants.pkl").header_offset, "TorchScript");
}

TEST(TorchFile, RefusesOtherByteOrders) {
  TorchArchive archive = small_archive();
  archive.record("byteorder").bytes = "big";
  auto built = archive.build();
  expect_refused(built.bytes, ErrorCode::Unsupported,
                 built.places.at("byteorder").header_offset, "big-endian");
  archive.record("byteorder").bytes = "middle";
  built = archive.build();
  expect_refused(built.bytes, ErrorCode::Corrupt,
                 built.places.at("byteorder").header_offset, "found middle");
}

TEST(TorchFile, ChecksCrcOfPickle) {
  TorchArchive archive = small_archive();
  const auto built = archive.wrong_crc("data.pkl").build();
  expect_refused(built.bytes, ErrorCode::Corrupt,
                 built.places.at("data.pkl").payload_offset, "CRC");
}

TEST(TorchFile, PickleErrorsHaveOffsetsOfTheFile) {
  TorchArchive archive;
  archive.set_pickle("\x80\x02K\x01K\x02\xff.");
  const auto built = archive.build();
  expect_refused(built.bytes, ErrorCode::Corrupt,
                 built.places.at("data.pkl").payload_offset + 6, "");
}

TEST(TorchFile, NamesOtherForms) {
  expect_refused("", ErrorCode::Corrupt, 0, "an empty file");
  expect_refused("what is this", ErrorCode::Corrupt, 0, "unknown form");
  expect_refused("\x80\x02N.", ErrorCode::Unsupported, 0, "a bare pickle");
  expect_refused("{}", ErrorCode::Unsupported, 0, "JSON");
}

TEST(TorchFile, SaysThatAZipIsTruncated) {
  const std::string bytes = small_archive().bytes();
  expect_refused(bytes.substr(0, 700), ErrorCode::Corrupt, 700,
                 "the file is truncated (its size is 700 bytes)");
}

// The offsets of the five pickles and of the first storage.
std::vector<uint64_t> legacy_offsets(const std::string& bytes) {
  const std::string version("\x80\x02M\xe9\x03.", 6);
  const uint64_t system = 15 + version.size();
  const uint64_t object = bytes.find(std::string("\x80\x02}", 3), system + 3);
  const uint64_t keys = bytes.find("\x80\x02]", object);
  const uint64_t storages = bytes.find("e.", keys) + 2;
  return {0, 15, system, object, keys, storages};
}

TEST(LegacyFile, RefusesOtherProtocols) {
  std::string bytes = small_archive().legacy_bytes();
  bytes[18]++;
  expect_refused(bytes, ErrorCode::Unsupported, 15, "protocol version 1001");
}

TEST(LegacyFile, RefusesOtherByteOrders) {
  std::string bytes = small_archive().legacy_bytes();
  const auto offsets = legacy_offsets(bytes);
  const size_t at = bytes.find('\x88', offsets[2]);
  ASSERT_LT(at, offsets[3]);
  bytes[at] = '\x89';
  expect_refused(bytes, ErrorCode::Unsupported, offsets[2], "big-endian");
  bytes[at] = 'N';
  expect_refused(bytes, ErrorCode::Corrupt, offsets[2], "byte order");
}

TEST(LegacyFile, RefusesOpcodesOfNoPickle) {
  std::string bytes = small_archive().legacy_bytes();
  const auto offsets = legacy_offsets(bytes);
  bytes[offsets[3] + 2] = '\xff';
  expect_refused(bytes, ErrorCode::Corrupt, offsets[3] + 2,
                 "expected a pickle opcode");
}

TEST(LegacyFile, PickleErrorsHaveOffsetsOfTheFile) {
  std::string bytes = small_archive().legacy_bytes();
  const auto offsets = legacy_offsets(bytes);
  bytes[offsets[3] + 2] = 'a';  // APPEND to nothing
  const MemorySource source(bytes);
  const auto error = caught([&] { TorchFile::open(source); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Corrupt);
  EXPECT_EQ(error->offset(), offsets[3] + 2);
}

TEST(LegacyFile, RefusesKeysThatAreNoList) {
  std::string bytes = small_archive().legacy_bytes();
  const auto offsets = legacy_offsets(bytes);
  bytes.replace(offsets[4], std::string::npos, pickle("no list"));
  expect_refused(bytes, ErrorCode::Corrupt, offsets[4], "list of storage keys");
}

TEST(LegacyFile, RefusesStorageOfNoTensor) {
  TorchArchive archive = small_archive();
  archive.add_storage("orphan");
  const std::string bytes = archive.legacy_bytes();
  expect_refused(bytes, ErrorCode::Corrupt, legacy_offsets(bytes)[4],
                 "belongs to no tensor");
}

TEST(LegacyFile, RefusesTheSameKeyTwice) {
  std::string bytes = small_archive().legacy_bytes();
  const auto offsets = legacy_offsets(bytes);
  const std::string first = bytes.substr(offsets[5], 16);
  bytes.replace(offsets[4], std::string::npos,
                pickle(Py::list({"0", "0"})) + first + first);
  const uint64_t second = bytes.size() - 8;
  expect_refused(bytes, ErrorCode::Corrupt, second, "occurs twice");
}

TEST(LegacyFile, RefusesOtherCountThanThePickles) {
  std::string bytes = small_archive().legacy_bytes();
  const auto offsets = legacy_offsets(bytes);
  bytes[offsets[5]]++;
  expect_refused(bytes, ErrorCode::Corrupt, offsets[5],
                 "expected the 2 elements of storage 0, found 3");
  bytes[offsets[5] + 7] = '\xff';
  expect_refused(bytes, ErrorCode::Corrupt, offsets[5], "found -");
}

TEST(LegacyFile, RefusesTruncation) {
  const std::string bytes = small_archive().legacy_bytes();
  const auto offsets = legacy_offsets(bytes);
  const std::string_view all(bytes);
  expect_refused(std::string(all.substr(0, offsets[3] + 9)), ErrorCode::Corrupt,
                 offsets[3] + 9, "ends inside a pickle");
  expect_refused(std::string(all.substr(0, offsets[5] + 4)), ErrorCode::Corrupt,
                 offsets[5] + 4, "ends before storage 0");
  expect_refused(std::string(all.substr(0, bytes.size() - 1)),
                 ErrorCode::Corrupt, bytes.size() - 1, "ends inside storage 2");
}

TEST(LegacyFile, RefusesPicklesAboveTheLimit) {
  const std::string bytes = small_archive().legacy_bytes();
  const uint64_t object = legacy_offsets(bytes)[3];
  // A string that the file has room for.
  const std::string head =
      bytes.substr(0, object) + std::string("\x80\x02X\xff\xff\xff\x7f", 7);
  const SparseSource source(head, uint64_t{1} << 33);
  expect_error(ErrorCode::Limit, object + 7, "a pickle of more than",
               [&] { TorchFile::open(source); });
}

TEST(LegacyFile, RefusesBytesAfterTheLastStorage) {
  const std::string bytes = small_archive().legacy_bytes();
  expect_refused(bytes + "x", ErrorCode::Corrupt, bytes.size(),
                 "1 bytes after the last storage");
}

TEST(LegacyFile, RefusesViewsOfOldTorch) {
  TorchArchive archive;
  archive.add_storage("12345678", 4);
  archive.set_root(
      Py::persistent(Py::tuple({"storage", Py::global("torch", "FloatStorage"),
                                "0", "cpu", 2, Py::tuple({"view", 0, 1})})));
  const std::string bytes = archive.legacy_bytes();
  const uint64_t object = bytes.find("\x80\x02(X");
  expect_refused(bytes, ErrorCode::Unsupported, object, "before 0.4");
}

TEST(LegacyFile, RefusesUnknownStorageClass) {
  TorchArchive archive;
  archive.set_root(Py::persistent(Py::tuple(
      {"storage", Py::global("torch", "OddStorage"), "0", "cpu", 2})));
  const std::string bytes = archive.legacy_bytes();
  expect_refused(bytes, ErrorCode::Unsupported, bytes.find("\x80\x02(X"),
                 "torch.OddStorage");
}

TEST(LegacyFile, RefusesTwoSizesOfOneStorage) {
  TorchArchive archive;
  archive.set_root(Py::list(
      {Py::storage(DType::F32, "0", 2), Py::storage(DType::F64, "0", 2)}));
  const std::string bytes = archive.legacy_bytes();
  expect_refused(bytes, ErrorCode::Corrupt, bytes.find("\x80\x02]"),
                 "has two sizes");
}

TEST(LegacyFile, RecognisesOtherPickleProtocols) {
  const std::string magic("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");
  const std::string frame("\x95\x0d\0\0\0\0\0\0\0", 9);
  EXPECT_TRUE(is_legacy_file(MemorySource("\x80\x02" + magic)));
  EXPECT_TRUE(is_legacy_file(MemorySource("\x80\x04" + frame + magic)));
  EXPECT_FALSE(is_legacy_file(MemorySource("\x80\x04" + frame)));
  EXPECT_FALSE(is_legacy_file(MemorySource("\x80")));
  EXPECT_FALSE(is_legacy_file(MemorySource("")));
}

// One summary of everything that the index of a file says.
std::string summary(const std::string& bytes) {
  const MemorySource source(bytes);
  const TorchFile file = TorchFile::open(source);
  std::string text = file.prefix();
  for (const StorageRecord& r : file.storages()) {
    if (r.offset > bytes.size() || r.size_bytes > bytes.size() - r.offset) {
      ADD_FAILURE() << "storage outside of the file";
    }
    text += "|" + r.key + " " + std::to_string(r.offset) + " " +
            std::to_string(r.size_bytes) + " " + std::to_string(r.crc);
  }
  const Pickle& pickle = file.pickle();
  for (NodeId id = 0; id < pickle.node_count(); ++id) {
    try {
      const auto tensor = as_tensor(Value(pickle, id));
      if (!tensor) continue;
      if (!file.find_storage(tensor->key)) return "missing";
      text += "|" + std::string(tensor->key);
      for (const uint64_t n : tensor->shape) text += "," + std::to_string(n);
    } catch (const Error&) {
      text += "|?";
    }
  }
  return text;
}

TEST(Sweep, EveryTruncationIsAnError) {
  for (const bool legacy : {false, true}) {
    const TorchArchive archive = small_archive();
    const std::string bytes = legacy ? archive.legacy_bytes() : archive.bytes();
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_TRUE(caught([&] { summary(bytes.substr(0, size)); }))
          << size << " of " << bytes.size();
    }
  }
}

// In a zip every flipped bit that matters is seen: data.pkl has a CRC. Bytes
// whose change is allowed to go unnoticed hold nothing that is read.
TEST(Sweep, EveryFlippedBitIsAnErrorOrHarmless) {
  TorchArchive archive = small_archive();
  const std::string bytes = archive.bytes();
  const std::string intact = summary(bytes);
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    std::string damaged = bytes;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ 1 << (i % 8));
    std::string found;
    if (caught([&] { found = summary(damaged); })) continue;
    // A name that the directory alone says: its storage is nowhere.
    if (found == intact || found == "missing") continue;
    // The CRC of a storage is checked when its payload is read.
    const auto built = archive.build();
    bool stored_crc = false;
    for (const auto& [name, place] : built.places) {
      stored_crc |= i / 8 >= place.central_offset + 16 &&
                    i / 8 < place.central_offset + 20;
    }
    EXPECT_TRUE(stored_crc) << "bit " << i % 8 << " of byte " << i / 8;
  }
}

TEST(Sweep, EveryFlippedByteOfALegacyFileEndsWell) {
  const std::string bytes = small_archive().legacy_bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ change);
      caught([&] { summary(damaged); });
    }
  }
}

// Every file that real DeepSpeed wrote opens, and its tensors lie in storages
// that have the size the pickle says.
TEST(RealFiles, Open) {
  int files = 0;
  int legacy = 0;
  int tensors = 0;
  for (const auto& item : fs::recursive_directory_iterator(ZCKPT_FIXTURES)) {
    if (item.path().extension() != ".pt") continue;
    SCOPED_TRACE(item.path().string());
    const FileSource source(item.path().string());
    const TorchFile file = TorchFile::open(source);
    ++files;
    legacy += file.is_legacy() ? 1 : 0;
    const Pickle& pickle = file.pickle();
    for (NodeId id = 0; id < pickle.node_count(); ++id) {
      const auto tensor = as_tensor(Value(pickle, id));
      if (!tensor) continue;
      ++tensors;
      const auto index = file.find_storage(tensor->key);
      ASSERT_TRUE(index);
      EXPECT_EQ(file.storages()[*index].size_bytes, tensor->storage_bytes);
    }
  }
  EXPECT_GT(files, 100);
  EXPECT_GT(legacy, 4);
  EXPECT_GT(tensors, files);
}

}  // namespace
}  // namespace zckpt::test
