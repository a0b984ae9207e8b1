// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace zckpt {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

struct Decoded {
  uint32_t code_point = 0;
  size_t length = 0;  // 0: not valid UTF-8 at this place
};

// Strict UTF-8: no overlong forms, no surrogates, at most U+10FFFF.
Decoded decode_utf8(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  size_t length = 0;
  uint32_t code_point = 0;
  uint32_t least = 0;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2, code_point = lead & 0x1fU, least = 0x80;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3, code_point = lead & 0x0fU, least = 0x800;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4, code_point = lead & 0x07U, least = 0x10000;
  } else {
    return {};
  }
  if (text.size() < length) return {};
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    code_point = code_point << 6 | (byte(i) & 0x3fU);
  }
  if (code_point < least || code_point > 0x10ffff ||
      (code_point >= 0xd800 && code_point <= 0xdfff)) {
    return {};
  }
  return {code_point, length};
}

void append_u_escape(std::string& out, uint32_t unit) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) {
    out += kHexDigits[unit >> shift & 0xfU];
  }
}

void append_json_code_point(std::string& out, uint32_t c, std::string_view utf8,
                            bool ascii) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  if (c < 0x20) return append_u_escape(out, c);
  if (!ascii || c < 0x7f) {
    out += utf8;
  } else if (c < 0x10000) {
    append_u_escape(out, c);
  } else {
    append_u_escape(out, 0xd800U + ((c - 0x10000U) >> 10));
    append_u_escape(out, 0xdc00U + ((c - 0x10000U) & 0x3ffU));
  }
}

bool matches_set(std::string_view set, char c) {
  bool negate = false;
  if (!set.empty() && (set[0] == '!' || set[0] == '^')) {
    negate = true;
    set.remove_prefix(1);
  }
  bool found = false;
  for (size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found = found || (set[i] <= c && c <= set[i + 2]);
      i += 2;
    } else {
      found = found || set[i] == c;
    }
  }
  return found != negate;
}

// The length of the pattern element at the front, if it matches `c`; else 0.
size_t match_one(std::string_view pattern, char c) {
  if (pattern[0] == '?') return 1;
  if (pattern[0] == '[') {
    const size_t close = pattern.find(']', 2);
    if (close != std::string_view::npos) {
      return matches_set(pattern.substr(1, close - 1), c) ? close + 1 : 0;
    }
  }
  return pattern[0] == c ? 1 : 0;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Decoded d = decode_utf8(text);
    // C0 and C1 controls, DEL, and the bidi and line separators that can make
    // a terminal show something else than what is there.
    const bool control = d.code_point < 0x20 ||
                         (d.code_point >= 0x7f && d.code_point < 0xa0) ||
                         (d.code_point >= 0x2028 && d.code_point <= 0x202e) ||
                         (d.code_point >= 0x2066 && d.code_point <= 0x2069);
    const size_t length = d.length == 0 ? 1 : d.length;
    if (d.length == 0 || control) {
      for (size_t i = 0; i < length; ++i) {
        const auto b = static_cast<unsigned char>(text[i]);
        out += "\\x";
        out += kHexDigits[b >> 4];
        out += kHexDigits[b & 0xfU];
      }
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

std::optional<uint64_t> parse_size(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(
      text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !(number > 0)) return std::nullopt;
  std::string unit;
  for (char c : text.substr(static_cast<size_t>(end - text.data()))) {
    unit += (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
  }
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits{{
      {"", 1},
      {"B", 1},
      {"KB", 1e3},
      {"MB", 1e6},
      {"GB", 1e9},
      {"TB", 1e12},
      {"KIB", 0x1p10},
      {"MIB", 0x1p20},
      {"GIB", 0x1p30},
      {"TIB", 0x1p40},
  }};
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    const double bytes = std::floor(number * factor);
    if (bytes < 1 || bytes >= 0x1p63) return std::nullopt;
    return static_cast<uint64_t>(bytes);
  }
  return std::nullopt;
}

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + " bytes";
  constexpr std::array<const char*, 5> kUnits{"kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes) / 1e3;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1e3;
    ++unit;
  }
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f %s", digits, value,
                kUnits[unit]);
  return buffer.data();
}

std::string format_count(uint64_t count) {
  std::string digits = std::to_string(count);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  // Greedy with one point of return: the last '*' seen.
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
      continue;
    }
    const size_t step =
        p < pattern.size() ? match_one(pattern.substr(p), text[t]) : 0;
    if (step != 0) {
      p += step;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string count_of(uint64_t count, std::string_view singular) {
  return format_count(count) + " " + std::string(singular) +
         (count == 1 ? "" : "s");
}

std::optional<uint64_t> parse_uint(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::string json_quote(std::string_view text, bool ascii) {
  std::string out = "\"";
  while (!text.empty()) {
    Decoded d = decode_utf8(text);
    std::string_view utf8 = text.substr(0, d.length == 0 ? 1 : d.length);
    text.remove_prefix(utf8.size());
    if (d.length == 0) {
      d.code_point = 0xfffd;
      utf8 = "\xef\xbf\xbd";
    }
    append_json_code_point(out, d.code_point, utf8, ascii);
  }
  return out + "\"";
}

}  // namespace zckpt
