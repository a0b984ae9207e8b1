// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/torch_tensor.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "reader/pickle_reader.h"
#include "support/caught.h"
#include "support/pickle_builder.h"
#include "zckpt/error.h"

namespace zckpt::test {
namespace {

// Keeps the tree that a tensor points into.
struct Read {
  std::shared_ptr<const Pickle> pickle;
  std::optional<TorchTensor> tensor;
};

Read read(const Py& value) {
  Read r;
  r.pickle = read_pickle(pickle(value));
  r.tensor = as_tensor(r.pickle->root_value());
  return r;
}

void expect_refused(const Py& value, ErrorCode code, std::string_view part) {
  expect_error(code, {}, part, [&] { read(value); });
}

// Arguments of _rebuild_tensor_v2, to be changed by tests.
struct Arguments {
  Py storage = Py::storage(DType::F32, "7", 10);
  Py offset = 0;
  Py shape = Py::tuple({2, 3});
  Py stride = Py::tuple({3, 1});

  Py::List list() const {
    return {storage, offset, shape, stride, false, Py::ordered_dict()};
  }
  Py v2() const {
    return Py::call("torch._utils", "_rebuild_tensor_v2", list());
  }
};

TEST(TorchTensor, ReadsVersion2) {
  const Read r = read(Py::tensor(DType::BF16, {2, 3}, "12", 4, {}, 20));
  ASSERT_TRUE(r.tensor);
  EXPECT_EQ(r.tensor->key, "12");
  EXPECT_EQ(r.tensor->dtype, DType::BF16);
  EXPECT_EQ(r.tensor->offset, 4);
  EXPECT_EQ(r.tensor->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(r.tensor->stride, (std::vector<uint64_t>{3, 1}));
  EXPECT_EQ(r.tensor->storage_bytes, 40);
  EXPECT_EQ(r.tensor->numel(), 6);
  EXPECT_EQ(r.tensor->extent(), 10);
  EXPECT_TRUE(r.tensor->is_contiguous());
  EXPECT_FALSE(r.tensor->attributes);
}

TEST(TorchTensor, ReadsVersion1) {
  const Read r = read(Py::call(
      "torch._utils", "_rebuild_tensor",
      {Py::storage(DType::F64, "0", 2), 1, Py::tuple({1}), Py::tuple({1})}));
  ASSERT_TRUE(r.tensor);
  EXPECT_EQ(r.tensor->dtype, DType::F64);
  EXPECT_EQ(r.tensor->offset, 1);
}

TEST(TorchTensor, ReadsEveryDType) {
  for (int i = 0; i <= static_cast<int>(DType::U64); ++i) {
    const auto dtype = static_cast<DType>(i);
    const Read r = read(Py::tensor(dtype, {3}, "0", 1));
    ASSERT_TRUE(r.tensor) << torch_name(dtype);
    EXPECT_EQ(r.tensor->dtype, dtype);
    EXPECT_EQ(r.tensor->storage_bytes, 4 * size_of(dtype));
  }
}

TEST(TorchTensor, ReadsStorageClassesOfEveryAge) {
  const auto with_class = [](const char* module, const char* name) {
    Arguments a;
    a.storage = Py::persistent(
        Py::tuple({"storage", Py::global(module, name), "0", "cuda:3", 24}));
    return read(a.v2()).tensor->dtype;
  };
  EXPECT_EQ(with_class("torch.cuda", "HalfStorage"), DType::F16);
  EXPECT_EQ(with_class("torch.cuda", "FloatStorage"), DType::F32);
  EXPECT_EQ(with_class("torch.storage", "UntypedStorage"), DType::U8);
  EXPECT_EQ(with_class("torch.storage", "TypedStorage"), DType::U8);
  EXPECT_EQ(with_class("torch.storage", "_UntypedStorage"), DType::U8);
}

TEST(TorchTensor, ReadsTorchSizes) {
  Arguments a;
  a.shape = Py::size({2, 3});
  EXPECT_EQ(read(a.v2()).tensor->numel(), 6);
}

TEST(TorchTensor, ReadsParameters) {
  const Py inner = Py::tensor(DType::F32, {2}, "0");
  EXPECT_TRUE(read(Py::parameter(inner)).tensor);
  const Read r = read(
      Py::call("torch._utils", "_rebuild_parameter_with_state",
               {inner, true, Py::ordered_dict(), Py::dict({{"ds_id", 5}})}));
  ASSERT_TRUE(r.tensor && r.tensor->attributes);
  EXPECT_EQ(r.tensor->attributes->find("ds_id")->integer(), 5);
}

TEST(TorchTensor, ReadsAttributes) {
  const Py inner = Py::tensor(DType::F32, {2}, "0");
  Read r = read(Py::tensor_with(inner, {{"ds_id", 5}}));
  ASSERT_TRUE(r.tensor && r.tensor->attributes);
  EXPECT_EQ(r.tensor->attributes->find("ds_id")->integer(), 5);

  const auto with_state = [&](Py state) {
    return read(Py::call(
        "torch._tensor", "_rebuild_from_type_v2",
        {Py::global("torch._utils", "_rebuild_parameter"),
         Py::global("torch.nn.parameter", "Parameter"),
         Py::tuple({inner, true, Py::ordered_dict()}), std::move(state)}));
  };
  r = with_state(Py::tuple({Py::dict({{"ds_id", 6}}), Py::dict()}));
  ASSERT_TRUE(r.tensor && r.tensor->attributes);
  EXPECT_EQ(r.tensor->attributes->find("ds_id")->integer(), 6);
  r = with_state(Py::tuple({nullptr, Py::dict()}));
  EXPECT_FALSE(r.tensor->attributes);
  r = with_state(nullptr);
  EXPECT_FALSE(r.tensor->attributes);
}

TEST(TorchTensor, OtherValuesAreNoTensors) {
  for (const Py& value :
       {Py(), Py(1), Py("x"), Py::dict(), Py::ordered_dict(), Py::size({1}),
        Py::storage(DType::F32, "0", 1), Py::call("torch", "device", {"cpu"}),
        Py::call("torch.serialization", "_get_layout", {"torch.strided"}),
        Py::call("torch._utils", "other", {}),
        Py::object("deepspeed.x", "Scaler", {})}) {
    EXPECT_FALSE(read(value).tensor);
  }
}

TEST(TorchTensor, IsContiguousOnlyInCOrder) {
  const auto contiguous = [](Py::Shape shape, Py::Shape stride) {
    return read(Py::tensor(DType::U8, shape, "0", 0, stride, 1000))
        .tensor->is_contiguous();
  };
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({2, 3}, {3, 1}));
  EXPECT_FALSE(contiguous({2, 3}, {1, 2}));
  EXPECT_FALSE(contiguous({2, 3}, {4, 1}));
  EXPECT_FALSE(contiguous({4}, {0}));
  EXPECT_TRUE(contiguous({1, 3}, {77, 1}));
  EXPECT_TRUE(contiguous({0, 3}, {9, 9}));
}

TEST(TorchTensor, ExtentOfViews) {
  const auto extent = [](Py::Shape shape, Py::Shape stride, int64_t offset) {
    return read(Py::tensor(DType::U8, shape, "0", offset, stride, 1000))
        .tensor->extent();
  };
  EXPECT_EQ(extent({}, {}, 0), 1);
  EXPECT_EQ(extent({2, 3}, {1, 2}, 5), 5 + 1 + 1 + 4);
  EXPECT_EQ(extent({5}, {0}, 9), 10);
  EXPECT_EQ(extent({0}, {1}, 900), 0);
}

TEST(TorchTensor, EmptyTensorsNeedNoStorage) {
  Arguments a;
  a.storage = Py::storage(DType::F32, "0", 0);
  a.shape = Py::tuple({0});
  a.stride = Py::tuple({1});
  a.offset = 12;
  EXPECT_EQ(read(a.v2()).tensor->numel(), 0);
}

TEST(TorchTensor, RefusesViewPastItsStorage) {
  Arguments a;
  a.offset = 4;
  EXPECT_TRUE(read(a.v2()).tensor);
  a.offset = 5;
  expect_refused(a.v2(), ErrorCode::Corrupt,
                 "reaches to byte 44 of storage 7, which has 40");
  a.offset = 0;
  a.stride = Py::tuple({8, 1});
  expect_refused(a.v2(), ErrorCode::Corrupt, "reaches to byte 44");
}

TEST(TorchTensor, RefusesNumbersThatWrap) {
  constexpr int64_t kHuge = INT64_MAX;
  Arguments a;
  a.shape = Py::tuple({kHuge, 3});
  expect_refused(a.v2(), ErrorCode::Corrupt, "exceeds 64 bits");
  a.shape = Py::tuple({3, 3});
  a.stride = Py::tuple({kHuge, kHuge});
  expect_refused(a.v2(), ErrorCode::Corrupt, "exceeds 64 bits");
  a.stride = Py::tuple({kHuge, 1});
  a.shape = Py::tuple({2, 1});
  expect_refused(a.v2(), ErrorCode::Corrupt, "exceeds 64 bits");
  // Strides of 0 make any number of elements out of one.
  a.shape = Py::tuple({kHuge});
  a.stride = Py::tuple({0});
  expect_refused(a.v2(), ErrorCode::Corrupt, "size exceeds 64 bits");
  a = {};
  a.storage = Py::storage(DType::F32, "0", kHuge);
  expect_refused(a.v2(), ErrorCode::Corrupt, "storage's size exceeds");
}

TEST(TorchTensor, RefusesMalformedArguments) {
  Arguments a;
  a.offset = -1;
  expect_refused(a.v2(), ErrorCode::Corrupt, "as a tensor's offset");
  a.offset = "0";
  expect_refused(a.v2(), ErrorCode::Corrupt, "as a tensor's offset");
  a = {};
  a.shape = Py::tuple({2, -3});
  expect_refused(a.v2(), ErrorCode::Corrupt, "non-negative integer as size");
  a.shape = 6;
  expect_refused(a.v2(), ErrorCode::Corrupt, "a tuple as a tensor's size");
  a = {};
  a.stride = Py::tuple({-1, 1});
  expect_refused(a.v2(), ErrorCode::Corrupt, "non-negative integer as stride");
  a.stride = Py::tuple({1});
  expect_refused(a.v2(), ErrorCode::Corrupt, "rank 2 with 1 strides");
  a = {};
  a.storage = "0";
  expect_refused(a.v2(), ErrorCode::Corrupt, "expected a storage");
  expect_refused(Py::call("torch._utils", "_rebuild_tensor_v2", {}),
                 ErrorCode::Corrupt, "6 to 7 arguments");
  expect_refused(Py::call("torch._utils", "_rebuild_tensor_v3", a.list()),
                 ErrorCode::Corrupt, "7 to 8 arguments");
  expect_refused(Py::call("torch._utils", "_rebuild_tensor", a.list()),
                 ErrorCode::Corrupt, "4 to 4 arguments");
  expect_refused(Py::parameter(1), ErrorCode::Corrupt,
                 "a tensor inside a parameter");
  expect_refused(
      Py::call("torch._tensor", "_rebuild_from_type_v2",
               {Py::global("os", "system"), Py::global("torch", "Tensor"),
                Py::tuple(), nullptr}),
      ErrorCode::Corrupt, "a function that rebuilds a tensor");
}

TEST(TorchTensor, RefusesArgumentsThatAreNoTuple) {
  // read_pickle refuses such calls; the function named here is not called.
  expect_refused(Py::call("torch._tensor", "_rebuild_from_type_v2",
                          {Py::global("torch._utils", "_rebuild_tensor_v2"),
                           Py::global("torch", "Tensor"), Py::list(), nullptr}),
                 ErrorCode::Corrupt, "tuple of arguments");
}

TEST(TorchTensor, RefusesMalformedStorages) {
  Arguments a;
  const Py type = Py::global("torch", "FloatStorage");
  const auto with_id = [&](Py::List id) {
    a.storage = Py::persistent(Py::tuple(std::move(id)));
    return a.v2();
  };
  expect_refused(with_id({"storage", type, "0", "cpu"}), ErrorCode::Corrupt,
                 "5 or 6 parts");
  expect_refused(with_id({"storage", "x", "0", "cpu", 9}), ErrorCode::Corrupt,
                 "a class in a storage's id");
  expect_refused(with_id({"storage", type, 0, "cpu", 9}), ErrorCode::Corrupt,
                 "string as a storage's key");
  expect_refused(with_id({"storage", type, "0", "cpu", -9}), ErrorCode::Corrupt,
                 "as a storage's size");
  expect_refused(with_id({"module", type, "0", "cpu", 9}), ErrorCode::Corrupt,
                 "expected a storage");
  expect_refused(
      with_id({"storage", Py::global("os", "FloatStorage"), "0", "cpu", 9}),
      ErrorCode::Unsupported, "storage class os.FloatStorage");
  expect_refused(
      with_id({"storage", type, "0", "cpu", 9, Py::tuple({"v", 0, 1})}),
      ErrorCode::Unsupported, "before 0.4");
  EXPECT_TRUE(read(with_id({"storage", type, "0", "cpu", 9, nullptr})).tensor);
}

TEST(TorchTensor, RefusesDTypesWithoutPlainBytes) {
  for (const char* name :
       {"QInt8Storage", "QUInt8Storage", "QInt32Storage", "QUInt4x2Storage",
        "QUInt2x4Storage", "ComplexDoubleStorage"}) {
    Arguments a;
    a.storage = Py::persistent(
        Py::tuple({"storage", Py::global("torch", name), "0", "cpu", 6}));
    expect_refused(a.v2(), ErrorCode::Unsupported, name);
  }
  Py::List v3 = Arguments().list();
  v3.push_back(Py::global("torch", "complex128"));
  expect_refused(Py::call("torch._utils", "_rebuild_tensor_v3", v3),
                 ErrorCode::Unsupported, "torch.complex128");
  v3.back() = "float32";
  expect_refused(Py::call("torch._utils", "_rebuild_tensor_v3", v3),
                 ErrorCode::Corrupt, "expected a torch dtype");
}

TEST(TorchTensor, RefusesLazyViews) {
  for (const char* kind : {"conj", "neg"}) {
    Py::List v2 = Arguments().list();
    v2.push_back(Py::dict({{kind, true}}));
    expect_refused(Py::call("torch._utils", "_rebuild_tensor_v2", v2),
                   ErrorCode::Unsupported, kind);
    v2.back() = Py::dict({{kind, false}});
    EXPECT_TRUE(
        read(Py::call("torch._utils", "_rebuild_tensor_v2", v2)).tensor);
    Py::List v3 = Arguments().list();
    v3.push_back(Py::global("torch", "float32"));
    v3.push_back(Py::dict({{kind, true}}));
    expect_refused(Py::call("torch._utils", "_rebuild_tensor_v3", v3),
                   ErrorCode::Unsupported, kind);
  }
}

TEST(TorchTensor, RefusesOtherKindsOfTensors) {
  for (const char* name :
       {"_rebuild_qtensor", "_rebuild_sparse_tensor",
        "_rebuild_sparse_csr_tensor", "_rebuild_meta_tensor_no_storage",
        "_rebuild_device_tensor_from_numpy", "_rebuild_wrapper_subclass",
        "_rebuild_nested_tensor"}) {
    expect_refused(Py::call("torch._utils", name, {1, 2}),
                   ErrorCode::Unsupported, name);
  }
  expect_refused(Py::call("torch._tensor", "_rebuild_from_type_v9", {}),
                 ErrorCode::Unsupported, "_rebuild_from_type_v9");
  const Py inner = Py::tensor(DType::F32, {2}, "0");
  expect_refused(
      Py::call("torch._tensor", "_rebuild_from_type_v2",
               {Py::global("torch._utils", "_rebuild_parameter"),
                Py::global("bitsandbytes.nn.modules", "Params4bit"),
                Py::tuple({inner, true, Py::ordered_dict()}), Py::dict()}),
      ErrorCode::Unsupported, "bitsandbytes.nn.modules.Params4bit");
}

TEST(TorchTensor, RefusesATensorInsideItself) {
  Py nested = Py::tensor(DType::F32, {2}, "0");
  for (int i = 0; i < 8; ++i) nested = Py::parameter(nested);
  EXPECT_TRUE(read(nested).tensor);
  expect_refused(Py::parameter(nested), ErrorCode::Corrupt,
                 "wrapped in itself");
}

}  // namespace
}  // namespace zckpt::test
