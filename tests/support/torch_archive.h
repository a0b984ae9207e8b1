// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/pickle_builder.h"

namespace zckpt::test {

// TorchArchive builds a file of torch.save in memory, byte by byte as torch
// 2.13 writes it, or with named damage.
//
//   TorchArchive archive("mp_rank_00_model_states");
//   archive.set_root(Py::dict({
//       {"w", archive.tensor(DType::F32, {2}, std::vector<float>{1, 2})}}));
//   archive.wrong_crc("data/0");
//   const std::string bytes = archive.build().bytes;
class TorchArchive {
 public:
  // One record. What is set replaces what an intact archive would say.
  struct Record {
    std::string name;  // without the prefix
    std::string bytes;
    std::optional<uint32_t> crc;
    std::optional<uint64_t> size;         // in the directory
    std::optional<uint64_t> stored_size;  // in the directory
    std::optional<uint64_t> header_offset;
    std::optional<std::string> local_name;  // with the prefix
    std::optional<uint16_t> local_extra_size;
    uint32_t local_signature = 0x04034b50;
    uint16_t method = 0;
    uint16_t local_method = 0;
    uint16_t extra_flags = 0;
    uint16_t disk = 0;
    // Sizes and offset in a zip64 extra field, as for records above 4 GiB.
    bool zip64 = false;
    bool wide_descriptor = false;  // 64-bit sizes after the payload
    bool no_descriptor = false;
    std::string central_extra;  // before the zip64 field
    std::string comment;
    bool twice = false;  // listed twice in the directory
  };

  // The end records. What is set replaces the true values, in both of them.
  struct End {
    std::optional<uint64_t> count;
    std::optional<uint64_t> directory_size;
    std::optional<uint64_t> directory_offset;
    // In the zip64 records only.
    std::optional<uint64_t> wide_count;
    std::optional<uint64_t> wide_record_size;
    std::optional<uint64_t> locator_offset;
    uint32_t disks = 1;
    uint16_t disk = 0;
    bool zip64 = true;
    bool sentinels = false;  // 0xffff... in the narrow record
    bool present = true;
    std::string comment;
    std::string gap;  // between the directory and the end records
  };

  struct Place {
    uint64_t header_offset = 0;
    uint64_t payload_offset = 0;
    uint64_t central_offset = 0;
  };

  struct Built {
    std::string bytes;
    std::map<std::string, Place> places;  // by name without the prefix
    uint64_t directory_offset = 0;
    uint64_t zip64_offset = 0;
    uint64_t locator_offset = 0;
    uint64_t end_offset = 0;
  };

  explicit TorchArchive(std::string prefix = "archive");

  TorchArchive& set_root(const Py& root);
  // For zip containers only.
  TorchArchive& set_pickle(std::string data_pkl);
  // Appends storage `key`; without it the next number. Returns the key.
  std::string add_storage(std::string bytes, uint32_t element_bytes = 1,
                          std::optional<std::string> key = {});
  // A contiguous tensor over a storage of its own.
  Py tensor(DType dtype, const Py::Shape& shape, std::string bytes);
  template <typename T>
  Py tensor(DType dtype, const Py::Shape& shape, const std::vector<T>& values) {
    std::string bytes(values.size() * sizeof(T), '\0');
    if (!values.empty()) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    return tensor(dtype, shape, std::move(bytes));
  }

  // In the order in which they are written: data.pkl, .format_version,
  // .storage_alignment, byteorder, storages, version, .data/serialization_id.
  std::vector<Record>& records() { return records_; }
  Record& record(std::string_view name);
  End& end() { return end_; }

  // Damage, each to the record `name` (without the prefix).
  TorchArchive& drop(std::string_view name);
  TorchArchive& list_twice(std::string_view name);
  TorchArchive& duplicate(std::string_view name);  // a second record
  TorchArchive& wrong_crc(std::string_view name);
  TorchArchive& no_crc(std::string_view name);
  TorchArchive& swap_names(std::string_view a, std::string_view b);
  TorchArchive& compress(std::string_view name);  // says so, does not
  TorchArchive& encrypt(std::string_view name);
  TorchArchive& oversize(std::string_view name, uint64_t size);
  TorchArchive& rename_locally(std::string_view name, std::string local);
  TorchArchive& use_zip64(std::string_view name);
  // `name` begins inside the record before it.
  TorchArchive& overlap(std::string_view name);

  Built build() const;
  std::string bytes() const { return build().bytes; }
  // The same contents in the container of torch < 1.6: keys in string order.
  std::string legacy_bytes() const;

 private:
  std::string full_name(const Record& record) const;

  std::string prefix_;
  Py root_ = Py::dict();
  std::vector<Record> records_;
  std::map<std::string, uint32_t> element_bytes_;  // by key
  End end_;
  int next_key_ = 0;
};

}  // namespace zckpt::test
