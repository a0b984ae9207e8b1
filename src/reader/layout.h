// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reader/model_states.h"
#include "reader/shards.h"
#include "zckpt/checkpoint.h"

namespace zckpt {

// Placement says where the elements of one tensor lie. It computes: nothing
// stores parameters x ranks.
class Placement {
 public:
  virtual ~Placement() = default;
  // Extents of elements [first, first + numel), in order.
  virtual void extents(uint64_t first, uint64_t numel,
                       const ExtentSink& sink) const = 0;
};

// Contents is what a layout yields: tensors and where each of them lies.
class Contents {
 public:
  void add(Tensor tensor, std::unique_ptr<const Placement> placement);
  // One that is not found by its name.
  void append(Tensor tensor, std::unique_ptr<const Placement> placement);
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Placement& placement(size_t i) const { return *placements_[i]; }
  // Index of the tensor with this name and role.
  std::optional<size_t> find(std::string_view name, Role role,
                             std::string_view state = {}) const;
  // The best value of a name (see Role); States do not count.
  std::optional<size_t> find(std::string_view name) const;

  std::vector<std::pair<std::string, std::string>> aliases;
  std::vector<std::string> module_order;
  std::vector<std::string> notes;
  std::vector<Finding> findings;  // of the area "names"

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<const Placement>> placements_;
  // name -> indices; the names live in tensors_' strings, hence the copy.
  std::unordered_map<std::string, std::vector<uint32_t>> by_name_;
};

// One way in which DeepSpeed lays weights out over files. A new layout is a
// new file with one of these, and a row in layouts().
struct Layout {
  std::string_view name;
  bool (*fits)(const ShardSet& shards);
  // Adds masters and optimizer states. Errors: Corrupt where shards disagree
  // or fall short.
  void (*read)(const std::shared_ptr<const ShardSet>& shards,
               const ModelStates& states, Contents& contents);
};

const Layout& zero3_layout();
const Layout& zero12_layout();
const Layout& legacy_stage1_layout();
const Layout& stage0_layout();
const Layout& model_only_layout();

// The layout of these shards. Errors: Unsupported for one that is not read
// yet, by its name (MoE, pipeline, AutoTP, MiCS, AutoEP, ...).
const Layout& choose_layout(const ShardSet& shards);

// Why these shards cannot be read yet, or nothing.
std::optional<std::string> unsupported_layout(const ShardSet& shards);

// The optimizer shards by rank, 0 to N - 1. Errors: Corrupt where one is
// missing or unreadable.
std::vector<const ShardFile*> ranked_optim(const ShardSet& shards);

// N: the number of ranks that the shards were cut for.
uint32_t world_size(const ShardSet& shards);

// A strided view of one storage (format.md 7.5).
std::unique_ptr<const Placement> place_view(uint32_t source,
                                            const TensorView& view);

// Adds what every layout has: frozen weights, buffers, the model's own copies,
// aliases and the module's order.
void read_model_contents(const std::shared_ptr<const ShardSet>& shards,
                         const ModelStates& states, Contents& contents);

// Whether a folder has files of weights by the names that transformers uses.
bool has_weights(const std::string& folder);
// Contents of a folder of Hugging Face weights, safetensors or .bin.
Contents read_weights_folder(const std::string& folder, SourceSet& sources);
// The same of one file.
Contents read_weights_file(const std::string& folder, const std::string& name,
                           SourceSet& sources);

}  // namespace zckpt
