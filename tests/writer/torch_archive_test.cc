// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/torch_archive.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32.h"
#include "base/file.h"
#include "format/zip.h"
#include "reader/torch_file.h"
#include "reader/torch_tensor.h"
#include "support/caught.h"
#include "support/memory_source.h"
#include "support/torch_archive.h"

namespace zckpt {
namespace {

using test::expect_error;
using test::MemorySource;
using Aliased = std::vector<std::pair<std::string, std::string>>;

uint32_t crc_of(std::string_view bytes) {
  return crc32_update(0, std::as_bytes(std::span(bytes)));
}

// The file that results where the data of each slot is `data` of its name.
std::string file_of(const TorchArchive& archive,
                    const std::vector<TensorSlot>& slots,
                    const std::map<std::string, std::string>& data) {
  std::string file(static_cast<size_t>(archive.size_bytes), '\xee');
  std::vector<bool> written(file.size());
  const auto put = [&](uint64_t offset, std::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto at = static_cast<size_t>(offset) + i;
      EXPECT_FALSE(written.at(at)) << at;
      written[at] = true;
      file.at(at) = bytes[i];
    }
  };
  std::vector<PlannedRecord> records = archive.records;
  put(0, archive.header);
  for (const TensorSlot& slot : slots) {
    put(slot.offset, data.at(slot.name));
    for (PlannedRecord& record : records) {
      if (record.offset == slot.offset && !record.crc) {
        record.crc = crc_of(data.at(slot.name));
      }
    }
  }
  write_archive_rest(records, put);
  for (size_t i = 0; i < written.size(); ++i) EXPECT_TRUE(written[i]) << i;
  return file;
}

TEST(WriteTorchArchive, GivesTheBytesThatTorchWould) {
  std::vector<TensorSlot> slots{
      {.name = "a.weight", .dtype = DType::F32, .shape = {2, 3}},
      {.name = "b", .dtype = DType::BF16, .shape = {}},
      {.name = "empty", .dtype = DType::F16, .shape = {0, 4}},
      {.name = "n", .dtype = DType::I64, .shape = {1}}};
  const std::map<std::string, std::string> data{
      {"a.weight", std::string("abcdefghijklmnopqrstuvwx")},
      {"b", "yz"},
      {"empty", ""},
      {"n", "01234567"}};
  const TorchArchive archive = layout_torch_archive("pytorch_model", slots, {});
  const std::string file = file_of(archive, slots, data);

  // The same by code of the tests, which follows files of torch 2.13.
  test::TorchArchive expected("pytorch_model");
  const TorchFile read = TorchFile::open(MemorySource(file));
  expected.set_pickle(std::string(read.pickle().bytes()));
  for (const TensorSlot& slot : slots) expected.add_storage(data.at(slot.name));
  expected.drop(zip::kSerializationId);  // optional, a hash of names
  EXPECT_EQ(file, expected.bytes());
}

TEST(WriteTorchArchive, TensorsReadBackWithTheirNames) {
  std::vector<TensorSlot> slots;
  std::map<std::string, std::string> data;
  for (const DType dtype :
       {DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32,
        DType::I16, DType::I8, DType::U8, DType::Bool, DType::C64,
        DType::F8E4M3, DType::F8E5M2, DType::U16, DType::U32, DType::U64}) {
    const std::string name(short_name(dtype));
    slots.push_back({.name = name, .dtype = dtype, .shape = {3, 1, 2}});
    data[name] = std::string(6 * size_of(dtype), static_cast<char>(dtype));
  }
  const TorchArchive archive = layout_torch_archive("m", slots, {});
  const std::string file = file_of(archive, slots, data);
  const TorchFile read = TorchFile::open(MemorySource(file));
  EXPECT_EQ(read.prefix(), "m");
  const Value root = read.root();
  ASSERT_EQ(root.size(), slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(root.key(i).string(), slots[i].name);
    const auto tensor = as_tensor(root.value(i));
    ASSERT_TRUE(tensor) << slots[i].name;
    EXPECT_EQ(tensor->dtype, slots[i].dtype);
    EXPECT_EQ(tensor->shape, slots[i].shape);
    EXPECT_TRUE(tensor->is_contiguous());
    const auto storage = read.find_storage(tensor->key);
    ASSERT_TRUE(storage);
    const StorageRecord& record = read.storages()[*storage];
    EXPECT_EQ(record.offset, slots[i].offset);
    EXPECT_EQ(record.offset % 64, 0U);
    EXPECT_EQ(record.crc, crc_of(data.at(slots[i].name)));
  }
}

TEST(WriteTorchArchive, AliasesShareAStorage) {
  std::vector<TensorSlot> slots{{.name = "kept", .shape = {2}}};
  const TorchArchive archive =
      layout_torch_archive("m", slots, Aliased{{"other", "kept"}});
  const TorchFile read = TorchFile::open(
      MemorySource(file_of(archive, slots, {{"kept", "12345678"}})));
  ASSERT_EQ(read.root().size(), 2U);
  EXPECT_EQ(as_tensor(*read.root().find("other"))->key,
            as_tensor(*read.root().find("kept"))->key);
  EXPECT_EQ(read.storages().size(), 1U);
}

// A file of zeros with some bytes in it.
class HolesSource final : public ByteSource {
 public:
  HolesSource(uint64_t size, std::map<uint64_t, std::string> parts)
      : size_(size), parts_(std::move(parts)) {}
  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = std::byte{0};
      auto part = parts_.upper_bound(offset + i);
      if (part == parts_.begin()) continue;
      --part;
      const uint64_t inside = offset + i - part->first;
      if (inside >= part->second.size()) continue;
      out[i] = static_cast<std::byte>(part->second[inside]);
    }
  }

 private:
  uint64_t size_;
  std::map<uint64_t, std::string> parts_;
  std::string name_ = "holes";
};

// Sizes and places of more than 32 bits, at the borders too.
TEST(WriteTorchArchive, Zip64) {
  constexpr uint64_t kFourGiB = uint64_t{1} << 32;
  for (const uint64_t size :
       {kFourGiB - 2, kFourGiB - 1, kFourGiB, 3 * kFourGiB + 5}) {
    std::vector<TensorSlot> slots{
        {.name = "large", .dtype = DType::U8, .shape = {size}},
        {.name = "behind", .dtype = DType::U8, .shape = {1}},
        {.name = "last", .dtype = DType::U8, .shape = {0}}};
    const TorchArchive archive = layout_torch_archive("m", slots, {});
    std::vector<PlannedRecord> records = archive.records;
    std::map<uint64_t, std::string> parts{{0, archive.header}};
    for (PlannedRecord& record : records) {
      if (!record.crc) record.crc = record.size_bytes == 0 ? 0 : 77;
    }
    write_archive_rest(records, [&](uint64_t offset, std::string_view bytes) {
      parts.emplace(offset, bytes);
    });
    const auto& [tail_begin, tail] = *parts.rbegin();
    EXPECT_EQ(tail_begin + tail.size(), archive.size_bytes);
    const TorchFile read =
        TorchFile::open(HolesSource(archive.size_bytes, parts));
    ASSERT_EQ(read.storages().size(), 3U) << size;
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(read.storages()[i].offset, slots[i].offset);
      EXPECT_EQ(read.storages()[i].offset % 64, 0U);
      EXPECT_EQ(read.storages()[i].size_bytes, slots[i].size_bytes);
      EXPECT_EQ(read.storages()[i].crc, 77U);
    }
  }
}

TEST(WriteTorchArchive, RefusesWhatAPickleCannotHold) {
  std::vector<TensorSlot> slots{{.name = "a\xff", .shape = {1}}};
  expect_error(ErrorCode::Unsupported, std::nullopt, "not UTF-8",
               [&] { layout_torch_archive("m", slots, {}); });
  slots = {{.name = "a", .shape = {1}}, {.name = "a", .shape = {1}}};
  expect_error(ErrorCode::Internal, std::nullopt, "one name",
               [&] { layout_torch_archive("m", slots, {}); });
  slots = {{.name = "a", .dtype = DType::U8, .shape = {uint64_t{1} << 63}}};
  expect_error(ErrorCode::Limit, std::nullopt, "does not fit torch's",
               [&] { layout_torch_archive("m", slots, {}); });
}

}  // namespace
}  // namespace zckpt
