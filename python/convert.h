// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/dtype.h"
#include "zckpt/error.h"
#include "zckpt/finding.h"

namespace zckpt::python {

namespace py = pybind11;

// Text goes both ways with surrogateescape: names come out of files, and paths
// may be any bytes.
py::str to_python(std::string_view text);
// From str or bytes.
std::string text_of(py::handle text);

py::list to_python(const std::vector<std::string>& texts);
py::list to_python(const std::vector<Finding>& findings);
py::dict to_python(const CheckpointFacts& facts);
// None where empty.
py::object or_none(std::string_view text);

// By its name in a safetensors header; throws ValueError.
DType dtype_named(const std::string& name);

// The instance of zckpt.Error that stands for `error`.
py::object to_python(const Error& error);

// Options is a dict whose keys are all to be used: a key that nobody takes is
// a bug of the Python side, which finish() turns into a TypeError.
class Options {
 public:
  explicit Options(const py::dict& values) : values_(values) {}

  // Sets `field` where the key is there and not None.
  void take(const char* key, std::string& field);
  void take(const char* key, std::vector<std::string>& field);
  template <typename T>
  void take(const char* key, T& field) {
    const py::object value = get(key);
    if (!value.is_none()) field = value.cast<T>();
  }
  template <typename T>
  void take(const char* key, std::optional<T>& field) {
    const py::object value = get(key);
    if (!value.is_none()) field = value.cast<T>();
  }
  std::string word(const char* key, const char* otherwise);
  void finish() const;

 private:
  py::object get(const char* key);

  const py::dict& values_;
  std::set<std::string> taken_;
};

// tag, also, threads.
void take_open_options(Options& options, OpenOptions& open);

}  // namespace zckpt::python
