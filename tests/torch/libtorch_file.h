// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>

#include <map>
#include <string>
#include <vector>

namespace zckpt::test {

// A file of torch.save as libtorch's own C++ code reads it.
// Errors: c10::Error.
class LibtorchFile {
 public:
  explicit LibtorchFile(const std::string& path) : reader_(path) {}

  std::vector<std::string> records() { return reader_.getAllRecords(); }
  bool has(const std::string& record) { return reader_.hasRecord(record); }
  std::string bytes(const std::string& record);
  // What data.pkl, or another pickle over the same records, describes. Calls
  // of functions that libtorch does not know become objects.
  c10::IValue unpickle() { return unpickle(bytes("data.pkl")); }
  c10::IValue unpickle(const std::string& pickle);

 private:
  caffe2::serialize::PyTorchStreamReader reader_;
};

// The tensors in nested dicts, lists and tuples, by the path to each:
// "/optimizer_state_dict/state/0/exp_avg". Objects are not looked into.
std::map<std::string, at::Tensor> tensors_in(const c10::IValue& value);

// A path's next part.
std::string path_to(const std::string& path, const std::string& key);

// The elements in C order.
std::string bytes_of(const at::Tensor& tensor);

}  // namespace zckpt::test
