// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace zckpt::test {

// A pickle of torch.save in words that libtorch's Unpickler knows. It reads
// dicts, lists, tuples and tensors, but neither a filled OrderedDict, nor
// Python's objects, dtypes and most long integers. Written for tests alone:
//   OrderedDict()            {}
//   object.__new__(Class)    {}
//   BUILD                    a tuple of the object and its state
//   torch.float32, ...       None
//   torch.Size               a class
//   LONG1                    of 8 bytes, None where it is longer
// Errors: std::runtime_error for an opcode that protocol 2 of torch lacks.
std::string plain_pickle(const std::string& pickle);

}  // namespace zckpt::test
