// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "format/pickle.h"

namespace zckpt {

// The tree as a pickle again, with the same meaning to a real unpickler:
// shared objects stay shared (memo), cycles stay cycles, opaque calls keep
// callable, arguments and the order of their updates. Writes protocol 2 (what
// torch.save writes), or 4 where a node needs it (bytearray, frozenset via
// NEWOBJ_EX keyword arguments), so that torch.load reads the result.
std::string write_pickle(const Pickle& pickle);

}  // namespace zckpt
