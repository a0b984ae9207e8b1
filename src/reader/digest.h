// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "format/pickle.h"

namespace zckpt {

// A number that two values of equal meaning share and others practically
// never do: how ranks are compared without keeping what each of them says.
// Tensors count by their shape and dtype through the calls that rebuild them,
// storage keys included. Linear in the nodes reached, whatever is shared.
uint64_t digest(const Value& value);
uint64_t digest(std::string_view text);

}  // namespace zckpt
