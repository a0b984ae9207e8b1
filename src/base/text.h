// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zckpt {

// `text` with control characters and invalid UTF-8 written as \xNN: names come
// from untrusted files and end up on terminals.
std::string escape(std::string_view text);

// A size such as "5GB", "1.5GiB", "4096": decimal KB MB GB TB, binary KiB MiB
// GiB TiB, any case, fractions allowed. Empty where `text` is no size or is 0.
std::optional<uint64_t> parse_size(std::string_view text);

// "1.98 GB", "340 kB", "12 bytes": decimal units, three significant digits.
std::string format_bytes(uint64_t bytes);

// "494,032,768"
std::string format_count(uint64_t count);

// fnmatch-like: '*' any run of characters (dots too), '?' one, [abc] [a-z]
// [!a] a set; everything else literal. The whole of `text` must match.
bool glob_match(std::string_view pattern, std::string_view text);

// "3 files" / "1 file"
std::string count_of(uint64_t count, std::string_view singular);

// Decimal digits only, no sign, no overflow.
std::optional<uint64_t> parse_uint(std::string_view text);

// `text` as a JSON string with its quotes. With `ascii`, everything outside
// printable ASCII becomes \uXXXX as Python's json.dumps does; without, as
// serde_json does. Invalid UTF-8 becomes U+FFFD.
std::string json_quote(std::string_view text, bool ascii);

}  // namespace zckpt
