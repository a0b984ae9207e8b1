// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

namespace zckpt::cli {

// The whole program: parses `argv`, runs one verb, and maps what it throws to
// an exit code (docs/cli.md). Results go to `out`, everything else to `err`.
int run(int argc, char** argv, std::ostream& out, std::ostream& err);

}  // namespace zckpt::cli
