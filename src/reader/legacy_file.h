// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reader/torch_file.h"

namespace zckpt {

// True for the magic number that torch's non-zip files begin with.
bool is_legacy_file(const ByteSource& source);

// Opens a legacy container (format.md 7.2): five pickles, then each storage as
// an element count and raw bytes. Called by TorchFile::open.
TorchFile open_legacy_file(const ByteSource& source);

}  // namespace zckpt
