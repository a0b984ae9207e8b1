// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/torch_tensor.h"

#include <string>
#include <utility>

#include "base/arithmetic.h"
#include "base/text.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// Real files nest two: a parameter around a tensor, attributes around both.
constexpr int kMaxWrappers = 8;

[[noreturn]] void corrupt(const std::string& message) {
  throw Error(ErrorCode::Corrupt, message);
}

[[noreturn]] void unsupported(const std::string& message) {
  throw Error(ErrorCode::Unsupported, message);
}

uint64_t unsigned_integer(const Value& value, const char* what) {
  const std::optional<int64_t> integer = value.integer();
  if (!integer || *integer < 0) {
    corrupt(std::string("expected a non-negative integer as ") + what);
  }
  return static_cast<uint64_t>(*integer);
}

const StorageClass* find_class(const Value& global) {
  const std::string_view module = global.global_module();
  if (module != "torch" && module != "torch.cuda" &&
      module != "torch.storage") {
    return nullptr;
  }
  for (const StorageClass& c : storage_classes()) {
    if (c.name == global.global_name()) return &c;
  }
  return nullptr;
}

std::vector<uint64_t> dimensions(const Value& value, const char* what) {
  if (!value.is_sequence()) {
    corrupt(std::string("expected a tuple as a tensor's ") + what);
  }
  std::vector<uint64_t> result;
  result.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    result.push_back(unsigned_integer(value.item(i), what));
  }
  return result;
}

void refuse_lazy_views(const Value& metadata) {
  for (const char* kind : {"conj", "neg"}) {
    const std::optional<Value> flag = metadata.find(kind);
    if (flag && flag->boolean() != false) {
      unsupported("a tensor with its " + std::string(kind) +
                  " bit set: its bytes are not its values");
    }
  }
}

// A callable and its arguments, wherever they are written down.
struct Rebuild {
  Value callable;
  Value arguments;  // a tuple

  size_t count() const { return arguments.size(); }
  Value argument(size_t i) const { return arguments.item(i); }
};

void expect_arguments(const Rebuild& call, size_t least, size_t most) {
  if (call.count() < least || call.count() > most) {
    corrupt("expected " + std::to_string(least) + " to " +
            std::to_string(most) + " arguments of " +
            escape(call.callable.global_name()) + ", found " +
            std::to_string(call.count()));
  }
}

DType storage_dtype(const StorageClass& storage_class) {
  if (!storage_class.dtype) {
    unsupported("a tensor in a " + std::string(storage_class.name));
  }
  return *storage_class.dtype;
}

DType dtype_argument(const Value& value) {
  if (value.global_module() != "torch") {
    corrupt("expected a torch dtype");
  }
  const std::optional<DType> dtype = dtype_from_torch(value.global_name());
  if (!dtype) {
    unsupported("a tensor of dtype torch." + escape(value.global_name()));
  }
  return *dtype;
}

// The view must lie within its storage; nothing may wrap on the way.
void check_extent(const TorchTensor& tensor) {
  const uint64_t bytes =
      checked_mul(tensor.extent(), size_of(tensor.dtype), "a tensor's extent");
  if (bytes > tensor.storage_bytes) {
    corrupt("the tensor reaches to byte " + std::to_string(bytes) +
            " of storage " + escape(tensor.key) + ", which has " +
            std::to_string(tensor.storage_bytes));
  }
  checked_mul(tensor.numel(), size_of(tensor.dtype), "a tensor's size");
}

// _rebuild_tensor, _v2 and _v3: storage, offset, size, stride, ...
TorchTensor plain_tensor(const Rebuild& call, int version) {
  switch (version) {
    case 1: expect_arguments(call, 4, 4); break;
    case 2: expect_arguments(call, 6, 7); break;
    default: expect_arguments(call, 7, 8); break;
  }
  const std::optional<StorageReference> storage = as_storage(call.argument(0));
  if (!storage) corrupt("expected a storage as the tensor's first argument");
  if (storage->is_view) {
    unsupported("a tensor in a view of storage " + escape(storage->key) +
                ", as torch before 0.4 wrote them");
  }
  TorchTensor tensor;
  tensor.key = storage->key;
  tensor.dtype = version == 3 ? dtype_argument(call.argument(6))
                              : storage_dtype(*storage->storage_class);
  tensor.storage_bytes =
      checked_mul(storage->numel, storage->storage_class->element_bytes,
                  "a storage's size");
  tensor.offset = unsigned_integer(call.argument(1), "a tensor's offset");
  tensor.shape = dimensions(call.argument(2), "size");
  tensor.stride = dimensions(call.argument(3), "stride");
  if (tensor.shape.size() != tensor.stride.size()) {
    corrupt("a tensor of rank " + std::to_string(tensor.shape.size()) +
            " with " + std::to_string(tensor.stride.size()) + " strides");
  }
  const size_t metadata = version == 2 ? 6 : 7;
  if (call.count() > metadata) refuse_lazy_views(call.argument(metadata));
  check_extent(tensor);
  return tensor;
}

// `state` is a dict, or a tuple of a dict and of slots. What an outer wrapper
// sets replaces what an inner one did.
void set_attributes(TorchTensor& tensor, const Value& state) {
  if (state.is_mapping()) {
    tensor.attributes = state;
  } else if (state.is_sequence() && state.size() == 2 &&
             state.item(0).is_mapping()) {
    tensor.attributes = state.item(0);
  }
}

std::optional<TorchTensor> rebuild(const Rebuild& call, int depth);

std::optional<TorchTensor> rebuild_value(const Value& value, int depth) {
  if (!value.is_call()) return std::nullopt;
  const Value callable = value.callable();
  // Most calls in a pickle are of other things.
  if (!callable.global_module().starts_with("torch.")) return std::nullopt;
  const NodeId arguments = value.pickle().items(value.id())[1];
  return rebuild({callable, Value(value.pickle(), arguments)}, depth);
}

// A parameter is its data, for everything that is read here.
TorchTensor parameter(const Rebuild& call, bool has_state, int depth) {
  const size_t count = has_state ? 4 : 3;
  expect_arguments(call, count, count);
  std::optional<TorchTensor> tensor =
      rebuild_value(call.argument(0), depth + 1);
  if (!tensor) corrupt("expected a tensor inside a parameter");
  if (has_state) set_attributes(*tensor, call.argument(3));
  return std::move(*tensor);
}

// _rebuild_from_type_v2(func, type, args, state): func(*args), as a `type`,
// with attributes.
TorchTensor typed_tensor(const Rebuild& call, int depth) {
  expect_arguments(call, 4, 4);
  const Value type = call.argument(1);
  const bool plain = type.is_global("torch", "Tensor") ||
                     type.is_global("torch._tensor", "Tensor") ||
                     type.is_global("torch.nn.parameter", "Parameter") ||
                     type.is_global("torch.nn.parameter", "Buffer");
  if (!plain) {
    unsupported("a tensor of class " + escape(type.global_module()) + "." +
                escape(type.global_name()));
  }
  std::optional<TorchTensor> tensor =
      rebuild({call.argument(0), call.argument(2)}, depth + 1);
  if (!tensor) corrupt("expected a function that rebuilds a tensor");
  set_attributes(*tensor, call.argument(3));
  return std::move(*tensor);
}

std::optional<TorchTensor> rebuild(const Rebuild& call, int depth) {
  if (depth > kMaxWrappers) corrupt("a tensor wrapped in itself");
  const std::string_view module = call.callable.global_module();
  const std::string_view name = call.callable.global_name();
  const bool tensors = module == "torch._tensor" || module == "torch.tensor";
  if (module != "torch._utils" && !tensors) return std::nullopt;
  if (!name.starts_with("_rebuild_")) return std::nullopt;
  if (call.arguments.kind() != NodeKind::Tuple) {
    corrupt("expected a tuple of arguments of " + escape(name));
  }
  if (tensors) {
    if (name == "_rebuild_from_type_v2" || name == "_rebuild_from_type") {
      return typed_tensor(call, depth);
    }
    unsupported("a tensor made by " + escape(name));
  }
  if (name == "_rebuild_tensor_v2") return plain_tensor(call, 2);
  if (name == "_rebuild_tensor_v3") return plain_tensor(call, 3);
  if (name == "_rebuild_tensor") return plain_tensor(call, 1);
  if (name == "_rebuild_parameter") return parameter(call, false, depth);
  if (name == "_rebuild_parameter_with_state") {
    return parameter(call, true, depth);
  }
  // Quantised, sparse, meta, wrapper subclasses, numpy transport, ...
  unsupported("a tensor made by " + escape(name));
}

}  // namespace

uint64_t TorchTensor::numel() const {
  for (const uint64_t n : shape) {
    if (n == 0) return 0;
  }
  uint64_t product = 1;
  for (const uint64_t n : shape) {
    product = checked_mul(product, n, "a tensor's number of elements");
  }
  return product;
}

bool TorchTensor::is_contiguous() const {
  if (numel() == 0) return true;
  uint64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    // The stride of a dimension of size 1 is never used.
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

uint64_t TorchTensor::extent() const {
  if (numel() == 0) return 0;
  uint64_t last = offset;
  for (size_t i = 0; i < shape.size(); ++i) {
    last = checked_add(
        last, checked_mul(shape[i] - 1, stride[i], "a tensor's extent"),
        "a tensor's extent");
  }
  return checked_add(last, 1, "a tensor's extent");
}

std::optional<StorageReference> as_storage(const Value& value) {
  if (value.kind() != NodeKind::Persistent) return std::nullopt;
  const Value id(value.pickle(), value.pickle().items(value.id())[0]);
  if (id.kind() != NodeKind::Tuple || id.size() == 0 ||
      id.item(0).string() != "storage") {
    return std::nullopt;
  }
  // The sixth element exists in legacy files only.
  if (id.size() != 5 && id.size() != 6) {
    corrupt("expected 5 or 6 parts of a storage's id, found " +
            std::to_string(id.size()));
  }
  StorageReference storage;
  storage.storage_class = find_class(id.item(1));
  if (storage.storage_class == nullptr) {
    if (id.item(1).kind() != NodeKind::Global) {
      corrupt("expected a class in a storage's id");
    }
    unsupported("storage class " + escape(id.item(1).global_module()) + "." +
                escape(id.item(1).global_name()));
  }
  const std::optional<std::string_view> key = id.item(2).string();
  if (!key) corrupt("expected a string as a storage's key");
  storage.key = *key;
  storage.numel = unsigned_integer(id.item(4), "a storage's size");
  storage.is_view = id.size() == 6 && !id.item(5).is_none();
  return storage;
}

std::optional<TorchTensor> as_tensor(const Value& value) {
  return rebuild_value(value, 0);
}

}  // namespace zckpt
