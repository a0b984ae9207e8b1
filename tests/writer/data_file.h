// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace zckpt {

// A file of tests/writer/data, which make_writer_data.py writes.
inline std::string read_data_file(const std::string& name) {
  const std::string path =
      std::string(ZCKPT_FIXTURES) + "/../writer/data/" + name;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot open " + path);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace zckpt
