// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "convert.h"

#include <pybind11/stl.h>

namespace zckpt::python {
namespace {

py::object dtype_or_none(const std::optional<DType>& dtype) {
  if (!dtype) return py::none();
  return to_python(short_name(*dtype));
}

}  // namespace

py::str to_python(std::string_view text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

std::string text_of(py::handle text) {
  py::object bytes = py::reinterpret_borrow<py::object>(text);
  if (PyUnicode_Check(text.ptr())) {
    bytes = py::reinterpret_steal<py::object>(
        PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
    if (!bytes) throw py::error_already_set();
  }
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) {
    throw py::error_already_set();
  }
  std::string result(data, static_cast<size_t>(size));
  // The system would take what is before it for the name.
  if (result.find('\0') != std::string::npos) {
    throw py::value_error("embedded null byte");
  }
  return result;
}

py::list to_python(const std::vector<std::string>& texts) {
  py::list list;
  for (const std::string& text : texts) list.append(to_python(text));
  return list;
}

py::object or_none(std::string_view text) {
  if (text.empty()) return py::none();
  return to_python(text);
}

py::list to_python(const std::vector<Finding>& findings) {
  py::list list;
  for (const Finding& finding : findings) {
    py::dict one;
    one["code"] = to_python(finding.code);
    one["severity"] = to_python(to_string(finding.severity));
    one["message"] = to_python(finding.message);
    one["file"] = or_none(finding.file);
    one["rank"] = finding.rank;
    one["tensor"] = or_none(finding.tensor);
    one["offset"] = finding.offset;
    list.append(one);
  }
  return list;
}

py::dict to_python(const CheckpointFacts& facts) {
  py::dict aliases;
  for (const auto& [alias, kept] : facts.aliases) {
    aliases[to_python(alias)] = to_python(kept);
  }
  py::dict dict;
  dict["folder"] = to_python(facts.folder);
  dict["tag"] = to_python(facts.tag);
  dict["framework"] = to_python(facts.framework);
  dict["layout"] = to_python(facts.layout);
  dict["stage"] = facts.stage;
  dict["world_size"] = facts.world_size;
  dict["step"] = facts.step;
  dict["optimizer_step"] = facts.optimizer_step;
  dict["deepspeed_version"] = or_none(facts.deepspeed_version);
  dict["dtype"] = dtype_or_none(facts.dtype);
  dict["master_dtype"] = dtype_or_none(facts.master_dtype);
  dict["aliases"] = aliases;
  dict["module_order"] = py::tuple(to_python(facts.module_order));
  dict["frozen_excluded"] = facts.frozen_excluded;
  dict["notes"] = py::tuple(to_python(facts.notes));
  return dict;
}

DType dtype_named(const std::string& name) {
  const auto dtype = dtype_from_safetensors(name);
  if (!dtype) throw py::value_error("no dtype is called " + name);
  return *dtype;
}

py::object to_python(const Error& error) {
  return py::module_::import("zckpt._errors")
      .attr("from_core")(to_python(to_string(error.code())),
                         to_python(error.message()), to_python(error.what()),
                         or_none(error.file()), or_none(error.tensor()),
                         error.offset(), to_python(error.findings()));
}

py::object Options::get(const char* key) {
  taken_.insert(key);
  if (!values_.contains(key)) return py::none();
  return values_[key];
}

void Options::take(const char* key, std::string& field) {
  const py::object value = get(key);
  if (!value.is_none()) field = text_of(value);
}

void Options::take(const char* key, std::vector<std::string>& field) {
  const py::object value = get(key);
  if (value.is_none()) return;
  for (const py::handle item : value) field.push_back(text_of(item));
}

std::string Options::word(const char* key, const char* otherwise) {
  std::string text = otherwise;
  take(key, text);
  return text;
}

void Options::finish() const {
  for (const auto& item : values_) {
    const std::string key = text_of(item.first);
    if (taken_.count(key) == 0) {
      throw py::type_error("no option is called " + key);
    }
  }
}

void take_open_options(Options& options, OpenOptions& open) {
  options.take("tag", open.tag);
  options.take("also", open.also);
  options.take("threads", open.threads);
}

}  // namespace zckpt::python
