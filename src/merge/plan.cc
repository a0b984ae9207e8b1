// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "merge/plan_files.h"
#include "zckpt/error.h"
#include "zckpt/merge.h"

namespace zckpt {
namespace {

bool matches_any(const std::vector<std::string>& globs, std::string_view name) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    return glob_match(glob, name);
  });
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const MergeOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  Plan plan() {
    plan_.dtype = options_.dtype;
    select();
    check_patterns();
    if (selected_.empty()) {
      throw Error(ErrorCode::Invalid, "no tensor is left to write");
    }
    plan_files(selected_, options_, model_stem(options_.format), plan_);
    return std::move(plan_);
  }

 private:
  // Whether --include, --exclude and --exclude-frozen let a name through.
  bool wanted(const std::string& name, Role role) const {
    if (options_.exclude_frozen && role == Role::Frozen) return false;
    return wants_name(options_, name);
  }

  std::vector<std::string> names_in_order() const {
    const CheckpointFacts& facts = checkpoint_.facts();
    if (options_.order == TensorOrder::Module) return facts.module_order;
    // As zero_to_fp32 lists them: buffers, frozen weights, trainable ones in
    // flat-buffer order, tied names last.
    std::vector<std::string> names;
    std::set<std::string> listed;
    for (const Role role :
         {Role::Buffer, Role::Frozen, Role::Master, Role::Model}) {
      for (const Tensor& tensor : checkpoint_.tensors()) {
        if (tensor.role == role && listed.insert(tensor.name).second) {
          names.push_back(tensor.name);
        }
      }
    }
    for (const auto& [alias, kept] : facts.aliases) names.push_back(alias);
    return names;
  }

  void select() {
    std::map<std::string, std::string> kept_of;
    for (const auto& [alias, kept] : checkpoint_.facts().aliases) {
      kept_of[alias] = kept;
    }
    for (const std::string& name : names_in_order()) {
      const auto alias = kept_of.find(name);
      const std::string& data = alias == kept_of.end() ? name : alias->second;
      const Tensor* tensor = checkpoint_.find(data);
      if (tensor == nullptr || !wanted(name, tensor->role)) continue;
      const bool kept_is_written =
          alias != kept_of.end() && wanted(data, tensor->role);
      if (kept_is_written && options_.aliases == Aliases::Drop) {
        plan_.aliases.emplace_back(output_name(name), output_name(data));
        add_name(plan_.aliases.back().first);
        continue;
      }
      add(output_name(name), *tensor);
    }
  }

  void add_name(const std::string& name) {
    if (names_.insert(name).second) return;
    throw Error(ErrorCode::Conflict,
                "two tensors would get this name; choose another "
                "--strip-prefix",
                {.tensor = name});
  }

  void add(std::string name, const Tensor& tensor) {
    if (name.empty()) {
      throw Error(ErrorCode::Invalid,
                  "nothing would be left of this name; choose another "
                  "--strip-prefix",
                  {.tensor = tensor.name});
    }
    add_name(name);
    const auto index =
        static_cast<uint32_t>(&tensor - checkpoint_.tensors().data());
    selected_.push_back(whole_tensor(checkpoint_, index, std::move(name)));
  }

  std::string output_name(const std::string& name) {
    if (options_.strip_prefix.empty() ||
        !name.starts_with(options_.strip_prefix)) {
      return name;
    }
    stripped_ = true;
    return name.substr(options_.strip_prefix.size());
  }

  // A pattern that matches nothing is a typing error that would otherwise
  // show only in what is missing.
  void check_patterns() const {
    for (const auto* globs : {&options_.include, &options_.exclude}) {
      for (const std::string& glob : *globs) {
        const auto& names = checkpoint_.facts().module_order;
        if (std::none_of(names.begin(), names.end(), [&](const auto& name) {
              return glob_match(glob, name);
            })) {
          throw Error(ErrorCode::Invalid,
                      "no tensor name matches " + escape(glob));
        }
      }
    }
    if (!options_.strip_prefix.empty() && !stripped_) {
      throw Error(ErrorCode::Invalid, "no tensor name begins with " +
                                          escape(options_.strip_prefix));
    }
  }

  const Checkpoint& checkpoint_;
  const MergeOptions& options_;
  Plan plan_;
  std::vector<NamedTensor> selected_;
  std::set<std::string> names_;
  bool stripped_ = false;
};

}  // namespace

bool wants_name(const MergeOptions& options, std::string_view name) {
  return (options.include.empty() || matches_any(options.include, name)) &&
         !matches_any(options.exclude, name);
}

Plan plan_merge(const Checkpoint& checkpoint, const MergeOptions& options) {
  return Planner(checkpoint, options).plan();
}

}  // namespace zckpt
