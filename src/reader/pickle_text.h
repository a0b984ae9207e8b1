// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace zckpt {

// The textual values of pickles, mostly of protocol 0. All are linear in the
// text but for decimal_to_bytes; empty where the text is malformed.

// UTF-8 as pickle writes it: the shortest form, lone surrogates allowed.
bool is_pickle_utf8(std::string_view text);

// The bytes that a quoted Python literal such as 'a\n\x00' stands for.
std::optional<std::string> unquote_bytes(std::string_view quoted);

// Python's raw-unicode-escape (Latin-1 with \uXXXX and \UXXXXXXXX) as UTF-8.
std::optional<std::string> decode_raw_unicode(std::string_view text);

// A decimal integer as little-endian two's complement of at least one byte.
// Quadratic: the caller limits the digits.
std::optional<std::string> decimal_to_bytes(std::string_view decimal);

// A float as Python's repr writes it.
std::optional<double> parse_float(std::string_view text);

}  // namespace zckpt
