// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/tensor_view.h"

#include <utility>

#include "reader/torch_tensor.h"

namespace zckpt {

Error fault_error(std::string code, std::string message,
                  std::optional<uint64_t> offset) {
  Error error(ErrorCode::Corrupt, std::move(message), {.offset = offset});
  error.with_findings({{.code = std::move(code)}});
  return error;
}

std::optional<TensorView> view_of(const TorchFile& file, const Value& value) {
  const auto tensor = as_tensor(value);
  if (!tensor) return std::nullopt;
  TensorView view{.dtype = tensor->dtype,
                  .shape = tensor->shape,
                  .stride = tensor->stride,
                  .numel = tensor->numel(),
                  .contiguous = tensor->is_contiguous(),
                  .attributes = tensor->attributes};
  if (view.numel == 0) return view;
  const auto index = file.find_storage(tensor->key);
  if (!index) {
    throw fault_error("record-missing",
                      "the storage " + std::string(tensor->key) +
                          " that the pickle refers to is not in the archive");
  }
  const StorageRecord& record = file.storages()[*index];
  const uint64_t size = size_of(view.dtype);
  if (tensor->extent() > record.size_bytes / size) {
    throw fault_error("container-damaged",
                      "expected at least " +
                          std::to_string(tensor->extent() * size) +
                          " bytes in storage " + record.key + ", found " +
                          std::to_string(record.size_bytes),
                      record.offset);
  }
  view.storage_offset = record.offset;
  view.offset = record.offset + tensor->offset * size;
  return view;
}

std::string string_attribute(const TensorView& view, std::string_view name) {
  std::optional<Value> attributes = view.attributes;
  // (dict, slots) where the class has slots.
  if (attributes && attributes->kind() == NodeKind::Tuple &&
      attributes->size() != 0) {
    attributes = attributes->item(0);
  }
  if (!attributes || !attributes->is_mapping()) return {};
  const auto value = attributes->find(name);
  return value ? std::string(value->string().value_or("")) : std::string();
}

}  // namespace zckpt
