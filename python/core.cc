// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include <exception>

#include "base/text.h"
#include "bindings.h"
#include "convert.h"
#include "zckpt/error.h"

namespace zckpt::python {
namespace {

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const py::object raised = to_python(error);
    PyErr_SetObject(py::type::of(raised).ptr(), raised.ptr());
  }
}

uint64_t size_of_text(const py::object& text) {
  const std::optional<uint64_t> size = parse_size(text_of(text));
  if (!size) {
    throw py::value_error(
        "expected a size such as 5GB, 512MiB or 4096, found " +
        escape(text_of(text)));
  }
  return *size;
}

}  // namespace
}  // namespace zckpt::python

// The part of the package that is C++: no promise, use the Python modules.
PYBIND11_MODULE(_core, module) {
  namespace python = zckpt::python;
  module.attr("version") = ZCKPT_VERSION;
  pybind11::register_local_exception_translator(&python::translate);
  module.def("parse_size", &python::size_of_text, pybind11::arg("text"));
  python::bind_checkpoint(module);
  python::bind_verify(module);
  python::bind_writers(module);
}
