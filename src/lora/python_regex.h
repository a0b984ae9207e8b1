// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace zckpt {

// Whether a module's name matches a key of rank_pattern or alpha_pattern, as
// PEFT asks: re.match(rf"(.*\.)?({key})$", module) (peft/utils/other.py,
// get_pattern_key). Errors: Unsupported for a key that is no such pattern,
// Limit for one that takes too long.
bool matches_module(const std::string& key, std::string_view module);

// re.fullmatch(pattern, module), as PEFT asks of target_modules that is one
// text. Errors: as matches_module.
bool matches_fully(const std::string& pattern, std::string_view module);

}  // namespace zckpt
