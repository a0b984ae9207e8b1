// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "support/pickle_builder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>
#include <unordered_map>

namespace zckpt::test {

enum class Py::Kind {
  None,
  Bool,
  Int,
  Float,
  Str,
  List,
  Tuple,
  Dict,
  OrderedDict,
  Global,
  Call,        // items: callable, arguments
  NewObj,      // items: class, arguments
  Build,       // items: object, state
  Persistent,  // items: id
  Raw,
};

struct Py::Node {
  Kind kind = Kind::None;
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<Py> items;  // dict: key, value, key, value, ...
};

Py::Py(Kind kind) : node_(std::make_shared<Node>()) { node_->kind = kind; }
Py::Py() : Py(Kind::None) {}
Py::Py(bool value) : Py(Kind::Bool) { node_->integer = value ? 1 : 0; }
Py::Py(Integer value) : Py(Kind::Int) { node_->integer = value.value; }
Py::Py(double value) : Py(Kind::Float) { node_->real = value; }
Py::Py(std::string text) : Py(Kind::Str) { node_->text = std::move(text); }

Py Py::bytes(std::string_view bytes) {
  // Protocol 2 has no bytes: a latin-1 string and a call.
  std::string utf8;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      utf8 += c;
    } else {
      utf8 += static_cast<char>(0xc0 | byte >> 6);
      utf8 += static_cast<char>(0x80 | (byte & 0x3f));
    }
  }
  return call("_codecs", "encode", {utf8, "latin1"});
}

Py Py::list(List items) {
  Py made(Kind::List);
  made.node_->items = std::move(items);
  return made;
}

Py Py::tuple(List items) {
  Py made(Kind::Tuple);
  made.node_->items = std::move(items);
  return made;
}

Py Py::dict(Items items) {
  Py made(Kind::Dict);
  for (auto& [key, value] : items) made.set(key, value);
  return made;
}

Py Py::ordered_dict(Items items) {
  Py made(Kind::OrderedDict);
  for (auto& [key, value] : items) made.set(key, value);
  return made;
}

Py Py::set(List items) {
  return call("__builtin__", "set", {list(std::move(items))});
}

Py Py::size(const Shape& shape) {
  return call("torch", "Size", {tuple(List(shape.begin(), shape.end()))});
}

Py Py::global(std::string_view module, std::string_view name) {
  Py made(Kind::Global);
  made.node_->text = std::string(module) + "\n" + std::string(name) + "\n";
  return made;
}

Py Py::call(Py callable, List arguments) {
  Py made(Kind::Call);
  made.node_->items = {std::move(callable), tuple(std::move(arguments))};
  return made;
}

Py Py::object(std::string_view module, std::string_view name,
              Items attributes) {
  Py made(Kind::NewObj);
  made.node_->items = {global(module, name), tuple()};
  return with_state(std::move(made), dict(std::move(attributes)));
}

Py Py::with_state(Py object, Py state) {
  Py made(Kind::Build);
  made.node_->items = {std::move(object), std::move(state)};
  return made;
}

Py Py::persistent(Py id) {
  Py made(Kind::Persistent);
  made.node_->items = {std::move(id)};
  return made;
}

Py Py::raw(std::string opcodes) {
  Py made(Kind::Raw);
  made.node_->text = std::move(opcodes);
  return made;
}

std::string_view storage_class(DType dtype) {
  switch (dtype) {
    case DType::Bool: return "BoolStorage";
    case DType::U8: return "ByteStorage";
    case DType::I8: return "CharStorage";
    case DType::I16: return "ShortStorage";
    case DType::F16: return "HalfStorage";
    case DType::BF16: return "BFloat16Storage";
    case DType::I32: return "IntStorage";
    case DType::F32: return "FloatStorage";
    case DType::C64: return "ComplexFloatStorage";
    case DType::F64: return "DoubleStorage";
    case DType::I64: return "LongStorage";
    default: return "";
  }
}

Py::Shape contiguous_stride(const Py::Shape& shape) {
  Py::Shape stride(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    stride[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return stride;
}

Py Py::storage(DType dtype, std::string_view key, int64_t numel,
               std::string_view location) {
  const std::string_view name = storage_class(dtype);
  const Py type = name.empty() ? global("torch.storage", "UntypedStorage")
                               : global("torch", name);
  return persistent(tuple({"storage", type, key, location, numel}));
}

Py Py::tensor(DType dtype, const Shape& shape, std::string_view key,
              int64_t offset, std::optional<Shape> stride,
              std::optional<int64_t> storage_numel) {
  const Shape steps = stride.value_or(contiguous_stride(shape));
  int64_t extent = offset + 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    extent += (shape[i] - 1) * steps[i];
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) extent = 0;
  const bool untyped = storage_class(dtype).empty();
  const int64_t unit = untyped ? size_of(dtype) : 1;
  List arguments{storage(dtype, key, storage_numel.value_or(extent * unit)),
                 offset,
                 tuple(List(shape.begin(), shape.end())),
                 tuple(List(steps.begin(), steps.end())),
                 false,
                 ordered_dict()};
  if (untyped) arguments.push_back(global("torch", torch_name(dtype)));
  return call("torch._utils",
              untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2",
              std::move(arguments));
}

Py Py::parameter(Py tensor) {
  return call("torch._utils", "_rebuild_parameter",
              {std::move(tensor), true, ordered_dict()});
}

Py Py::tensor_with(Py tensor, Items attributes) {
  return call("torch._tensor", "_rebuild_from_type_v2",
              {tensor.node_->items[0], global("torch", "Tensor"),
               tensor.node_->items[1], dict(std::move(attributes))});
}

Py& Py::set(Py key, Py value) {
  std::vector<Py>& items = node_->items;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Node& old = *items[i].node_;
    if (old.kind == key.node_->kind && old.text == key.node_->text &&
        old.integer == key.node_->integer &&
        (old.kind == Kind::Str || old.kind == Kind::Int)) {
      items[i + 1] = std::move(value);
      return *this;
    }
  }
  items.push_back(std::move(key));
  items.push_back(std::move(value));
  return *this;
}

Py& Py::append(Py item) {
  // A set is a call of a list.
  std::vector<Py>& items = node_->kind == Kind::Call
                               ? node_->items[1].node_->items[0].node_->items
                               : node_->items;
  items.push_back(std::move(item));
  return *this;
}

Py Py::at(std::string_view key) const {
  for (size_t i = 0; i + 1 < node_->items.size(); i += 2) {
    const Node& k = *node_->items[i].node_;
    if (k.kind == Kind::Str && k.text == key) return node_->items[i + 1];
  }
  throw std::out_of_range("no key " + std::string(key));
}

Py& Py::erase(std::string_view key) {
  std::vector<Py>& items = node_->items;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const Node& k = *items[i].node_;
    if (k.kind == Kind::Str && k.text == key) {
      const auto at = items.begin() + static_cast<ptrdiff_t>(i);
      items.erase(at, at + 2);
      return *this;
    }
  }
  throw std::out_of_range("no key " + std::string(key));
}

// Writes objects as Python's pickler does for protocol 2.
class PickleEmitter {
 public:
  explicit PickleEmitter(bool legacy) : legacy_(legacy) {}

  std::string finish(const Py& root) {
    out_ = "\x80\x02";
    emit(root);
    return out_ + ".";
  }

 private:
  using Kind = Py::Kind;

  void emit(const Py& object) {
    const Py::Node& node = *object.node_;
    if (const auto it = memo_.find(&node); it != memo_.end()) {
      return index("h", "j", it->second);
    }
    switch (node.kind) {
      case Kind::None: out_ += 'N'; return;
      case Kind::Bool: out_ += node.integer != 0 ? '\x88' : '\x89'; return;
      case Kind::Int: return integer(node.integer);
      case Kind::Float:
        out_ += 'G';
        big_endian(std::bit_cast<uint64_t>(node.real));
        return;
      case Kind::Str:
        out_ += 'X';
        little_endian(node.text.size(), 4);
        out_ += node.text;
        break;
      case Kind::List:
        out_ += ']';
        memoise(node);
        return batch(node, "e");
      case Kind::Tuple:
        tuple(node);
        if (node.items.empty()) return;  // Python does not memoise it
        break;
      case Kind::Dict:
        out_ += '}';
        memoise(node);
        return batch(node, "u");
      case Kind::OrderedDict:
        emit_global("collections\nOrderedDict\n");
        out_ += ")R";
        memoise(node);
        return batch(node, "u");
      case Kind::Global: return emit_global(node.text);
      case Kind::Call:
      case Kind::NewObj:
        emit(node.items[0]);
        emit(node.items[1]);
        out_ += node.kind == Kind::Call ? 'R' : '\x81';
        break;
      case Kind::Build:
        emit(node.items[0]);
        emit(node.items[1]);
        out_ += 'b';
        return memoise_as(node, node.items[0]);
      case Kind::Persistent:
        emit_id(node.items[0]);
        out_ += 'Q';
        return;
      case Kind::Raw: out_ += node.text; return;
    }
    memoise(node);
  }

  void emit_id(const Py& id) {
    const Py::Node& node = *id.node_;
    if (!legacy_ || node.kind != Kind::Tuple || node.items.size() != 5) {
      return emit(id);
    }
    out_ += '(';
    for (const Py& item : node.items) emit(item);
    out_ += "Nt";
  }

  void batch(const Py::Node& node, const char* opcode) {
    if (node.items.empty()) return;
    out_ += '(';
    for (const Py& item : node.items) emit(item);
    out_ += opcode;
  }

  void tuple(const Py::Node& node) {
    const size_t count = node.items.size();
    if (count == 0) {
      out_ += ')';
      return;
    }
    if (count > 3) out_ += '(';
    for (const Py& item : node.items) emit(item);
    constexpr std::array<char, 4> kShort{'t', '\x85', '\x86', '\x87'};
    out_ += count > 3 ? 't' : kShort[count];
  }

  // Globals are the same object wherever they are named.
  void emit_global(const std::string& text) {
    const auto [it, added] = globals_.emplace(text, next_);
    if (!added) return index("h", "j", it->second);
    out_ += 'c';
    out_ += text;
    index("q", "r", next_++);
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += 'K';
      little_endian(static_cast<uint64_t>(value), 1);
    } else if (value >= 0 && value < 65536) {
      out_ += 'M';
      little_endian(static_cast<uint64_t>(value), 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ += 'J';
      little_endian(static_cast<uint64_t>(value), 4);
    } else {
      out_ += "\x8a\x08";
      little_endian(static_cast<uint64_t>(value), 8);
    }
  }

  void memoise(const Py::Node& node) {
    memo_.emplace(&node, next_);
    index("q", "r", next_++);
  }

  void memoise_as(const Py::Node& node, const Py& object) {
    const auto it = memo_.find(object.node_.get());
    if (it != memo_.end()) memo_.emplace(&node, it->second);
  }

  void index(const char* narrow, const char* wide, uint32_t i) {
    out_ += i < 256 ? narrow : wide;
    little_endian(i, i < 256 ? 1 : 4);
  }

  void little_endian(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      out_ += static_cast<char>(value >> (8 * i) & 0xff);
    }
  }

  void big_endian(uint64_t value) {
    for (int i = 7; i >= 0; --i) {
      out_ += static_cast<char>(value >> (8 * i) & 0xff);
    }
  }

  bool legacy_;
  std::string out_;
  std::unordered_map<const Py::Node*, uint32_t> memo_;
  std::unordered_map<std::string, uint32_t> globals_;
  uint32_t next_ = 0;
};

std::string pickle(const Py& root) { return PickleEmitter(false).finish(root); }

std::string legacy_pickle(const Py& root) {
  return PickleEmitter(true).finish(root);
}

}  // namespace zckpt::test
