// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/shard_reader.h"

#include <xxhash.h>

#include <algorithm>
#include <set>

#include "reader/recognise.h"
#include "reader/shard_kinds.h"
#include "reader/tensor_view.h"
#include "reader/zip_directory.h"

namespace zckpt {
namespace {

bool has_sound_directory(const ByteSource& source) {
  try {
    const ZipDirectory directory(source);
    return true;
  } catch (const Error&) {
    return false;
  }
}

uint64_t content_digest(const TorchFile& file) {
  std::vector<uint64_t> content;
  for (const StorageRecord& record : file.storages()) {
    if (record.size_bytes == 0) continue;
    if (!record.has_crc) return 0;
    content.push_back(record.size_bytes);
    content.push_back(record.crc);
  }
  if (content.empty()) return 0;
  return XXH3_64bits(content.data(), content.size() * sizeof(uint64_t));
}

}  // namespace

std::string text_or_empty(const std::optional<Value>& value) {
  return value ? std::string(value->string().value_or("")) : std::string();
}

std::optional<int64_t> integer_or_none(const std::optional<Value>& value) {
  return value ? value->integer() : std::nullopt;
}

Value require(const Value& mapping, std::string_view key,
              std::string_view where) {
  const auto value = mapping.find(key);
  if (value) return *value;
  throw fault_error("key-missing", "expected the key " + std::string(key) +
                                       " in " + std::string(where) +
                                       ", found none");
}

void note_missing(const Value& mapping,
                  std::initializer_list<std::string_view> keys,
                  ShardFile& shard) {
  for (const std::string_view key : keys) {
    if (!mapping.find(key)) shard.missing_keys.emplace_back(key);
  }
}

uint64_t first_payload(const TorchFile& file) {
  uint64_t first = UINT64_MAX;
  for (const StorageRecord& record : file.storages()) {
    if (record.size_bytes != 0) first = std::min(first, record.offset);
  }
  return first == UINT64_MAX ? 0 : first;
}

FlatVector flat_vector(const TorchFile& file, const Value& value,
                       uint64_t base) {
  const auto view = view_of(file, value);
  if (!view) {
    throw Error(ErrorCode::Corrupt, "expected a tensor, found something else");
  }
  if (view->numel == 0) {
    // Only an empty vector can have been swapped out to NVMe.
    return {.dtype = view->dtype, .swap_id = string_attribute(*view, "ds_id")};
  }
  if (!view->contiguous) {
    throw Error(ErrorCode::Unsupported,
                "expected a contiguous vector, found a strided view");
  }
  return {.offset = view->offset - base,
          .numel = view->numel,
          .dtype = view->dtype};
}

std::optional<Value> entry_near(const Value& mapping, size_t i,
                                std::string_view name) {
  if (!mapping.is_mapping()) return std::nullopt;
  if (i < mapping.size() && mapping.key(i).string() == name) {
    return mapping.value(i);
  }
  return mapping.find(name);
}

std::optional<int64_t> stage_number(const Value& value) {
  if (const auto number = value.integer()) return number;
  if (!value.is_call()) return std::nullopt;
  const Value callable = value.callable();
  if (callable.global_name() == "ZeroStageEnum" &&
      value.argument_count() == 1) {
    return value.argument(0).integer();
  }
  // Early Python 3.11 pickled members as getattr(ZeroStageEnum, name).
  if (callable.global_name() == "getattr" && value.argument_count() == 2 &&
      value.argument(0).global_name() == "ZeroStageEnum") {
    const auto name = value.argument(1).string();
    if (name == "disabled") return 0;
    if (name == "optimizer_states") return 1;
    if (name == "gradients") return 2;
    if (name == "weights") return 3;
  }
  return std::nullopt;
}

FileFault fault_of(const ByteSource& source, const Error& error) {
  FileFault fault{.code = "pickle-invalid",
                  .message = error.message(),
                  .tensor = error.tensor(),
                  .offset = error.offset()};
  if (!error.findings().empty()) {
    fault.code = error.findings().front().code;
    return fault;
  }
  if (error.code() == ErrorCode::Io) {
    fault.code = "file-unreadable";
    return fault;
  }
  switch (const FileForm form = recognise(source)) {
    case FileForm::Empty:
      return {.code = "file-empty", .message = "the file has no bytes"};
    case FileForm::TorchZipTorn: fault.code = "file-truncated"; break;
    case FileForm::TorchLegacy:
      // The container has no end of its own: a cut is met while reading on.
      if (error.offset() == source.size()) fault.code = "file-truncated";
      break;
    case FileForm::TorchZip:
      if (!has_sound_directory(source)) fault.code = "container-damaged";
      break;
    default:
      fault.code = "foreign-writer";
      fault.message =
          std::string("expected a file of torch.save, found ") + describe(form);
  }
  return fault;
}

void read_shard(ShardFile& shard) {
  std::optional<FileSource> source;
  try {
    source.emplace(shard.path);
    shard.size_bytes = source->size();
    shard.stamp = source->stamp();
    const TorchFile file = TorchFile::open(*source);
    shard.archive_prefix = file.prefix();
    shard.pickle_bytes = file.pickle_bytes();
    shard.base = first_payload(file);
    shard.content_digest = content_digest(file);
    shard.globals = std::make_shared<const std::vector<std::string>>(
        imported_names(file.pickle()));
    if (shard.name.kind == ShardKind::Optim) {
      read_optim(*source, file, shard);
    } else {
      read_model(file, shard);
    }
  } catch (const Error& error) {
    shard.model.reset();
    shard.optim.reset();
    if (source) {
      shard.fault = fault_of(*source, error);
    } else {
      shard.fault = {.code = "file-unreadable", .message = error.message()};
    }
  }
}

std::vector<std::string> imported_names(const Pickle& pickle) {
  std::set<std::string> names;
  for (NodeId id = 0; id < pickle.node_count(); ++id) {
    const Value value(pickle, id);
    if (value.kind() == NodeKind::Global && value.global_name() != "getattr") {
      names.insert(std::string(value.global_module()) + " " +
                   std::string(value.global_name()));
    } else if (value.is_call() && value.callable().global_name() == "getattr" &&
               !stage_number(value)) {
      names.insert(std::string(value.callable().global_module()) + " getattr");
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace zckpt
