// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "zckpt/error.h"

namespace zckpt::test {

// The Error that `body` throws, or nothing.
inline std::optional<Error> caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e;
  }
  return std::nullopt;
}

// Expects that `body` throws exactly this. `part` must occur in the message.
inline void expect_error(ErrorCode code, std::optional<uint64_t> offset,
                         std::string_view part,
                         const std::function<void()>& body) {
  const std::optional<Error> error = caught(body);
  ASSERT_TRUE(error) << "nothing was thrown";
  EXPECT_EQ(to_string(error->code()), to_string(code)) << error->what();
  EXPECT_EQ(error->offset(), offset) << error->what();
  EXPECT_NE(error->message().find(part), std::string::npos) << error->what();
}

}  // namespace zckpt::test
