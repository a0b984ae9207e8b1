// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "cli/app.h"

int main(int argc, char** argv) {
  return zckpt::cli::run(argc, argv, std::cout, std::cerr);
}
