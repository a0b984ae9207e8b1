// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes are a pickle or an Error. What is read can be written, and what
// was written reads back as the same tree, which shows as the same bytes when
// it is written again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "reader/pickle_reader.h"
#include "writer/pickle_writer.h"
#include "zckpt/error.h"

namespace {

[[noreturn]] void die(const char* what) {
  std::cerr << what << '\n';
  std::abort();
}

// Asks about every node, as a consumer would.
void ask(const zckpt::Pickle& pickle) {
  for (zckpt::NodeId id = 0; id < pickle.node_count(); ++id) {
    const zckpt::Value value(pickle, id);
    if (value.is_sequence() && value.size() != 0) value.item(value.size() - 1);
    if (value.is_mapping() && value.size() != 0) value.key(value.size() - 1);
    if (value.argument_count() != 0) value.argument(0);
    if (value.global_name().size() > pickle.bytes().size()) die("name");
    value.find("module");
    value.state();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string first;
  try {
    uint64_t consumed = 0;
    const std::shared_ptr<const zckpt::Pickle> pickle = zckpt::read_pickle(
        {reinterpret_cast<const char*>(data), size}, &consumed);
    ask(*pickle);
    first = zckpt::write_pickle(*pickle);
  } catch (const zckpt::Error& error) {
    if (error.code() == zckpt::ErrorCode::Internal) die(error.what());
    return 0;
  }
  try {
    const std::shared_ptr<const zckpt::Pickle> again =
        zckpt::read_pickle(first);
    if (zckpt::write_pickle(*again) != first) die("differs when written again");
  } catch (const zckpt::Error& error) {
    die(error.what());
  }
  return 0;
}
