// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/pickle_reader.h"

#include <utility>

#include "reader/pickle_depth.h"
#include "reader/pickle_machine.h"

namespace zckpt {

std::shared_ptr<const Pickle> read_pickle(std::string bytes, uint64_t* consumed,
                                          const PickleLimits& limits) {
  // Shared: callers keep values that look into the tree.
  auto pickle = std::make_shared<Pickle>(std::move(bytes));
  PickleMachine machine(*pickle, limits);
  const uint64_t end = machine.run();
  if (consumed != nullptr) {
    *consumed = end;
  } else {
    machine.expect_end();
  }
  check_depth(*pickle, limits.max_depth);
  return pickle;
}

}  // namespace zckpt
