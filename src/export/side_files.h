// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zckpt/export.h"

namespace zckpt {

// The files beside the weights that a loader needs, chosen from `folders`, the
// one nearest to the training first: tokenizer files all from one folder, the
// rest each from the first that has it, Python code where `remote_code` or the
// tokenizer's config asks for it. config.json is not among them.
std::vector<SideFile> choose_side_files(const std::vector<std::string>& folders,
                                        bool remote_code,
                                        std::vector<std::string>& notes);

// The first of `folders` with a config.json; empty where none has one.
std::string config_folder(const std::vector<std::string>& folders);

// One more than the highest id that a tokenizer in `folder` gives; nothing
// where its files do not tell (sentencepiece models).
// Errors: Corrupt where a file is no JSON.
std::optional<uint64_t> tokenizer_size(const std::string& folder);

}  // namespace zckpt
