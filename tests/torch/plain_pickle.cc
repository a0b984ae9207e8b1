// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/plain_pickle.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace zckpt::test {
namespace {

using Token = std::string_view;  // an opcode and its argument

size_t little_endian(Token bytes) {
  size_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    value = value << 8U | static_cast<unsigned char>(bytes[i - 1]);
  }
  return value;
}

size_t size_of_next(Token rest) {
  const char opcode = rest[0];
  switch (opcode) {
    case 'c': return rest.find('\n', rest.find('\n') + 1) + 1;
    case 'X': return 5 + little_endian(rest.substr(1, 4));
    case '\x8a': return 2 + little_endian(rest.substr(1, 1));
    case '\x80':
    case 'q':
    case 'h':
    case 'K': return 2;
    case 'M': return 3;
    case 'r':
    case 'j':
    case 'J': return 5;
    case 'G': return 9;
    default: break;
  }
  if (Token("}])(t\x85\x86\x87Rb\x81N\x88\x89suaeQ.").find(opcode) ==
      Token::npos) {
    throw std::runtime_error("an opcode that torch.save does not write");
  }
  return 1;
}

std::vector<Token> tokens_of(Token pickle) {
  std::vector<Token> tokens;
  while (!pickle.empty()) {
    tokens.push_back(pickle.substr(0, size_of_next(pickle)));
    pickle.remove_prefix(tokens.back().size());
  }
  return tokens;
}

bool is_put(Token token) { return token[0] == 'q' || token[0] == 'r'; }
bool is_get(Token token) { return token[0] == 'h' || token[0] == 'j'; }
size_t memo_of(Token token) { return little_endian(token.substr(1)); }

constexpr Token kOrderedDict = "ccollections\nOrderedDict\n";
constexpr Token kSize = "ctorch\nSize\n";

bool is_dtype(Token token) {
  static const std::set<Token> kTypes{"ctorch\nfloat32\n", "ctorch\nfloat16\n",
                                      "ctorch\nbfloat16\n", "ctorch\nint64\n"};
  return kTypes.contains(token);
}

// LONG1, its number sign-extended to the one length that libtorch takes.
std::string wide(Token token) {
  if (token.size() > 2 + 8) return "N";
  std::string number(token.substr(2));
  const bool negative =
      !number.empty() && (static_cast<unsigned char>(number.back()) >> 7) != 0;
  number.resize(std::max<size_t>(number.size(), 8), negative ? '\xff' : '\0');
  return "\x8a" + std::string(1, static_cast<char>(number.size())) + number;
}

}  // namespace

std::string plain_pickle(const std::string& pickle) {
  const std::vector<Token> tokens = tokens_of(pickle);
  std::set<size_t> ordered;  // memo entries of OrderedDict
  std::string plain;
  for (size_t i = 0; i < tokens.size(); ++i) {
    // A global or one out of the memo, made and memoised only where it is new.
    const bool remembered = is_put(tokens[std::min(i + 1, tokens.size() - 1)]);
    const size_t call = i + (remembered ? 2 : 1);
    const bool made_empty = call + 1 < tokens.size() && tokens[call] == ")";
    const bool is_class = tokens[i][0] == 'c' || is_get(tokens[i]);
    if (tokens[i] == kOrderedDict && remembered) {
      ordered.insert(memo_of(tokens[i + 1]));
    }
    const bool is_ordered =
        tokens[i] == kOrderedDict ||
        (is_get(tokens[i]) && ordered.contains(memo_of(tokens[i])));
    if (made_empty && ((is_ordered && tokens[call + 1] == "R") ||
                       (is_class && tokens[call + 1] == "\x81"))) {
      plain += '}';
      i = call + 1;
    } else if (tokens[i] == "b") {
      plain += '\x86';
    } else if (is_dtype(tokens[i])) {
      plain += 'N';
    } else if (tokens[i] == kSize) {
      plain += "cpython\nSize\n";
    } else if (tokens[i][0] == '\x8a') {
      plain += wide(tokens[i]);
    } else {
      plain += tokens[i];
    }
  }
  return plain;
}

}  // namespace zckpt::test
