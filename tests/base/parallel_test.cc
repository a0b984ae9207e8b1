// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "support/caught.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

class ParallelFor : public testing::TestWithParam<int> {};

TEST_P(ParallelFor, VisitsEveryIndexOnce) {
  std::vector<std::atomic<int>> visits(1000);
  parallel_for(visits.size(), GetParam(), nullptr, [&](size_t i, int worker) {
    EXPECT_GE(worker, 0);
    EXPECT_LT(worker, GetParam());
    ++visits[i];
  });
  for (const auto& count : visits) EXPECT_EQ(count, 1);
  parallel_for(0, GetParam(), nullptr, [](size_t, int) { FAIL(); });
}

TEST_P(ParallelFor, RethrowsTheLowestFailure) {
  for (int round = 0; round < 50; ++round) {
    const auto error = test::caught([&] {
      parallel_for(200, GetParam(), nullptr, [](size_t i, int) {
        if (i >= 20 && i % 10 == 0) {
          throw Error(ErrorCode::Corrupt, std::to_string(i));
        }
      });
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->message(), "20");
  }
}

TEST_P(ParallelFor, StopsWhenAskedTo) {
  StopToken stop;
  std::atomic<size_t> started{0};
  const auto error = test::caught([&] {
    parallel_for(100'000, GetParam(), &stop, [&](size_t i, int) {
      ++started;
      if (i == 100) stop.request_stop();
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Interrupted);
  EXPECT_LT(started, 50'000U);
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelFor, testing::Values(1, 2, 8));

TEST(ResolveThreads, KeepsWhatIsAskedForAndBoundsTheDefault) {
  EXPECT_EQ(resolve_threads(7), 7);
  EXPECT_GE(resolve_threads(0), 1);
  EXPECT_LE(resolve_threads(0), 4);
}

}  // namespace
}  // namespace zckpt
