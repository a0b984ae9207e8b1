// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "format/pickle.h"

namespace zckpt {

// The tree as a pickle again, with the same meaning to a real unpickler:
// shared objects stay shared (memo), cycles stay cycles, opaque calls keep
// callable, arguments and the order of their updates. Equal trees give equal
// bytes, and what was written reads back as an equal tree.
// Format: the header states the tree's protocol, but at least 2, what
//         torch.save writes. Nodes that came with later protocols (bytes,
//         bytearray, sets, NEWOBJ_EX) use those opcodes under any header:
//         unpicklers accept them, and a header of 3 or more would stop the
//         renaming of Python 2's modules.
// Cycles: a tuple, frozenset, call or persistent id that contains itself is
//         written as Python does: once more inside of itself, where the memo
//         ends the recursion, and the outer copy is dropped for the inner one.
// Errors: Unsupported for cycles of tuples so entangled that this would
//         multiply the size.
// Memory: O(nodes + output), without recursion.
std::string write_pickle(const Pickle& pickle);

}  // namespace zckpt
