// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zckpt/checkpoint.h"
#include "zckpt/dtype.h"
#include "zckpt/load.h"

namespace torch::nn {
class Module;
}

namespace zckpt {

// A checkpoint's tensors as at::Tensor: the target zckpt::torch, which links
// libtorch; nothing else of zckpt does.
//
//   const Checkpoint checkpoint = open_for_load("run/checkpoint-500");
//   load_into(*model, checkpoint);
//
// Errors:  Error alone, as everywhere; libtorch's own are reworded.
// Threads: all functions may run concurrently, for different targets.
// Memory:  LoadOptions::memory_bytes beside the tensors that are made, unless
//          said otherwise.

// Every DType has its ScalarType. The other way: Unsupported for those that no
// checkpoint holds (quantised, complex128, bits).
at::ScalarType to_scalar_type(DType dtype);
DType to_dtype(at::ScalarType type);

// Tensors by name, in an order; what named_parameters() gives, too.
using TensorDict = torch::OrderedDict<std::string, at::Tensor>;

// One tensor, whatever its role, on the CPU. `dtype` is what a floating tensor
// is converted to, none: as it is stored; others keep theirs. Pairs that merge
// knows are converted as it does, the rest by libtorch.
// Errors: those of load(); Invalid for a `dtype` that is not floating.
at::Tensor load_tensor(const Checkpoint& checkpoint, const Tensor& tensor,
                       std::optional<at::ScalarType> dtype = std::nullopt,
                       const LoadOptions& options = {});
// The best weight of this name (see Role), which may be an alias.
// Errors: Invalid where there is none.
at::Tensor load_tensor(const Checkpoint& checkpoint, std::string_view name,
                       std::optional<at::ScalarType> dtype = std::nullopt,
                       const LoadOptions& options = {});

// All weights and buffers as a state_dict() lists them, read in one pass.
// Aliases are there under their own names and are the same tensor.
TensorDict load_weights(const Checkpoint& checkpoint,
                        std::optional<at::ScalarType> dtype = std::nullopt,
                        const LoadOptions& options = {});

// Fills tensors that are there, each with the weight of its name, converted to
// its dtype; one tensor may stand under several names of one weight. Autograd
// records nothing.
// Errors:  before anything is read, Invalid for an unknown name, an undefined
//          or meta tensor and two targets over the same memory, Conflict for
//          another shape, Unsupported for a conversion that drops a part of
//          each number (floating to integer, complex to real). Where reading
//          fails, some targets are filled, others not.
// Memory:  targets that are contiguous on the CPU are read in place. All
//          others take a temporary each, one after the other, and 64 MiB.
LoadResult load_into_tensors(const Checkpoint& checkpoint,
                             const TensorDict& targets,
                             const LoadOptions& options = {});

struct NamedTensor {
  std::string name;
  at::Tensor data;
  const Tensor* source = nullptr;  // what it is in the checkpoint
};

// TorchStream hands out whole tensors, one after the other:
//
//   TorchStream stream(checkpoint, {.dtype = DType::BF16});
//   while (const auto next = stream.next()) use(next->name, next->data);
//
// Aliases are not among them. Errors and threads: as TensorStream.
// Memory: that of TensorStream, and the tensor that is handed out.
class TorchStream {
 public:
  // `checkpoint` must outlive the stream.
  TorchStream(const Checkpoint& checkpoint, StreamOptions options = {})
      : stream_(checkpoint, std::move(options)) {}

  // The next tensor, which is the caller's; nothing behind the last, when all
  // CRCs were compared.
  std::optional<NamedTensor> next();
  uint64_t size_bytes() const { return stream_.size_bytes(); }
  LoadResult result() const { return stream_.result(); }

 private:
  TensorStream stream_;
};

struct Mismatch {
  std::string name;  // in the module
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
  DType stored_dtype = DType::F32;
  std::vector<uint64_t> stored_shape;
};

// How a module and a checkpoint fit; names are the module's where it has one.
struct LoadReport {
  std::vector<std::string> missing;     // in the checkpoint
  std::vector<std::string> unexpected;  // weights that the module lacks
  // Another shape, or a conversion that load_into_tensors refuses.
  std::vector<Mismatch> mismatched;
  // Names of one tensor in the module that have different values in the
  // checkpoint: the first is loaded.
  std::vector<std::pair<std::string, std::string>> untied;
  LoadResult read;

  bool fits() const {
    return missing.empty() && unexpected.empty() && mismatched.empty() &&
           untied.empty();
  }
};

// For people: what does not fit, and which names; empty where all does.
std::string to_string(const LoadReport& report);

struct ModuleOptions {
  // Whether it is an error that something does not fit. Without, what fits is
  // loaded.
  bool strict = true;
  // The checkpoint's name for a name of the module; nothing leaves that tensor
  // alone. Empty: the same names.
  std::function<std::optional<std::string>(const std::string&)> name_of;
  LoadOptions load;
};

// Fills the parameters and buffers of a module, whose dtypes and devices stay.
// Tied names count as one: it is enough that the checkpoint has one of them,
// and an alias in the checkpoint stands for its weight.
// Errors:  Conflict where strict and anything does not fit, with what
//          to_string() says of it; the module is unchanged then. Else those of
//          load_into_tensors.
LoadReport load_into(torch::nn::Module& module, const Checkpoint& checkpoint,
                     const ModuleOptions& options = {});

// The report alone: nothing is read, but for tied tensors with two weights in
// the checkpoint, which are compared.
LoadReport compare(const torch::nn::Module& module,
                   const Checkpoint& checkpoint,
                   const ModuleOptions& options = {});

}  // namespace zckpt
