// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/arithmetic.h"
#include "base/text.h"
#include "reader/layout.h"

// What every layout finds in its model file (format.md 2.3): buffers, frozen
// weights, the weights that the model computes with, tied names.

namespace zckpt {
namespace {

// A stage-3 frozen parameter: rank d's model file holds partition d of it.
class FragmentPlacement final : public Placement {
 public:
  FragmentPlacement(std::shared_ptr<const std::vector<const ShardFile*>> ranks,
                    size_t index, uint64_t numel)
      : ranks_(std::move(ranks)),
        index_(index),
        partition_(ceil_div(numel, ranks_->size())) {}

  void extents(uint64_t first, uint64_t numel,
               const ExtentSink& sink) const override {
    while (numel != 0) {
      const ShardFile& rank = *(*ranks_)[first / partition_];
      const FlatVector& vector = rank.vectors->fragments[index_];
      const uint64_t within = first % partition_;
      const uint64_t take = std::min(numel, partition_ - within);
      sink(
          {.source = rank.source,
           .offset = rank.base + vector.offset + within * size_of(vector.dtype),
           .numel = take});
      first += take;
      numel -= take;
    }
  }

 private:
  std::shared_ptr<const std::vector<const ShardFile*>> ranks_;
  size_t index_;
  uint64_t partition_;
};

Finding name_finding(std::string code, Severity severity, std::string message,
                     const std::string& tensor) {
  return {.code = std::move(code),
          .severity = severity,
          .message = std::move(message),
          .tensor = tensor};
}

class ModelContents {
 public:
  ModelContents(std::shared_ptr<const ShardSet> shards,
                const ModelStates& states, Contents& contents)
      : shards_(std::move(shards)), states_(states), contents_(contents) {
    for (const ModuleEntry& entry : states.module) {
      module_[entry.name] = &entry;
    }
    if (states.buffer_names) {
      buffers_.insert(states.buffer_names->begin(), states.buffer_names->end());
    }
    for (size_t i = 0;
         states_.frozen_shapes && i < states_.frozen_shapes->size(); ++i) {
      frozen_index_[(*states_.frozen_shapes)[i].name] = i;
    }
    const ShardFile* model = shards_->leading_model();
    partitioned_ = model != nullptr && model->name.rank.has_value();
  }

  void read() {
    read_frozen();
    for (const auto& [alias, kept] : states_.shared) declare_alias(alias, kept);
    // Places first: an alias may come before the name that it repeats.
    for (const ModuleEntry& entry : states_.module) {
      if (entry.tensor && entry.tensor->numel != 0 &&
          (contents_.find(entry.name, Role::Master) ||
           contents_.find(entry.name, Role::Frozen))) {
        remember_place(*entry.tensor, entry.name);
      }
    }
    for (const ModuleEntry& entry : states_.module) read_entry(entry);
    for (const auto& [alias, kept] : declared_) settle_alias(alias, kept);
    report_absent();
    list_order();
  }

 private:
  void read_frozen() {
    if (!states_.frozen_shapes) return;
    if (partitioned_) {
      read_frozen_fragments();
      return;
    }
    for (size_t i = 0; i < states_.frozen_shapes->size(); ++i) {
      const NamedShape& shape = (*states_.frozen_shapes)[i];
      const auto& tensor = states_.frozen_tensors[i];
      if (!tensor || tensor->numel != shape.numel) {
        contents_.findings.push_back(name_finding(
            "frozen-missing", Severity::Error,
            "expected " + std::to_string(shape.numel) +
                " elements of this frozen weight in frozen_param_fragments, "
                "found " +
                std::to_string(tensor ? tensor->numel : 0),
            shape.name));
        continue;
      }
      if (tensor->shape != shape.shape) {
        contents_.findings.push_back(name_finding(
            "shapes-mismatch", Severity::Error,
            "frozen_param_shapes gives it another shape than the tensor has",
            shape.name));
        continue;
      }
      add_view(shape.name, Role::Frozen, *tensor, shape.shape);
    }
  }

  void read_frozen_fragments() {
    const auto ranks = std::make_shared<std::vector<const ShardFile*>>();
    const uint32_t count = world_size(*shards_);
    for (const ShardFile& file : shards_->files) {
      if (file.name.kind == ShardKind::Model && file.name.rank &&
          *file.name.rank == ranks->size() && ranks->size() < count) {
        ranks->push_back(&file);
      }
    }
    const auto& shapes = *states_.frozen_shapes;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const auto problem = fragment_problem(*ranks, count, i, shapes[i]);
      if (problem) {
        contents_.findings.push_back(name_finding(
            problem->first, Severity::Error, problem->second, shapes[i].name));
        unsound_.insert(shapes[i].name);
        continue;
      }
      contents_.add(
          {.name = shapes[i].name,
           .role = Role::Frozen,
           .dtype = (*ranks)[0]->vectors->fragments[i].dtype,
           .shape = shapes[i].shape,
           .numel = shapes[i].numel},
          std::make_unique<FragmentPlacement>(ranks, i, shapes[i].numel));
    }
  }

  // Code and message of what keeps a frozen weight from being put together.
  std::optional<std::pair<std::string, std::string>> fragment_problem(
      const std::vector<const ShardFile*>& ranks, uint32_t count, size_t i,
      const NamedShape& shape) const {
    if (ranks.size() < count) {
      return {{"frozen-missing", "the model file of rank " +
                                     std::to_string(ranks.size()) +
                                     ", which holds a part of it, is missing"}};
    }
    const uint64_t need = ceil_div(shape.numel, count);
    const VectorTable* seen = nullptr;
    for (const ShardFile* rank : ranks) {
      // Equal tables are one object; a damaged file has none.
      if (rank->vectors && rank->vectors.get() == seen) continue;
      seen = rank->vectors.get();
      if (seen == nullptr || i >= seen->fragments.size()) {
        return {{"frozen-missing", "rank " + std::to_string(*rank->name.rank) +
                                       " holds no part of it"}};
      }
      const FlatVector& vector = seen->fragments[i];
      if (vector.numel != need) {
        return {{"frozen-unrecoverable",
                 "expected " + std::to_string(need) + " elements on rank " +
                     std::to_string(*rank->name.rank) + ", found " +
                     std::to_string(vector.numel) +
                     " (parameters offloaded to NVMe leave a dummy)"}};
      }
      if (rank->model && rank->model->quantized_frozen) {
        return {{"frozen-unrecoverable",
                 "it was quantised (zero_quantized_nontrainable_weights) and "
                 "its scale was not saved"}};
      }
      if (vector.dtype != ranks[0]->vectors->fragments[i].dtype) {
        return {{"frozen-missing", "ranks hold it in different dtypes"}};
      }
    }
    return std::nullopt;
  }

  // A pair of shared_params, kept for settle_alias unless it cannot be true.
  // Old files hold false pairs: all empty stage-3 placeholders once looked
  // shared (DeepSpeed #1896, #3149).
  void declare_alias(const std::string& alias, const std::string& kept) {
    const auto* a = view_in_module(alias);
    const auto* k = view_in_module(kept);
    const bool own_data = contents_.find(alias, Role::Master) ||
                          contents_.find(alias, Role::Frozen) ||
                          buffers_.contains(alias) ||
                          (partitioned_ && a != nullptr && a->numel != 0 &&
                           !is_old_placeholder(*a));
    const bool apart = !partitioned_ && a != nullptr && k != nullptr &&
                       a->numel != 0 && !a->same_place(*k);
    if (alias == kept || own_data || apart || of_another_shape(a, kept)) {
      contents_.findings.push_back(
          name_finding("alias-implausible", Severity::Warning,
                       "shared_params ties it to " + escape(kept) +
                           (own_data ? ", but it has weights of its own"
                                     : ", but they do not share their data") +
                           "; the pair was ignored",
                       alias));
      return;
    }
    declared_.emplace_back(alias, kept);
    aliased_.insert(alias);
  }

  void read_entry(const ModuleEntry& entry) {
    const std::string& name = entry.name;
    if (!entry.tensor) {
      contents_.notes.push_back("the module entry " + escape(name) +
                                " is no tensor and is left out");
      return;
    }
    const TensorView& view = *entry.tensor;
    if (const auto master = contents_.find(name, Role::Master)) {
      // Stage 3 leaves placeholders, which up to 0.5.x had one element.
      if (!partitioned_) {
        add_copy(name, view, contents_.tensors()[*master].shape);
      }
    } else if (buffers_.contains(name)) {
      add_view(name, Role::Buffer, view, view.shape);
    } else if (const auto frozen = contents_.find(name, Role::Frozen)) {
      // Stage 2 keeps frozen weights twice; as a rule both are one storage.
      if (!partitioned_ && view.numel != 0 && !is_frozen_view(name, view)) {
        add_copy(name, view, contents_.tensors()[*frozen].shape);
      }
    } else if (!aliased_.contains(name)) {
      read_unlisted(name, view);
    }
  }

  // The model's own copy of a trainable weight: of the same shape, or one of
  // the two files is of another model.
  void add_copy(const std::string& name, const TensorView& view,
                const std::vector<uint64_t>& shape) {
    if (view.shape == shape) {
      if (view.numel != 0) add_view(name, Role::Model, view, view.shape);
      return;
    }
    contents_.findings.push_back(name_finding(
        "shapes-mismatch", Severity::Error,
        "expected the shape that param_shapes gives in module too, found " +
            count_of(view.numel, "element") + " of another shape",
        name));
  }

  // Whether an alias that holds data has another shape than what it repeats.
  bool of_another_shape(const TensorView* alias,
                        const std::string& kept) const {
    if (partitioned_ || alias == nullptr || alias->numel == 0) return false;
    const auto i = contents_.find(kept);
    return i && contents_.tensors()[*i].shape != alias->shape;
  }

  // In the module, but in none of the lists.
  void read_unlisted(const std::string& name, const TensorView& view) {
    if (unsound_.contains(name)) return;  // said already
    if (partitioned_ && (view.numel == 0 || is_old_placeholder(view))) {
      contents_.findings.push_back(name_finding(
          "name-unaccounted", Severity::Error,
          "its name is in module, but no file holds its data (frozen weights "
          "are missing from stage-3 checkpoints before DeepSpeed 0.9.1, tied "
          "names before 0.9.2); --exclude merges the rest",
          name));
      return;
    }
    // Tied names that shared_params should list: files of stages 1 and 2
    // saved before 0.10.1 lack them (format.md 2.3).
    if (view.numel != 0 && !partitioned_) {
      const auto known = places_.find(place_of(view));
      if (known != places_.end()) {
        contents_.aliases.emplace_back(name, known->second);
        aliased_.insert(name);
        return;
      }
    }
    // Stage 1 keeps frozen weights here and nowhere else; so does any stage
    // with weights that DeepSpeed does not know. Stage 0 knows none.
    const bool all_here = !states_.groups.has_value();
    add_view(name, all_here ? Role::Model : Role::Frozen, view, view.shape);
    if (view.numel != 0) remember_place(view, name);
  }

  // Before 0.6.0, when param_shapes moved into this file, placeholders were
  // of shape (1,): not to be told from one real element.
  bool is_old_placeholder(const TensorView& view) const {
    return view.shape == std::vector<uint64_t>{1} &&
           !states_.file->root().find("param_shapes");
  }

  // Names that other lists promise and module lacks.
  void report_absent() {
    for (const std::string& name : buffers_) {
      if (view_in_module(name) != nullptr) continue;
      contents_.findings.push_back(name_finding(
          "name-unaccounted", Severity::Error,
          "buffer_names lists it, but module does not hold it; --exclude "
          "merges the rest",
          name));
    }
    if (partitioned_ || states_.module.empty()) return;
    for (const Tensor& tensor : contents_.tensors()) {
      if (tensor.role != Role::Master || module_.contains(tensor.name)) {
        continue;
      }
      contents_.findings.push_back(name_finding(
          "shapes-mismatch", Severity::Warning,
          "param_shapes lists it, but module, which holds a copy of every "
          "weight, does not: its master could not be compared with anything",
          tensor.name));
    }
  }

  bool is_frozen_view(const std::string& name, const TensorView& view) const {
    const auto it = frozen_index_.find(name);
    if (it == frozen_index_.end()) return false;
    const auto& tensor = states_.frozen_tensors[it->second];
    return tensor && tensor->same_place(view);
  }

  // Decides what a declared pair means once every name is known.
  void settle_alias(const std::string& alias, const std::string& kept) {
    if (contents_.find(kept)) {
      contents_.aliases.emplace_back(alias, kept);
      return;
    }
    const TensorView* view = view_in_module(alias);
    if (view != nullptr && view->numel != 0 && !partitioned_) {
      // Its data may be known under a third name.
      const auto known = places_.find(place_of(*view));
      if (known != places_.end() && known->second != alias) {
        contents_.aliases.emplace_back(alias, known->second);
        return;
      }
    }
    if (view != nullptr && view->numel != 0) {
      add_view(alias, Role::Frozen, *view, view->shape);
      aliased_.erase(alias);
      return;
    }
    contents_.findings.push_back(
        name_finding("alias-dangling", Severity::Warning,
                     "it shares its data with " + escape(kept) +
                         ", which this save does not hold",
                     alias));
    lost_.insert(alias);
  }

  void list_order() {
    std::set<std::string> listed;
    for (const ModuleEntry& entry : states_.module) {
      if (lost_.contains(entry.name)) continue;
      if (!aliased_.contains(entry.name) && !contents_.find(entry.name)) {
        continue;
      }
      if (listed.insert(entry.name).second) {
        contents_.module_order.push_back(entry.name);
      }
    }
    for (const Tensor& tensor : contents_.tensors()) {
      if (tensor.role != Role::State && listed.insert(tensor.name).second) {
        contents_.module_order.push_back(tensor.name);
      }
    }
  }

  void add_view(const std::string& name, Role role, const TensorView& view,
                const std::vector<uint64_t>& shape) {
    contents_.add({.name = name,
                   .role = role,
                   .dtype = view.dtype,
                   .shape = shape,
                   .numel = view.numel},
                  place_view(states_.source, view));
  }

  const TensorView* view_in_module(const std::string& name) const {
    const auto it = module_.find(name);
    if (it == module_.end() || !it->second->tensor) return nullptr;
    return &*it->second->tensor;
  }

  using Place =
      std::tuple<uint64_t, std::vector<uint64_t>, std::vector<uint64_t>, DType>;
  static Place place_of(const TensorView& view) {
    return {view.offset, view.shape, view.stride, view.dtype};
  }
  void remember_place(const TensorView& view, const std::string& name) {
    if (!partitioned_) places_.try_emplace(place_of(view), name);
  }

  std::shared_ptr<const ShardSet> shards_;
  const ModelStates& states_;
  Contents& contents_;
  bool partitioned_ = false;  // stage 3: weights in module are placeholders
  std::map<std::string, const ModuleEntry*> module_;
  std::map<std::string, size_t> frozen_index_;  // into frozen_shapes
  std::set<std::string> buffers_;
  std::vector<std::pair<std::string, std::string>> declared_;
  std::set<std::string> aliased_;
  std::set<std::string> lost_;
  std::set<std::string> unsound_;  // frozen weights that cannot be had
  std::map<Place, std::string> places_;
};

}  // namespace

void read_model_contents(const std::shared_ptr<const ShardSet>& shards,
                         const ModelStates& states, Contents& contents) {
  ModelContents(shards, states, contents).read();
}

}  // namespace zckpt
