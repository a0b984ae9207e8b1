// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "format/pickle.h"

namespace zckpt {

// Throws Limit where something under the root is nested deeper than
// `max_depth` (the root is 1), so that callers may recurse into a tree with no
// guard but one against cycles. References back to a node that is being
// walked do not count. O(nodes + references), without recursion.
void check_depth(const Pickle& pickle, uint32_t max_depth);

}  // namespace zckpt
