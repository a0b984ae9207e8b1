// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstring>
#include <span>
#include <unordered_map>

#include "torch/fill.h"
#include "torch/names.h"
#include "zckpt/error.h"
#include "zckpt/torch.h"

namespace zckpt {
namespace {

void check_wanted(std::optional<at::ScalarType> dtype) {
  if (dtype && !is_floating(to_dtype(*dtype))) {
    throw Error(ErrorCode::Invalid,
                std::string("weights are converted to floating types, not ") +
                    c10::toString(*dtype));
  }
}

at::ScalarType type_for(const Tensor& tensor,
                        std::optional<at::ScalarType> dtype) {
  return dtype && is_floating(tensor.dtype) ? *dtype
                                            : to_scalar_type(tensor.dtype);
}

void copy(const StreamPiece& piece, const at::Tensor& whole) {
  if (piece.bytes.empty()) return;
  std::memcpy(static_cast<std::byte*>(whole.mutable_data_ptr()) +
                  piece.first * size_of(piece.dtype),
              piece.bytes.data(), piece.bytes.size());
}

}  // namespace

at::Tensor load_tensor(const Checkpoint& checkpoint, const Tensor& tensor,
                       std::optional<at::ScalarType> dtype,
                       const LoadOptions& options) {
  check_wanted(dtype);
  const Fill one{.tensor = &tensor,
                 .target = make_tensor(tensor, type_for(tensor, dtype)),
                 .name = tensor.name};
  fill(checkpoint, {&one, 1}, options);
  return one.target;
}

at::Tensor load_tensor(const Checkpoint& checkpoint, std::string_view name,
                       std::optional<at::ScalarType> dtype,
                       const LoadOptions& options) {
  const Tensor* tensor = checkpoint.find(name);
  for (const auto& [alias, kept] : checkpoint.facts().aliases) {
    if (alias != name) continue;
    const Tensor* found = checkpoint.find(kept);
    if (found != nullptr) tensor = found;
  }
  if (tensor == nullptr || tensor->role == Role::State) {
    throw Error(ErrorCode::Invalid, "the checkpoint has no weight of this name",
                {.tensor = std::string(name)});
  }
  return load_tensor(checkpoint, *tensor, dtype, options);
}

TensorDict load_weights(const Checkpoint& checkpoint,
                        std::optional<at::ScalarType> dtype,
                        const LoadOptions& options) {
  check_wanted(dtype);
  const WeightNames names(checkpoint);
  TensorDict weights;
  std::unordered_map<const Tensor*, at::Tensor> made;
  std::vector<Fill> fills;
  for (const auto& [name, tensor] : names.in_order()) {
    at::Tensor& target = made[tensor];
    if (!target.defined()) {
      target = make_tensor(*tensor, type_for(*tensor, dtype));
      fills.push_back(
          {.tensor = tensor, .target = target, .name = tensor->name});
    }
    weights.insert(std::string(name), target);
  }
  fill(checkpoint, fills, options);
  return weights;
}

LoadResult load_into_tensors(const Checkpoint& checkpoint,
                             const TensorDict& targets,
                             const LoadOptions& options) {
  const WeightNames names(checkpoint);
  std::vector<Fill> fills;
  for (const auto& item : targets) {
    const Tensor* tensor = names.find(item.key());
    if (tensor == nullptr) {
      throw Error(ErrorCode::Invalid,
                  "the checkpoint has no weight of this name",
                  {.tensor = item.key()});
    }
    fills.push_back(
        {.tensor = tensor, .target = item.value(), .name = item.key()});
  }
  return fill(checkpoint, fills, options);
}

std::optional<NamedTensor> TorchStream::next() {
  std::optional<StreamPiece> piece = stream_.next();
  if (!piece) return std::nullopt;
  const Tensor& tensor = *piece->tensor;
  NamedTensor whole{.name = tensor.name,
                    .data = make_tensor(tensor, to_scalar_type(piece->dtype)),
                    .source = &tensor};
  copy(*piece, whole.data);
  for (uint64_t have = piece->numel; have < tensor.numel;
       have += piece->numel) {
    piece = stream_.next();
    if (!piece || piece->tensor != &tensor || piece->first != have) {
      throw Error(ErrorCode::Internal, "a stream left out part of a tensor",
                  {.tensor = tensor.name});
    }
    copy(*piece, whole.data);
  }
  return whole;
}

}  // namespace zckpt
