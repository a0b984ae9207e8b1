// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "format/pickle.h"

namespace zckpt {

// Caps for untrusted pickles (design: every length is checked against what
// remains before it is used, and nothing grows out of proportion to the file).
struct PickleLimits {
  uint64_t max_opcodes = uint64_t{1} << 28;
  uint64_t max_nodes = uint64_t{1} << 27;
  uint64_t max_memo = uint64_t{1} << 27;
  uint32_t max_stack = uint32_t{1} << 24;
  uint32_t max_depth = 1000;  // nesting of the finished tree, cycles aside
};

// Interprets one pickle, protocols 0 to 5, without ever calling anything.
// Errors: Corrupt with the offset of the opcode (relative to the pickle's
//         first byte) for anything that is no well-formed pickle; Unsupported
//         for what cannot be represented (extension registry, out-of-band
//         buffers); Limit for a cap, without an offset for the depth, which
//         belongs to the finished tree.
// Choices where pickle leaves some: Python 2's strings are Str if they are
// UTF-8 and Bytes otherwise; INST and OBJ without arguments are NewObj, with
// arguments Reduce. Objects that the pickle made and dropped are not under the
// root but keep their nodes, so that a look at all nodes misses no Global.
// `consumed` receives the number of bytes up to and including STOP; without it
// bytes after STOP are Corrupt.
std::shared_ptr<const Pickle> read_pickle(std::string bytes,
                                          uint64_t* consumed = nullptr,
                                          const PickleLimits& limits = {});

}  // namespace zckpt
