// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/adapter_fit.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

bool lacks_prefix(const Model& model, const std::string& prefix) {
  const auto& tensors = model.tensors();
  return std::none_of(tensors.begin(), tensors.end(),
                      [&](const NamedTensor& tensor) {
                        return tensor.name.starts_with(prefix);
                      });
}

class FitChecker {
 public:
  FitChecker(const Adapter& adapter, const AdapterPlace& place, Model& model)
      : adapter_(adapter), place_(place), model_(model) {}

  void check(std::vector<std::string>& notes) const {
    check_names();
    check_saved_modules();
    note_lost_factors(notes);
  }

 private:
  // All names first, so that a refusal can say how many have no place.
  void check_names() const {
    const AdapterTensor* lost = nullptr;
    size_t count = 0;
    for (const AdapterTensor& tensor : adapter_.tensors) {
      if (find_weight(tensor, place_, model_) != nullptr) continue;
      if (lost == nullptr) lost = &tensor;
      ++count;
    }
    if (lost == nullptr) return;
    const bool bias = lost->part == AdapterPart::BiasOfB;
    throw Error(
        ErrorCode::Corrupt,
        (bias ? "the base model has no bias here to add it to"
         : count == adapter_.tensors.size()
             ? "none of the adapter's " + count_of(count, "tensor") +
                   " has a place in the base model"
             : std::to_string(count) + " of the adapter's " +
                   count_of(adapter_.tensors.size(), "tensor") +
                   " have no place in the base model") +
            "; the nearest names there: " +
            model_.nearest(lost->part == AdapterPart::Replacement
                               ? lost->target
                               : lost->target + (bias ? ".bias" : ".weight")),
        {.file = adapter_.label, .tensor = adapter_.stored(*lost).name});
  }

  // A save that loses a module (ungathered, under ZeRO-3) would leave the
  // base's in its place.
  void check_saved_modules() const {
    for (const std::string& saved : adapter_.config.modules_to_save) {
      for (const NamedTensor& weight : model_.tensors()) {
        if (!is_in_module(weight.name, saved)) continue;
        const auto names = model_.tied_with(weight.name);
        const bool is_there = std::any_of(
            adapter_.tensors.begin(), adapter_.tensors.end(),
            [&](const AdapterTensor& tensor) {
              if (tensor.part != AdapterPart::Replacement) return false;
              const NamedTensor* target = find_weight(tensor, place_, model_);
              return std::find(names.begin(), names.end(), target->name) !=
                     names.end();
            });
        if (is_there) continue;
        throw Error(ErrorCode::Corrupt,
                    "modules_to_save lists " + escape(saved) +
                        ", and the adapter does not hold it: it was saved "
                        "incomplete",
                    {.file = adapter_.label, .tensor = weight.name});
      }
    }
  }

  // Whether a weight belongs to the module that ends with `name`.
  static bool is_in_module(const std::string& weight, const std::string& name) {
    const std::string dotted = "." + weight;
    return dotted.find("." + name + ".") != std::string::npos;
  }

  void note_lost_factors(std::vector<std::string>& notes) const {
    const AdapterConfig& config = adapter_.config;
    if (config.target_modules.empty() && !config.target_pattern) return;
    if (config.target_pattern == "all-linear") return;
    std::set<std::string> adapted;
    for (const AdapterTensor& tensor : adapter_.tensors) {
      if (tensor.part == AdapterPart::A)
        adapted.insert(find_weight(tensor, place_, model_)->name);
    }
    std::vector<std::string> lost;
    constexpr std::string_view kWeight = ".weight";
    for (const NamedTensor& weight : model_.tensors()) {
      if (weight.shape.size() != 2 || !weight.name.ends_with(kWeight) ||
          adapted.contains(weight.name) ||
          model_.replaced_by.contains(weight.name)) {
        continue;
      }
      const std::string module =
          weight.name.substr(0, weight.name.size() - kWeight.size());
      if (config.targets(module)) lost.push_back(module);
    }
    if (lost.empty()) return;
    notes.push_back("target_modules of the adapter " + escape(adapter_.label) +
                    " speaks of " + count_of(lost.size(), "module") +
                    " that it has no factors for, such as " +
                    escape(lost.front()) +
                    ": was it saved whole? They stay as in the base model");
  }

  const Adapter& adapter_;
  const AdapterPlace& place_;
  Model& model_;
};

}  // namespace

NamedTensor* find_weight(const AdapterTensor& tensor, const AdapterPlace& place,
                         Model& model) {
  const bool is_weight = tensor.part == AdapterPart::Replacement;
  const char* end = is_weight                             ? ""
                    : tensor.part == AdapterPart::BiasOfB ? ".bias"
                                                          : ".weight";
  const std::string name = tensor.target + end;
  if (NamedTensor* found = model.find(name)) return found;
  if (place.convert) {
    const std::string converted = place.convert(name);
    if (NamedTensor* found = model.find(converted)) return found;
  }
  // Files of some models lack the name that the class puts before its parts
  // (gpt2's "h.0..." for "transformer.h.0..."), which transformers adds.
  const size_t dot = name.find('.');
  if (dot == std::string::npos ||
      !lacks_prefix(model, name.substr(0, dot + 1))) {
    return nullptr;
  }
  return model.find(name.substr(dot + 1));
}

void check_fit(const Adapter& adapter, const AdapterPlace& place, Model& model,
               std::vector<std::string>& notes) {
  FitChecker(adapter, place, model).check(notes);
}

}  // namespace zckpt
