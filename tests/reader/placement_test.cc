// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "reader/concatenation.h"
#include "reader/layout.h"
#include "support/caught.h"

// Where elements lie, against counting them one by one.

namespace zckpt::test {
namespace {

// The byte offset of every element that the extents give.
std::vector<std::pair<uint32_t, uint64_t>> offsets(const Placement& placement,
                                                   uint64_t first,
                                                   uint64_t numel,
                                                   uint64_t size) {
  std::vector<std::pair<uint32_t, uint64_t>> places;
  placement.extents(first, numel, [&](const Extent& extent) {
    EXPECT_NE(extent.count, 0);
    EXPECT_NE(extent.numel, 0);
    for (uint64_t run = 0; run < extent.count; ++run) {
      for (uint64_t i = 0; i < extent.numel; ++i) {
        places.emplace_back(extent.source,
                            extent.offset + run * extent.stride + i * size);
      }
    }
  });
  return places;
}

// Element `i` of a view in C order, the slow way.
uint64_t naive_offset(const TensorView& view, uint64_t i) {
  uint64_t at = 0;
  for (size_t d = view.shape.size(); d-- > 0;) {
    at += i % view.shape[d] * view.stride[d];
    i /= view.shape[d];
  }
  return view.offset + at * size_of(view.dtype);
}

TensorView view_of(DType dtype, const std::vector<uint64_t>& shape,
                   const std::vector<uint64_t>& stride, uint64_t offset = 0) {
  TensorView view{.dtype = dtype,
                  .shape = shape,
                  .stride = stride,
                  .offset = offset,
                  .numel = 1};
  for (const uint64_t size : shape) view.numel *= size;
  return view;
}

void expect_naive(const TensorView& view, uint64_t first, uint64_t numel) {
  const auto placement = place_view(5, view);
  const auto places = offsets(*placement, first, numel, size_of(view.dtype));
  ASSERT_EQ(places.size(), numel);
  for (uint64_t i = 0; i < numel; ++i) {
    ASSERT_EQ(places[i].first, 5);
    ASSERT_EQ(places[i].second, naive_offset(view, first + i)) << first + i;
  }
}

size_t extent_count(const TensorView& view) {
  size_t count = 0;
  place_view(0, view)->extents(0, view.numel, [&](const Extent&) { ++count; });
  return count;
}

TEST(PlaceView, FoldsWhatLiesWithoutGaps) {
  EXPECT_EQ(extent_count(view_of(DType::F32, {4, 5, 6}, {30, 6, 1})), 1);
  EXPECT_EQ(extent_count(view_of(DType::F32, {}, {})), 1);
  EXPECT_EQ(extent_count(view_of(DType::F32, {1, 1, 3}, {99, 98, 1})), 1);
  // A column slice is one extent with a stride.
  EXPECT_EQ(extent_count(view_of(DType::F32, {4, 2}, {10, 1}, 64)), 1);
}

TEST(PlaceView, ReadsEveryKindOfView) {
  for (const TensorView& view :
       {view_of(DType::BF16, {3, 4}, {1, 3}),             // transposed
        view_of(DType::F32, {3, 4}, {0, 1}),              // expanded rows
        view_of(DType::F32, {3, 4}, {1, 0}),              // expanded columns
        view_of(DType::F32, {5}, {0}),                    // one element
        view_of(DType::I64, {2, 3, 4}, {100, 20, 2}, 8),  // every second
        view_of(DType::U8, {2, 1, 3}, {7, 0, 1}, 3),
        view_of(DType::F64, {2, 3, 2, 2}, {2, 4, 12, 1}),
        view_of(DType::F32, {4, 4}, {1, 1})}) {  // overlapping
    for (uint64_t first = 0; first <= view.numel; ++first) {
      for (uint64_t numel = 0; numel <= view.numel - first; ++numel) {
        expect_naive(view, first, numel);
      }
    }
  }
}

TEST(PlaceView, ReadsRandomViews) {
  std::mt19937 random(20);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint64_t> shape(random() % 5);
    std::vector<uint64_t> stride(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) {
      shape[d] = 1 + random() % 5;
      stride[d] = random() % 30;
    }
    if (random() % 2 == 0) {  // partly of C order
      uint64_t next = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        if (random() % 4 != 0) stride[d] = next;
        next = stride[d] * shape[d];
      }
    }
    const auto dtype = static_cast<DType>(random() % 19);
    const TensorView view = view_of(dtype, shape, stride, random() % 100);
    const uint64_t first = random() % (view.numel + 1);
    SCOPED_TRACE(round);
    expect_naive(view, first, random() % (view.numel - first + 1));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Concatenation, JoinsPieces) {
  auto flat = std::make_shared<Concatenation>();
  flat->append(1, 100, 3, DType::F32);
  flat->append(2, 200, 0, DType::BF16);  // nothing, hence no dtype
  flat->append(3, 300, 4, DType::F32);
  EXPECT_EQ(flat->numel(), 7);
  EXPECT_EQ(flat->dtype(), DType::F32);
  EXPECT_EQ(flat->starts(), (std::vector<uint64_t>{0, 3, 7}));
  const auto slice = place_slice(flat, 2);
  using Places = std::vector<std::pair<uint32_t, uint64_t>>;
  EXPECT_EQ(offsets(*slice, 0, 3, 4), (Places{{1, 108}, {3, 300}, {3, 304}}));
  EXPECT_EQ(offsets(*slice, 1, 4, 4),
            (Places{{3, 300}, {3, 304}, {3, 308}, {3, 312}}));
  EXPECT_EQ(offsets(*slice, 5, 0, 4), Places{});
}

TEST(Concatenation, RefusesMixedDTypesAndWrappingSums) {
  Concatenation flat;
  flat.append(0, 0, 2, DType::F32);
  expect_error(ErrorCode::Corrupt, {}, "different dtypes: fp32 and bf16",
               [&] { flat.append(1, 0, 2, DType::BF16); });
  expect_error(ErrorCode::Corrupt, {}, "exceeds 64 bits",
               [&] { flat.append(1, 0, UINT64_MAX, DType::F32); });
}

}  // namespace
}  // namespace zckpt::test
