// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/pickle_text.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace zckpt {
namespace {

uint8_t byte_at(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

// The length of the UTF-8 sequence at `i`, 0 if it is none.
size_t utf8_length(std::string_view text, size_t i) {
  const uint8_t lead = byte_at(text, i);
  if (lead < 0x80) return 1;
  size_t length = 0;
  if (lead >= 0xc2 && lead <= 0xdf) length = 2;
  if (lead >= 0xe0 && lead <= 0xef) length = 3;
  if (lead >= 0xf0 && lead <= 0xf4) length = 4;
  if (length == 0 || length > text.size() - i) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte_at(text, i + k) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = byte_at(text, i + 1);
  if (lead == 0xe0 && second < 0xa0) return 0;  // not the shortest form
  if (lead == 0xf0 && second < 0x90) return 0;
  if (lead == 0xf4 && second > 0x8f) return 0;  // above U+10FFFF
  return length;
}

void append_utf8(std::string& out, uint32_t point) {
  const auto add = [&out](uint32_t byte) {
    out.push_back(static_cast<char>(static_cast<uint8_t>(byte)));
  };
  if (point < 0x80) {
    add(point);
  } else if (point < 0x800) {
    add(0xc0 | point >> 6);
    add(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    add(0xe0 | point >> 12);
    add(0x80 | (point >> 6 & 0x3f));
    add(0x80 | (point & 0x3f));
  } else {
    add(0xf0 | point >> 18);
    add(0x80 | (point >> 12 & 0x3f));
    add(0x80 | (point >> 6 & 0x3f));
    add(0x80 | (point & 0x3f));
  }
}

// The value of exactly `digits`, in base 8 or 16.
std::optional<uint32_t> parse_code(std::string_view digits, int base) {
  uint32_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// What the letter after a backslash stands for; 0 if nothing.
char simple_escape(char letter) {
  switch (letter) {
    case '\\': return '\\';
    case '\'': return '\'';
    case '"': return '"';
    case 'a': return '\a';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'v': return '\v';
    default: return 0;
  }
}

// Appends the escape that follows the backslash before `i`; the index behind
// it, 0 if it is malformed.
size_t unescape(std::string_view text, size_t i, std::string& out) {
  const char letter = text[i];
  if (const char plain = simple_escape(letter); plain != 0) {
    out.push_back(plain);
    return i + 1;
  }
  if (letter == 'x') {
    const std::string_view digits = text.substr(i + 1, 2);
    const auto code = parse_code(digits, 16);
    if (digits.size() != 2 || !code) return 0;
    out.push_back(static_cast<char>(static_cast<uint8_t>(*code)));
    return i + 3;
  }
  size_t end = i;
  while (end < text.size() && end - i < 3 && text[end] >= '0' &&
         text[end] <= '7') {
    ++end;
  }
  if (end != i) {
    const uint32_t code = *parse_code(text.substr(i, end - i), 8);
    out.push_back(static_cast<char>(static_cast<uint8_t>(code)));
    return end;
  }
  // Python keeps the backslash of an escape that it does not know.
  out.push_back('\\');
  out.push_back(letter);
  return i + 1;
}

// The magnitude of decimal digits as little-endian 32-bit limbs.
std::vector<uint32_t> parse_magnitude(std::string_view digits) {
  constexpr size_t kChunk = 9;  // 10^9 < 2^32
  std::vector<uint32_t> limbs;
  while (!digits.empty()) {
    const size_t length = (digits.size() - 1) % kChunk + 1;
    uint64_t carry = 0;
    std::from_chars(digits.data(), digits.data() + length, carry);
    digits.remove_prefix(length);
    for (uint32_t& limb : limbs) {
      carry += uint64_t{limb} * 1'000'000'000;
      limb = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<uint32_t>(carry));
  }
  return limbs;
}

}  // namespace

bool is_pickle_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t eight = 0;
    if (text.size() - i >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & 0x8080808080808080U) == 0) {
        i += sizeof(eight);
        continue;
      }
    }
    const size_t length = utf8_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::optional<std::string> unquote_bytes(std::string_view quoted) {
  if (quoted.size() < 2 || quoted.front() != quoted.back() ||
      (quoted.front() != '\'' && quoted.front() != '"')) {
    return std::nullopt;
  }
  const std::string_view text = quoted.substr(1, quoted.size() - 2);
  std::string out;
  out.reserve(text.size());
  size_t i = 0;
  while (i < text.size()) {
    if (text[i] != '\\') {
      out.push_back(text[i++]);
      continue;
    }
    if (text.size() - i < 2) return std::nullopt;
    i = unescape(text, i + 1, out);
    if (i == 0) return std::nullopt;
  }
  return out;
}

std::optional<std::string> decode_raw_unicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t i = 0;
  while (i < text.size()) {
    if (text[i] != '\\' || text.size() - i < 2) {
      append_utf8(out, byte_at(text, i++));
      continue;
    }
    const char letter = text[i + 1];
    const size_t count = letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (count == 0) {
      // Only \u and \U are escapes, and "\\u" is none.
      out.push_back('\\');
      append_utf8(out, byte_at(text, i + 1));
      i += 2;
      continue;
    }
    const std::string_view digits = text.substr(i + 2, count);
    const auto point = parse_code(digits, 16);
    if (digits.size() != count || !point || *point > 0x10ffff) {
      return std::nullopt;
    }
    append_utf8(out, *point);
    i += 2 + count;
  }
  return out;
}

std::optional<std::string> decimal_to_bytes(std::string_view decimal) {
  const bool negative = !decimal.empty() && decimal.front() == '-';
  const std::string_view digits = decimal.substr(negative ? 1 : 0);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  // Python takes a leading zero for octal, or refuses it.
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), is_digit) ||
      (digits.size() > 1 && digits.front() == '0')) {
    return std::nullopt;
  }
  std::string bytes;
  uint32_t carry = 1;
  const auto add = [&](uint32_t byte) {
    if (negative) {
      carry += ~byte & 0xffU;
      byte = carry;
      carry >>= 8;
    }
    bytes.push_back(static_cast<char>(static_cast<uint8_t>(byte)));
  };
  for (const uint32_t limb : parse_magnitude(digits)) {
    for (uint32_t shift = 0; shift < 32; shift += 8) add(limb >> shift & 0xffU);
  }
  add(0);  // room for the sign
  return bytes;
}

std::optional<double> parse_float(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  // from_chars knows C's "nan(...)", Python does not.
  if (text.back() == ')') return std::nullopt;
  return value;
}

}  // namespace zckpt
