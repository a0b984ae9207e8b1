// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/torch_file.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "format/zip.h"
#include "reader/legacy_file.h"
#include "reader/pickle_reader.h"
#include "reader/recognise.h"
#include "reader/zip_directory.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// The pickle of a file with a million tensors has some hundred MB.
constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 30;
// "little" or "big".
constexpr uint64_t kMaxByteOrderBytes = 64;

[[noreturn]] void fail(const ByteSource& source, ErrorCode code,
                       uint64_t offset, const std::string& message) {
  throw Error(code, message, {.file = source.name(), .offset = offset});
}

// Shorter keys first: ascending numbers, torch's usual keys, are in order
// already.
bool key_less(std::string_view a, std::string_view b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

// The one record data.pkl, in whatever folder: renaming a file does not rename
// the folder inside.
const ZipEntry& find_data_pkl(const ByteSource& source,
                              const ZipDirectory& directory) {
  const ZipEntry* found = nullptr;
  for (const ZipEntry& entry : directory.entries()) {
    if (entry.name != zip::kDataPkl && !entry.name.ends_with("/data.pkl")) {
      continue;
    }
    if (found != nullptr) {
      fail(source, ErrorCode::Corrupt, entry.header_offset,
           "expected one record data.pkl, found " + escape(found->name) +
               " and " + escape(entry.name));
    }
    found = &entry;
  }
  if (found == nullptr) {
    fail(source, ErrorCode::Corrupt, 0,
         "a zip archive without a record data.pkl: not written by torch.save");
  }
  return *found;
}

void check_byte_order(const ByteSource& source, const ZipDirectory& directory,
                      const std::string& folder) {
  const ZipEntry* entry = directory.find(folder + std::string(zip::kByteOrder));
  if (entry == nullptr) return;  // torch < 2.1: little
  const std::string order = directory.read(*entry, kMaxByteOrderBytes);
  if (order == "little") return;
  fail(source, order == "big" ? ErrorCode::Unsupported : ErrorCode::Corrupt,
       entry->header_offset,
       order == "big"
           ? "written on a big-endian machine"
           : "expected byte order little or big, found " + escape(order));
}

std::vector<StorageRecord> read_storages(const ZipDirectory& directory,
                                         const std::string& folder) {
  std::vector<StorageRecord> records;
  const std::string storages = folder + std::string(zip::kStorageFolder);
  ZipWindow window;
  for (const ZipEntry& entry : directory.entries()) {
    // The folder itself may have an entry, if another tool made the archive.
    if (!entry.name.starts_with(storages) || entry.name == storages) continue;
    StorageRecord record;
    record.key = entry.name.substr(storages.size());
    record.size_bytes = entry.size;
    record.crc = entry.crc;
    record.has_crc = entry.size == 0 || entry.crc != 0;
    if (entry.size != 0) {
      record.offset = directory.payload_offset(entry, &window);
    }
    records.push_back(std::move(record));
  }
  return records;
}

// "prefix/" of "prefix/data.pkl".
std::string folder_of(const ZipEntry& pickle) {
  return std::string(
      pickle.name.substr(0, pickle.name.size() - zip::kDataPkl.size()));
}

}  // namespace

std::vector<StorageRecord> read_storage_records(const ByteSource& source) {
  if (recognise(source) != FileForm::TorchZip) return {};
  const ZipDirectory directory(source);
  return read_storages(directory, folder_of(find_data_pkl(source, directory)));
}

std::shared_ptr<const Pickle> read_pickle_at(const ByteSource& source,
                                             uint64_t offset,
                                             std::string bytes) {
  try {
    return read_pickle(std::move(bytes));
  } catch (const Error& e) {
    ErrorPlace place{.file = source.name(), .tensor = e.tensor()};
    place.offset = offset + e.offset().value_or(0);
    throw Error(e.code(), e.message(), std::move(place));
  }
}

TorchFile TorchFile::open(const ByteSource& source) {
  const FileForm form = recognise(source);
  switch (form) {
    case FileForm::TorchZip:
    case FileForm::TorchZipTorn: return open_zip(source);
    case FileForm::TorchLegacy: return open_legacy_file(source);
    case FileForm::Empty:
    case FileForm::Unknown:
      fail(source, ErrorCode::Corrupt, 0,
           std::string("expected a file of torch.save, found ") +
               describe(form));
    default:
      fail(source, ErrorCode::Unsupported, 0,
           std::string("expected a file of torch.save, found ") +
               describe(form));
  }
}

TorchFile TorchFile::open_zip(const ByteSource& source) {
  const ZipDirectory directory(source);
  const ZipEntry& pickle = find_data_pkl(source, directory);
  TorchFile file;
  file.file_bytes_ = source.size();
  file.pickle_bytes_ = pickle.size;
  const std::string folder = folder_of(pickle);
  if (!folder.empty()) file.prefix_ = folder.substr(0, folder.size() - 1);
  if (const ZipEntry* script =
          directory.find(folder + std::string(zip::kConstantsPkl))) {
    fail(source, ErrorCode::Unsupported, script->header_offset,
         "a TorchScript archive, which holds a program");
  }
  check_byte_order(source, directory, folder);
  file.pickle_ = read_pickle_at(source, directory.payload_offset(pickle),
                                directory.read(pickle, kMaxPickleBytes));

  file.storages_ = read_storages(directory, folder);
  file.index_keys(source);
  return file;
}

void TorchFile::index_keys(const ByteSource& source) {
  by_key_.resize(storages_.size());
  std::iota(by_key_.begin(), by_key_.end(), uint32_t{0});
  const auto less = [&](uint32_t a, uint32_t b) {
    return key_less(storages_[a].key, storages_[b].key);
  };
  if (!std::is_sorted(by_key_.begin(), by_key_.end(), less)) {
    std::sort(by_key_.begin(), by_key_.end(), less);
  }
  for (size_t i = 1; i < by_key_.size(); ++i) {
    const StorageRecord& record = storages_[by_key_[i]];
    if (record.key == storages_[by_key_[i - 1]].key) {
      fail(source, ErrorCode::Corrupt, record.offset,
           "storage " + escape(record.key) + " occurs twice");
    }
  }
}

std::optional<uint32_t> TorchFile::find_storage(std::string_view key) const {
  const auto it = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                   [&](uint32_t i, std::string_view wanted) {
                                     return key_less(storages_[i].key, wanted);
                                   });
  if (it == by_key_.end() || storages_[*it].key != key) return std::nullopt;
  return *it;
}

}  // namespace zckpt
