// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "support/torch_archive.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/crc32.h"
#include "format/zip.h"

namespace zckpt::test {
namespace {

template <std::integral T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put16(std::string& out, uint64_t value) {
  put(out, static_cast<uint16_t>(value));
}
void put32(std::string& out, uint64_t value) {
  put(out, static_cast<uint32_t>(value));
}

uint32_t crc_of(const std::string& bytes) {
  return crc32_update(0, std::as_bytes(std::span(bytes)));
}

uint16_t flags_of(const TorchArchive::Record& record) {
  const bool descriptor = !record.bytes.empty() && !record.no_descriptor;
  const uint32_t flags =
      zip::kFlagUtf8 | (descriptor ? zip::kFlagDescriptor : 0U);
  return static_cast<uint16_t>(flags | record.extra_flags);
}

// torch fills the extra field so that the payload is aligned.
std::string padding(uint64_t header_offset, size_t name_size) {
  const uint64_t begin = header_offset + zip::kLocalHeaderSize + name_size + 4;
  const uint64_t fill =
      zip::kStorageAlignmentBytes - begin % zip::kStorageAlignmentBytes;
  std::string extra;
  put16(extra, zip::kPaddingExtra);
  put16(extra, fill % zip::kStorageAlignmentBytes);
  return extra +
         std::string(static_cast<size_t>(fill % zip::kStorageAlignmentBytes),
                     'Z');
}

void put_record(std::string& out, const TorchArchive::Record& record,
                const std::string& full_name, TorchArchive::Place& place) {
  place.header_offset = out.size();
  const std::string name = record.local_name.value_or(full_name);
  const std::string extra = padding(out.size(), name.size());
  put(out, record.local_signature);
  put16(out, 0);
  put16(out, flags_of(record));
  put16(out, record.local_method);
  put32(out, 0);         // time and date
  out.append(12, '\0');  // CRC and sizes are in the descriptor
  put16(out, name.size());
  put16(out,
        record.local_extra_size.value_or(static_cast<uint16_t>(extra.size())));
  out += name + extra;
  place.payload_offset = out.size();
  out += record.bytes;
  if (record.bytes.empty() || record.no_descriptor) return;
  put(out, zip::kDataDescriptor);
  put32(out, crc_of(record.bytes));
  if (record.wide_descriptor) {
    put(out, uint64_t{record.bytes.size()});
    put(out, uint64_t{record.bytes.size()});
    return;
  }
  put32(out, record.bytes.size());
  put32(out, record.bytes.size());
}

void put_entry(std::string& out, const TorchArchive::Record& record,
               const std::string& full_name, const TorchArchive::Place& place) {
  const uint64_t size = record.size.value_or(record.bytes.size());
  const uint64_t stored = record.stored_size.value_or(size);
  const uint64_t offset = record.header_offset.value_or(place.header_offset);
  std::string extra = record.central_extra;
  if (record.zip64) {
    put16(extra, zip::kZip64Extra);
    put16(extra, 24);
    put(extra, size);
    put(extra, stored);
    put(extra, offset);
  }
  put(out, zip::kCentralEntry);
  put32(out, 0);  // versions
  put16(out, flags_of(record));
  put16(out, record.method);
  put32(out, 0);
  put(out, record.crc.value_or(crc_of(record.bytes)));
  put32(out, record.zip64 ? zip::kSee64In32 : stored);
  put32(out, record.zip64 ? zip::kSee64In32 : size);
  put16(out, full_name.size());
  put16(out, extra.size());
  put16(out, record.comment.size());
  put16(out, record.disk);
  out.append(6, '\0');  // attributes
  put32(out, record.zip64 ? zip::kSee64In32 : offset);
  out += full_name + extra + record.comment;
}

void put_end(TorchArchive::Built& built, const TorchArchive::End& end,
             uint64_t entries) {
  std::string& out = built.bytes;
  const uint64_t count = end.count.value_or(entries);
  const uint64_t size =
      end.directory_size.value_or(out.size() - built.directory_offset);
  const uint64_t offset = end.directory_offset.value_or(built.directory_offset);
  out += end.gap;
  if (end.zip64) {
    built.zip64_offset = out.size();
    put(out, zip::kZip64End);
    put(out,
        end.wide_record_size.value_or(zip::kZip64EndSize - zip::kZip64EndLead));
    put32(out, 0x032d001e);  // versions, as torch has them
    put32(out, end.disk);
    put32(out, end.disk);
    put(out, end.wide_count.value_or(count));
    put(out, count);
    put(out, size);
    put(out, offset);
    built.locator_offset = out.size();
    put(out, zip::kZip64Locator);
    put32(out, 0);
    put(out, end.locator_offset.value_or(built.zip64_offset));
    put(out, end.disks);
  }
  built.end_offset = out.size();
  put(out, zip::kEnd);
  put16(out, end.disk);
  put16(out, end.disk);
  put16(out, end.sentinels ? zip::kSee64In16 : count);
  put16(out, end.sentinels ? zip::kSee64In16 : count);
  put32(out, end.sentinels ? zip::kSee64In32 : size);
  put32(out, end.sentinels ? zip::kSee64In32 : offset);
  put16(out, end.comment.size());
  out += end.comment;
}

}  // namespace

TorchArchive::TorchArchive(std::string prefix) : prefix_(std::move(prefix)) {
  const auto add = [&](std::string_view name, std::string bytes) {
    records_.push_back({.name = std::string(name), .bytes = std::move(bytes)});
  };
  add(zip::kDataPkl, pickle(root_));
  add(zip::kFormatVersion, "1");
  add(zip::kStorageAlignment, "64");
  add(zip::kByteOrder, "little");
  add(zip::kVersion, "3\n");
  add(zip::kSerializationId, "0561108523361967052940341012249042561396");
}

TorchArchive& TorchArchive::set_root(const Py& root) {
  root_ = root;
  return set_pickle(pickle(root));
}

TorchArchive& TorchArchive::set_pickle(std::string data_pkl) {
  record(zip::kDataPkl).bytes = std::move(data_pkl);
  return *this;
}

std::string TorchArchive::add_storage(std::string bytes, uint32_t element_bytes,
                                      std::optional<std::string> key) {
  const std::string name = key.value_or(std::to_string(next_key_++));
  const auto before =
      std::find_if(records_.begin(), records_.end(),
                   [](const Record& r) { return r.name == zip::kVersion; });
  records_.insert(before, {.name = std::string(zip::kStorageFolder) + name,
                           .bytes = std::move(bytes)});
  element_bytes_[name] = element_bytes;
  return name;
}

Py TorchArchive::tensor(DType dtype, const Py::Shape& shape,
                        std::string bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const bool untyped = storage_class(dtype).empty();
  const uint32_t element_bytes = untyped ? 1 : size_of(dtype);
  const std::string key = add_storage(std::move(bytes), element_bytes);
  return Py::tensor(dtype, shape, key, 0, {}, size / element_bytes);
}

TorchArchive::Record& TorchArchive::record(std::string_view name) {
  for (Record& r : records_) {
    if (r.name == name) return r;
  }
  throw std::out_of_range("no record " + std::string(name));
}

TorchArchive& TorchArchive::drop(std::string_view name) {
  const Record* found = &record(name);
  records_.erase(records_.begin() + (found - records_.data()));
  return *this;
}

TorchArchive& TorchArchive::list_twice(std::string_view name) {
  record(name).twice = true;
  return *this;
}

TorchArchive& TorchArchive::duplicate(std::string_view name) {
  records_.push_back(Record(record(name)));
  return *this;
}

TorchArchive& TorchArchive::wrong_crc(std::string_view name) {
  Record& r = record(name);
  // Never 0, which means that nobody computed it.
  r.crc = crc_of(r.bytes) == 1 ? 2 : 1;
  return *this;
}

TorchArchive& TorchArchive::no_crc(std::string_view name) {
  record(name).crc = 0;
  return *this;
}

TorchArchive& TorchArchive::swap_names(std::string_view a, std::string_view b) {
  Record& x = record(a);
  Record& y = record(b);
  x.local_name = full_name(x);
  y.local_name = full_name(y);
  std::swap(x.name, y.name);
  return *this;
}

TorchArchive& TorchArchive::compress(std::string_view name) {
  record(name).method = 8;
  return *this;
}

TorchArchive& TorchArchive::encrypt(std::string_view name) {
  record(name).extra_flags = zip::kFlagEncrypted;
  return *this;
}

TorchArchive& TorchArchive::oversize(std::string_view name, uint64_t size) {
  record(name).size = size;
  return *this;
}

TorchArchive& TorchArchive::rename_locally(std::string_view name,
                                           std::string local) {
  record(name).local_name = std::move(local);
  return *this;
}

TorchArchive& TorchArchive::use_zip64(std::string_view name) {
  record(name).zip64 = true;
  return *this;
}

TorchArchive& TorchArchive::overlap(std::string_view name) {
  const Built intact = build();
  record(name).header_offset =
      intact.places.at(std::string(name)).header_offset - 1;
  return *this;
}

std::string TorchArchive::full_name(const Record& record) const {
  return prefix_.empty() ? record.name : prefix_ + "/" + record.name;
}

TorchArchive::Built TorchArchive::build() const {
  Built built;
  std::vector<Place> places(records_.size());
  for (size_t i = 0; i < records_.size(); ++i) {
    put_record(built.bytes, records_[i], full_name(records_[i]), places[i]);
  }
  built.directory_offset = built.bytes.size();
  uint64_t entries = 0;
  for (size_t i = 0; i < records_.size(); ++i) {
    const int times = records_[i].twice ? 2 : 1;
    for (int t = 0; t < times; ++t, ++entries) {
      places[i].central_offset = built.bytes.size();
      put_entry(built.bytes, records_[i], full_name(records_[i]), places[i]);
    }
    built.places[records_[i].name] = places[i];
  }
  if (end_.present) put_end(built, end_, entries);
  return built;
}

std::string TorchArchive::legacy_bytes() const {
  std::map<std::string, const std::string*> storages;
  for (const Record& r : records_) {
    if (r.name.starts_with(zip::kStorageFolder)) {
      storages[r.name.substr(zip::kStorageFolder.size())] = &r.bytes;
    }
  }
  std::string out("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");
  out += pickle(1001);
  out += pickle(Py::dict(
      {{"protocol_version", 1001},
       {"little_endian", true},
       {"type_sizes", Py::dict({{"short", 2}, {"int", 4}, {"long", 4}})}}));
  out += legacy_pickle(root_);
  Py keys = Py::list();
  for (const auto& [key, bytes] : storages) keys.append(key);
  out += pickle(keys);
  for (const auto& [key, bytes] : storages) {
    put(out, static_cast<int64_t>(bytes->size() / element_bytes_.at(key)));
    out += *bytes;
  }
  return out;
}

}  // namespace zckpt::test
