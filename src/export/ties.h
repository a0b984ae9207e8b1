// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "export/config_file.h"
#include "lora/model.h"
#include "zckpt/checkpoint.h"
#include "zckpt/lora.h"

namespace zckpt {

// Makes the output head a tensor of its own beside the input embedding, tied to
// it, where the config ties them, or says nothing and the files hold no head:
// what changes one side then leaves the other alone.
void add_configured_tie(const ConfigFile& config, Model& model);

// Errors: Unsupported where an adapter changed the input embedding and it
// cannot be told whether an output head is the same weight.
void refuse_unknown_tie(const ConfigFile& config, const LoraPlan& plan,
                        const Model& model);

// Decides every tie once all is merged: sides that are equal in the output's
// dtype (none: as stored) are written once where the config ties them; sides
// that differ are both written, and the config says so. model.ties are then
// those whose alias is left out.
// Errors: Unsupported where sides differ that no config can untie; Io.
void settle_ties(const Checkpoint& checkpoint, const LoraPlan& plan,
                 std::optional<DType> dtype, const StopToken* stop,
                 ConfigFile& config, Model& model,
                 std::vector<std::string>& notes);

// False where embedding and head have different numbers of rows.
bool vocabulary_sides_agree(const Model& model);
// Errors: Corrupt where they do not agree.
void check_vocabulary_sides(const Model& model);

// Makes the config's vocab_size that of the embedding.
// Errors: Corrupt, with both numbers, where the tokenizer, of `tokenizer_size`
//         ids, has more than the embedding has rows.
void settle_vocabulary(std::optional<uint64_t> tokenizer_size,
                       const Model& model, ConfigFile& config,
                       std::vector<std::string>& notes);

}  // namespace zckpt
