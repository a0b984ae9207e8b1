// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/libtorch_file.h"

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/serialization/storage_context.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>

namespace zckpt::test {

std::string LibtorchFile::bytes(const std::string& record) {
  const auto [data, size] = reader_.getRecord(record);
  return {static_cast<const char*>(data.get()), size};
}

namespace {

// libtorch warns of every Parameter.
class Silence : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

c10::IValue LibtorchFile::unpickle(const std::string& pickle) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  size_t at = 0;
  const auto read = [&](char* out, size_t size) {
    const size_t count = std::min(size, pickle.size() - at);
    std::memcpy(out, pickle.data() + at, count);
    at += count;
    return count;
  };
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const auto resolve = [&](const c10::QualifiedName& name) {
    return c10::StrongTypePtr(unit, c10::ClassType::create(name, unit));
  };
  const auto make = [](const at::StrongTypePtr& type,
                       const c10::IValue& state) {
    auto object = c10::ivalue::Object::create(type, 1);
    object->setSlot(0, state);
    return object;
  };
  const auto record = [&](const std::string& key) {
    return std::get<0>(reader_.getRecord("data/" + key));
  };
  torch::jit::Unpickler unpickler(
      read, resolve, make, record, at::kCPU, false,
      torch::jit::Unpickler::defaultTypeParser,
      std::make_shared<torch::jit::DeserializationStorageContext>());
  return unpickler.parse_ivalue();
}

std::string path_to(const std::string& path, const std::string& key) {
  return path + "/" + key;
}

namespace {

void collect(const c10::IValue& value, const std::string& path,
             std::map<std::string, at::Tensor>& out) {
  if (value.isTensor()) {
    out[path] = value.toTensor();
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) {
      const c10::IValue& key = item.key();
      if (key.isString()) {
        collect(item.value(), path_to(path, key.toStringRef()), out);
      } else if (key.isInt()) {
        collect(item.value(), path_to(path, std::to_string(key.toInt())), out);
      }
    }
  } else if (value.isList()) {
    size_t i = 0;
    for (const c10::IValue& item : value.toListRef()) {
      collect(item, path_to(path, std::to_string(i++)), out);
    }
  } else if (value.isTuple()) {
    size_t i = 0;
    for (const c10::IValue& item : value.toTupleRef().elements()) {
      collect(item, path_to(path, std::to_string(i++)), out);
    }
  }
}

}  // namespace

std::map<std::string, at::Tensor> tensors_in(const c10::IValue& value) {
  std::map<std::string, at::Tensor> tensors;
  collect(value, "", tensors);
  return tensors;
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().contiguous();
  return {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()};
}

}  // namespace zckpt::test
