// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/torch_archive.h"

#include <algorithm>
#include <concepts>
#include <map>
#include <span>

#include "base/arithmetic.h"
#include "base/crc32.h"
#include "format/pickle.h"
#include "format/torch_storage.h"
#include "format/zip.h"
#include "writer/pickle_writer.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// The versions in the end record, as torch has them.
constexpr uint32_t kZipVersions = 0x032d001e;

template <std::unsigned_integral T>
void put(std::string& out, T value) {
  const uint64_t wide = value;
  for (size_t i = 0; i < sizeof(T); ++i) {
    out += static_cast<char>((wide >> (8 * i)) & 0xffU);
  }
}
void put16(std::string& out, uint64_t value) {
  put(out, static_cast<uint16_t>(value));
}
void put32(std::string& out, uint64_t value) {
  put(out, static_cast<uint32_t>(value));
}
// What does not fit says that the zip64 records have it.
void put_narrow32(std::string& out, uint64_t value) {
  put32(out, std::min<uint64_t>(value, zip::kSee64In32));
}

uint32_t crc_of(std::string_view bytes) {
  return crc32_update(0, std::as_bytes(std::span(bytes)));
}

bool is_wide(uint64_t value) { return value >= zip::kSee64In32; }
bool is_wide(const PlannedRecord& record) {
  return is_wide(record.size_bytes) || is_wide(record.header_offset);
}

uint16_t flags_of(const PlannedRecord& record) {
  const bool descriptor = record.size_bytes != 0;
  return static_cast<uint16_t>(zip::kFlagUtf8 |
                               (descriptor ? zip::kFlagDescriptor : 0U));
}

// The real values of fields that are too narrow for them.
std::string zip64_extra(const PlannedRecord& record) {
  std::string fields;
  if (is_wide(record.size_bytes)) {
    put(fields, record.size_bytes);
    put(fields, record.size_bytes);
  }
  if (is_wide(record.header_offset)) put(fields, record.header_offset);
  if (fields.empty()) return "";
  std::string extra;
  put16(extra, zip::kZip64Extra);
  put16(extra, fields.size());
  return extra + fields;
}

// CRC and sizes stand behind the data. The extra field is filled so that the
// data is aligned.
std::string local_header(const PlannedRecord& record) {
  std::string out;
  put(out, zip::kLocalHeader);
  put16(out, 0);  // version
  put16(out, flags_of(record));
  put16(out, zip::kStored);
  put32(out, 0);  // time and date
  put32(out, 0);  // CRC
  const uint64_t narrow = is_wide(record.size_bytes) ? zip::kSee64In32 : 0;
  put32(out, narrow);
  put32(out, narrow);
  put16(out, record.name.size());
  std::string extra = zip64_extra(record);
  constexpr size_t kFieldHead = 4;
  const uint64_t begin = record.header_offset + zip::kLocalHeaderSize +
                         record.name.size() + extra.size() + kFieldHead;
  const uint64_t fill = align_up(begin, zip::kStorageAlignmentBytes) - begin;
  put16(extra, zip::kPaddingExtra);
  put16(extra, fill);
  extra.append(static_cast<size_t>(fill), 'Z');
  put16(out, extra.size());
  return out + record.name + extra;
}

std::string descriptor(const PlannedRecord& record) {
  std::string out;
  if (record.size_bytes == 0) return out;
  put(out, zip::kDataDescriptor);
  put(out, record.crc.value_or(0));
  if (is_wide(record)) {
    put(out, record.size_bytes);
    put(out, record.size_bytes);
  } else {
    put32(out, record.size_bytes);
    put32(out, record.size_bytes);
  }
  return out;
}

std::string central_entry(const PlannedRecord& record) {
  const std::string extra = zip64_extra(record);
  std::string out;
  put(out, zip::kCentralEntry);
  put32(out, 0);  // versions
  put16(out, flags_of(record));
  put16(out, zip::kStored);
  put32(out, 0);  // time and date
  put(out, record.crc.value_or(0));
  put_narrow32(out, record.size_bytes);
  put_narrow32(out, record.size_bytes);
  put16(out, record.name.size());
  put16(out, extra.size());
  put16(out, 0);        // comment
  put16(out, 0);        // disk
  out.append(6, '\0');  // attributes
  put_narrow32(out, record.header_offset);
  return out + record.name + extra;
}

// The directory and the end records; `offset` is where they begin.
std::string directory(const std::vector<PlannedRecord>& records,
                      uint64_t offset) {
  std::string out;
  for (const PlannedRecord& record : records) out += central_entry(record);
  const uint64_t size = out.size();
  const uint64_t count = records.size();
  put(out, zip::kZip64End);
  put(out, uint64_t{zip::kZip64EndSize - zip::kZip64EndLead});
  put32(out, kZipVersions);
  put32(out, 0);  // this disk
  put32(out, 0);  // the directory's
  put(out, count);
  put(out, count);
  put(out, size);
  put(out, offset);
  put(out, zip::kZip64Locator);
  put32(out, 0);
  put(out, offset + size);
  put32(out, 1);  // disks
  put(out, zip::kEnd);
  put16(out, 0);
  put16(out, 0);
  put16(out, std::min<uint64_t>(count, zip::kSee64In16));
  put16(out, std::min<uint64_t>(count, zip::kSee64In16));
  put_narrow32(out, size);
  put_narrow32(out, offset);
  put16(out, 0);  // comment
  return out;
}

// Builds data.pkl (format.md 7.3).
class TensorDict {
 public:
  TensorDict()
      : rebuild_(global("torch._utils", "_rebuild_tensor_v2")),
        ordered_dict_(global("collections", "OrderedDict")),
        storage_(text("storage")),
        cpu_(text("cpu")) {}

  void add(const std::string& name, const TensorSlot& slot, size_t key) {
    entries_.push_back(text(name));
    entries_.push_back(tensor(slot, key));
  }

  std::string write() {
    pickle_.set_root(pickle_.add_items(NodeKind::Dict, entries_));
    return write_pickle(pickle_);
  }

 private:
  NodeId text(std::string value) {
    return pickle_.add_text(NodeKind::Str, std::move(value));
  }
  NodeId integer(uint64_t value) {
    if (value > INT64_MAX) {
      throw Error(ErrorCode::Limit, "a tensor's size does not fit torch's");
    }
    return pickle_.add_integer(NodeKind::Int, static_cast<int64_t>(value));
  }
  NodeId tuple(const std::vector<NodeId>& items) {
    return pickle_.add_items(NodeKind::Tuple, items);
  }
  NodeId call(NodeId callable, NodeId arguments) {
    return pickle_.add_call(CallKind::Reduce,
                            std::vector<NodeId>{callable, arguments});
  }
  NodeId global(std::string module, std::string name) {
    const auto [entry, is_new] = globals_.try_emplace({module, name}, 0);
    if (is_new) {
      entry->second = pickle_.add_items(
          NodeKind::Global,
          std::vector<NodeId>{text(std::move(module)), text(std::move(name))});
    }
    return entry->second;
  }

  NodeId tensor(const TensorSlot& slot, size_t key) {
    const StorageClass* typed = typed_storage(slot.dtype);
    const NodeId storage_class =
        typed != nullptr ? global("torch", std::string(typed->name))
                         : global("torch.storage", "UntypedStorage");
    const uint64_t element = typed != nullptr ? typed->element_bytes : 1;
    const NodeId storage = pickle_.add_items(
        NodeKind::Persistent,
        std::vector<NodeId>{
            tuple({storage_, storage_class, text(std::to_string(key)), cpu_,
                   integer(slot.size_bytes / element)})});
    std::vector<NodeId> sizes;
    std::vector<NodeId> strides(slot.shape.size());
    uint64_t stride = 1;
    for (size_t i = slot.shape.size(); i-- > 0;) {
      strides[i] = integer(stride);
      stride = checked_mul(stride, std::max<uint64_t>(slot.shape[i], 1),
                           "a tensor's stride");
    }
    for (const uint64_t size : slot.shape) sizes.push_back(integer(size));
    std::vector<NodeId> arguments{storage,
                                  integer(0),
                                  tuple(sizes),
                                  tuple(strides),
                                  pickle_.add_integer(NodeKind::Bool, 0),
                                  call(ordered_dict_, tuple({}))};
    if (typed != nullptr) return call(rebuild_, tuple(arguments));
    arguments.push_back(global("torch", std::string(torch_name(slot.dtype))));
    return call(global("torch._utils", "_rebuild_tensor_v3"), tuple(arguments));
  }

  Pickle pickle_{std::string()};
  std::map<std::pair<std::string, std::string>, NodeId> globals_;
  std::vector<NodeId> entries_;
  const NodeId rebuild_;
  const NodeId ordered_dict_;
  const NodeId storage_;
  const NodeId cpu_;
};

std::string tensor_dict(
    const std::vector<TensorSlot>& slots,
    const std::vector<std::pair<std::string, std::string>>& aliases) {
  TensorDict dict;
  std::map<std::string_view, size_t> key_of;
  for (size_t i = 0; i < slots.size(); ++i) {
    dict.add(slots[i].name, slots[i], i);
    key_of[slots[i].name] = i;
  }
  for (const auto& [alias, kept] : aliases) {
    const size_t key = key_of.at(kept);
    dict.add(alias, slots[key], key);
  }
  return dict.write();
}

// Gives records their places, one after the other.
class Layout {
 public:
  explicit Layout(std::string_view prefix) : prefix_(prefix) {}

  PlannedRecord& place(std::string_view name, uint64_t size) {
    PlannedRecord record{.name = prefix_ + "/" + std::string(name),
                         .header_offset = end_,
                         .offset = 0,
                         .size_bytes = size};
    record.offset = end_ + local_header(record).size();
    end_ = checked_add(record.offset, size, "a file's size");
    end_ = checked_add(end_, descriptor(record).size(), "a file's size");
    records_.push_back(std::move(record));
    return records_.back();
  }

  // A record whose data is known.
  void place_text(std::string_view name, std::string_view data) {
    PlannedRecord& record = place(name, data.size());
    record.crc = crc_of(data);
    header_ += local_header(record);
    header_ += data;
    header_ += descriptor(record);
  }

  TorchArchive finish() {
    const uint64_t size =
        checked_add(end_, directory(records_, end_).size(), "a file's size");
    return {.header = std::move(header_),
            .records = std::move(records_),
            .size_bytes = size};
  }

 private:
  std::string prefix_;
  uint64_t end_ = 0;
  std::string header_;
  std::vector<PlannedRecord> records_;
};

constexpr std::string_view kVersionText = "3\n";

}  // namespace

TorchArchive layout_torch_archive(
    std::string_view prefix, std::vector<TensorSlot>& slots,
    const std::vector<std::pair<std::string, std::string>>& aliases) {
  check_names(slots, "a pickle");
  for (TensorSlot& slot : slots) slot.size_bytes = bytes_of(slot);
  Layout layout(prefix);
  layout.place_text(zip::kDataPkl, tensor_dict(slots, aliases));
  layout.place_text(zip::kFormatVersion, "1");
  layout.place_text(zip::kStorageAlignment,
                    std::to_string(zip::kStorageAlignmentBytes));
  layout.place_text(zip::kByteOrder, "little");
  for (size_t i = 0; i < slots.size(); ++i) {
    const std::string name =
        std::string(zip::kStorageFolder) + std::to_string(i);
    slots[i].offset = layout.place(name, slots[i].size_bytes).offset;
  }
  layout.place(zip::kVersion, kVersionText.size()).crc = crc_of(kVersionText);
  return layout.finish();
}

void write_archive_rest(const std::vector<PlannedRecord>& records,
                        const ByteSink& sink) {
  // The first storage follows the records that the header has.
  const auto is_storage = [](const PlannedRecord& record) {
    return record.name.find("/" + std::string(zip::kStorageFolder)) !=
           std::string::npos;
  };
  const auto first = std::find_if(records.begin(), records.end(), is_storage);
  uint64_t at = first->header_offset;
  std::string gap;
  for (auto record = first; record != records.end(); ++record) {
    gap += local_header(*record);
    if (is_storage(*record) && record->size_bytes != 0) {
      sink(at, gap);
      at = record->offset + record->size_bytes;
      gap.clear();
    } else if (!is_storage(*record)) {
      gap += kVersionText;
    }
    gap += descriptor(*record);
  }
  const PlannedRecord& last = records.back();
  const uint64_t end = last.offset + last.size_bytes + descriptor(last).size();
  sink(at, gap + directory(records, end));
}

}  // namespace zckpt
