// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora/model.h"
#include "zckpt/checkpoint.h"

namespace zckpt {

// A model as its files or shards give it. Tensors that the save left out, or
// holds quantised, stand in their places without runs.
struct SourceModel {
  Model model;
  std::vector<std::string> missing;  // their names
  bool quantized = false;            // some are, in the frozen weights
  // The save left frozen weights out and does not even name them.
  bool partial = false;
  std::vector<std::string> foreign;  // names that the base does not have
};

// The tensors of `checkpoint` under the model's own names: prefixes of
// engines and of PEFT taken off, adapters left out. `first_tensor` is the
// number that its first tensor has in the joined checkpoint.
// Errors: Corrupt where two tensors get one name.
SourceModel read_source_model(const Checkpoint& checkpoint,
                              uint32_t first_tensor,
                              std::vector<std::string>& notes);

// Takes "model." off all names where a trainer's own module put it there
// (Lightning): where the names then are the base's, or, without a base, where
// what is left can only be a model.
// Returns whether it did.
bool strip_module_prefix(const Model* base, SourceModel& source);

// Fills what is missing from `base`. Errors: Corrupt where the two are not one
// model: shapes differ, or either lacks what the other has.
void fill_from_base(const Model& base, const std::string& base_folder,
                    SourceModel& source, std::vector<std::string>& notes);

// Makes each alias of model.ties a tensor of its own that takes the same
// elements. Before that, aliases are no tensors.
void add_tied_copies(Model& model);

// The input embedding and the output head among a model's names; empty where
// there is none.
std::string embedding_name(const Model& model);
std::string head_name(const Model& model);
// What the head would be called beside this embedding.
std::string head_beside(const std::string& embedding);

}  // namespace zckpt
