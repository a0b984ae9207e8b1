// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zckpt/dtype.h"

namespace zckpt::test {

// Py is a Python object to be pickled, as torch.save would do it. Copies of a
// Py are the same object: it is written once and then taken from the memo, as
// pickle does.
//
//   const Py module = Py::ordered_dict({
//       {"a.weight", Py::tensor(DType::BF16, {2, 3}, "0")}});
//   const std::string bytes = pickle(Py::dict({
//       {"module", module}, {"ds_version", "0.19.8"}, {"mp_world_size", 1}}));
class Py {
 public:
  using Items = std::vector<std::pair<Py, Py>>;
  using List = std::vector<Py>;
  using Shape = std::vector<int64_t>;

  Py();  // None
  Py(std::nullptr_t) : Py() {}
  Py(bool value);
  template <std::integral T>
  Py(T value) : Py(Integer{static_cast<int64_t>(value)}) {}
  Py(double value);
  Py(const char* text) : Py(std::string(text)) {}
  Py(std::string_view text) : Py(std::string(text)) {}
  Py(std::string text);

  static Py bytes(std::string_view bytes);
  static Py list(List items = {});
  static Py tuple(List items = {});
  static Py dict(Items items = {});
  static Py ordered_dict(Items items = {});
  static Py set(List items = {});
  static Py size(const Shape& shape);  // torch.Size
  static Py global(std::string_view module, std::string_view name);
  // callable(*arguments)
  static Py call(Py callable, List arguments);
  static Py call(std::string_view module, std::string_view name,
                 List arguments) {
    return call(global(module, name), std::move(arguments));
  }
  // An instance whose __dict__ is `attributes`: NEWOBJ and BUILD.
  static Py object(std::string_view module, std::string_view name,
                   Items attributes);
  // `made` after BUILD with `state`.
  static Py with_state(Py made, Py state);
  static Py persistent(Py id);
  // Opcodes that leave one object on the stack, as they are.
  static Py raw(std::string opcodes);

  // The storage class that torch names for `dtype`; numel in its elements, or
  // in bytes where there is none and the storage is untyped.
  static Py storage(DType dtype, std::string_view key, int64_t numel,
                    std::string_view location = "cpu");
  // A tensor that views storage `key`. Without `stride` it is contiguous;
  // without `storage_numel` the storage ends where the tensor does.
  static Py tensor(DType dtype, const Shape& shape, std::string_view key,
                   int64_t offset = 0, std::optional<Shape> stride = {},
                   std::optional<int64_t> storage_numel = {});
  // torch.nn.Parameter around a tensor.
  static Py parameter(Py tensor);
  // A tensor with Python attributes, as torch >= 2.0 writes it.
  static Py tensor_with(Py tensor, Items attributes);

  // Change this object and all copies. REQUIRES: a dict or an ordered dict; a
  // list, tuple or set.
  Py& set(Py key, Py value);
  Py& append(Py item);
  // The value of a string key. REQUIRES: it exists.
  Py at(std::string_view key) const;
  Py& erase(std::string_view key);

 private:
  struct Integer {
    int64_t value;
  };
  enum class Kind;
  struct Node;
  friend class PickleEmitter;

  explicit Py(Integer value);
  explicit Py(Kind kind);

  std::shared_ptr<Node> node_;
};

// The whole pickle, protocol 2, with BINPUT after every object that Python
// would memoise.
std::string pickle(const Py& root);
// With the sixth part, None, that ids of storages have in legacy files.
std::string legacy_pickle(const Py& root);

// "FloatStorage"; empty for dtypes that only untyped storages hold.
std::string_view storage_class(DType dtype);
Py::Shape contiguous_stride(const Py::Shape& shape);

}  // namespace zckpt::test
