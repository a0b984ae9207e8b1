// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes are an Error or a torch file whose storages lie in it and whose
// tensors lie in the storages that the pickle declares.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "reader/recognise.h"
#include "reader/torch_file.h"
#include "reader/torch_tensor.h"
#include "support/memory_source.h"
#include "zckpt/error.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void look_up_storages(const zckpt::TorchFile& file) {
  for (size_t i = 0; i < file.storages().size(); ++i) {
    const zckpt::StorageRecord& record = file.storages()[i];
    require(file.find_storage(record.key) == i);
    require(record.offset <= file.file_bytes());
    require(record.size_bytes <= file.file_bytes() - record.offset);
  }
}

void look_at_tensors(const zckpt::Pickle& pickle) {
  for (zckpt::NodeId id = 0; id < pickle.node_count(); ++id) {
    try {
      const auto tensor = zckpt::as_tensor(zckpt::Value(pickle, id));
      if (!tensor) continue;
      require(tensor->shape.size() == tensor->stride.size());
      require(tensor->extent() <=
              tensor->storage_bytes / zckpt::size_of(tensor->dtype));
      require(tensor->numel() != 0 || tensor->extent() == 0);
      tensor->is_contiguous();
    } catch (const zckpt::Error& error) {
      require(error.code() == zckpt::ErrorCode::Corrupt ||
              error.code() == zckpt::ErrorCode::Unsupported);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const zckpt::test::MemorySource source(
      std::string(reinterpret_cast<const char*>(data), size));
  zckpt::describe(zckpt::recognise(source));
  try {
    const zckpt::TorchFile file = zckpt::TorchFile::open(source);
    require(file.file_bytes() == size && file.pickle_bytes() <= size);
    look_up_storages(file);
    look_at_tensors(file.pickle());
  } catch (const zckpt::Error& error) {
    require(error.code() != zckpt::ErrorCode::Internal);
    require(error.file() == "memory" && error.offset().has_value());
  }
  return 0;
}
