// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/module.h>

#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "torch/fill.h"
#include "torch/names.h"
#include "zckpt/error.h"
#include "zckpt/torch.h"

namespace zckpt {
namespace {

// Two tensors with the same place are one, however they came to share it.
using Place = std::tuple<const void*, int64_t, at::ScalarType,
                         std::vector<int64_t>, std::vector<int64_t>>;

Place place_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) {
    return {tensor.unsafeGetTensorImpl(), 0, {}, {}, {}};
  }
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(),
          tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
}

struct Member {
  std::string name;
  at::Tensor target;
  const Tensor* tensor = nullptr;  // none: missing
};

class Matcher {
 public:
  Matcher(const torch::nn::Module& module, const Checkpoint& checkpoint,
          const ModuleOptions& options)
      : checkpoint_(checkpoint), options_(options), names_(checkpoint) {
    for (const auto& item : module.named_parameters()) add(item);
    for (const auto& item : module.named_buffers()) add(item);
    for (const Member& member : members_) tied_[place_of(member.target)];
    for (const Member& member : members_) match(member);
    for (const Member& member : members_) {
      if (member.tensor == nullptr && !tied_.at(place_of(member.target))) {
        report_.missing.push_back(member.name);
      }
    }
    for (const auto& [name, tensor] : names_.in_order()) {
      if (!used_.contains(tensor)) report_.unexpected.emplace_back(name);
    }
  }

  const std::vector<Fill>& fills() const { return fills_; }
  LoadReport& report() { return report_; }

 private:
  void add(const TensorDict::Item& item) {
    std::optional<std::string> name = item.key();
    if (options_.name_of) name = options_.name_of(item.key());
    if (!name || !item.value().defined()) return;
    members_.push_back({.name = item.key(),
                        .target = item.value(),
                        .tensor = names_.find(*name)});
  }

  void match(const Member& member) {
    if (member.tensor == nullptr) return;
    used_.insert(member.tensor);
    const Member*& first = tied_.at(place_of(member.target));
    if (!has_shape_of(member.target, *member.tensor) ||
        !converts(member.tensor->dtype, member.target.scalar_type())) {
      report_.mismatched.push_back({.name = member.name,
                                    .dtype = member.target.scalar_type(),
                                    .shape = member.target.sizes().vec(),
                                    .stored_dtype = member.tensor->dtype,
                                    .stored_shape = member.tensor->shape});
      return;
    }
    if (first == nullptr) {
      first = &member;
      fills_.push_back({.tensor = member.tensor,
                        .target = member.target,
                        .name = member.name});
    } else if (!same_values(*first->tensor, *member.tensor)) {
      report_.untied.emplace_back(first->name, member.name);
    }
  }

  // Some writers store both names of a tied weight.
  bool same_values(const Tensor& a, const Tensor& b) const {
    if (&a == &b) return true;
    if (a.dtype != b.dtype) return false;
    const at::Tensor values_a = load_tensor(checkpoint_, a, {}, options_.load);
    const at::Tensor values_b = load_tensor(checkpoint_, b, {}, options_.load);
    return a.numel == 0 ||
           std::memcmp(values_a.const_data_ptr(), values_b.const_data_ptr(),
                       values_a.nbytes()) == 0;
  }

  const Checkpoint& checkpoint_;
  const ModuleOptions& options_;
  const WeightNames names_;
  std::vector<Member> members_;
  std::map<Place, const Member*> tied_;  // the one that is loaded
  std::set<const Tensor*> used_;
  std::vector<Fill> fills_;
  LoadReport report_;
};

constexpr size_t kListed = 20;

// "2 names of the module missing from the checkpoint: a, b"
template <typename Items, typename Describe>
void list(std::string& text, std::string_view what, const Items& items,
          Describe describe) {
  if (items.empty()) return;
  if (!text.empty()) text += "; ";
  text += std::to_string(items.size());
  text += items.size() == 1 ? " name " : " names ";
  text += what;
  text += ": ";
  size_t count = 0;
  for (const auto& item : items) {
    if (count == kListed) {
      text += ", and " + std::to_string(items.size() - count) + " more";
      break;
    }
    if (count++ > 0) text += ", ";
    text += describe(item);
  }
}

template <typename Shape>
std::string form(std::string_view dtype, const Shape& shape) {
  std::string text(dtype);
  text += " [";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

// A module may hold types that no checkpoint does.
std::string type_name(at::ScalarType type) {
  try {
    return std::string(short_name(to_dtype(type)));
  } catch (const Error&) {
    return c10::toString(type);
  }
}

std::string describe(const Mismatch& mismatch) {
  return escape(mismatch.name) + " (" +
         form(type_name(mismatch.dtype), mismatch.shape) + " in the module, " +
         form(short_name(mismatch.stored_dtype), mismatch.stored_shape) +
         " in the checkpoint)";
}

}  // namespace

std::string to_string(const LoadReport& report) {
  std::string text;
  list(text, "of the module missing from the checkpoint", report.missing,
       [](const std::string& name) { return escape(name); });
  list(text, "of the checkpoint unknown to the module", report.unexpected,
       [](const std::string& name) { return escape(name); });
  list(text, "with another shape or kind of numbers", report.mismatched,
       describe);
  list(text, "tied in the module but with other values in the checkpoint",
       report.untied, [](const auto& names) {
         return escape(names.second) + " (tied to " + escape(names.first) + ")";
       });
  return text;
}

LoadReport load_into(torch::nn::Module& module, const Checkpoint& checkpoint,
                     const ModuleOptions& options) {
  return with_own_errors([&] {
    Matcher matcher(module, checkpoint, options);
    LoadReport& report = matcher.report();
    if (options.strict && !report.fits()) {
      throw Error(
          ErrorCode::Conflict,
          "the checkpoint does not fit the module: " + to_string(report));
    }
    report.read = fill(checkpoint, matcher.fills(), options.load);
    return std::move(report);
  });
}

LoadReport compare(const torch::nn::Module& module,
                   const Checkpoint& checkpoint, const ModuleOptions& options) {
  return with_own_errors(
      [&] { return std::move(Matcher(module, checkpoint, options).report()); });
}

}  // namespace zckpt
