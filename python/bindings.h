// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace zckpt::python {

// Each adds its part to the module.
void bind_checkpoint(pybind11::module_& module);
void bind_verify(pybind11::module_& module);
void bind_writers(pybind11::module_& module);

}  // namespace zckpt::python
