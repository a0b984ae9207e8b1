// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// repickle IN_PICKLE OUT_PICKLE: reads a pickle and writes its tree again, for
// tests that compare both in Python.

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "reader/pickle_reader.h"
#include "writer/pickle_writer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: repickle IN_PICKLE OUT_PICKLE\n";
    return 2;
  }
  try {
    std::ifstream in(argv[1], std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(in), {});
    const std::shared_ptr<const zckpt::Pickle> pickle =
        zckpt::read_pickle(std::move(bytes));
    std::ofstream out(argv[2], std::ios::binary);
    out << zckpt::write_pickle(*pickle) << std::flush;
    if (!out) {
      std::cerr << argv[2] << ": cannot be written\n";
      return 3;
    }
  } catch (const std::exception& error) {
    std::cerr << argv[1] << ": " << error.what() << '\n';
    return 3;
  }
  return 0;
}
