// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/python_regex.h"

#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/text.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// A pattern is somebody else's text.
constexpr uint32_t kMatchLimit = 1'000'000;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const {
    pcre2_match_context_free(context);
  }
};

bool match(const std::string& pattern, const std::string& shown,
           std::string_view module) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, FreeCode> code(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (code == nullptr) {
    throw Error(ErrorCode::Unsupported,
                "the pattern " + escape(shown) +
                    " of the adapter's config cannot be understood");
  }
  const std::unique_ptr<pcre2_match_data, FreeData> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  const int found =
      pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(module.data()),
                  module.size(), 0, 0, data.get(), context.get());
  if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
    throw Error(ErrorCode::Limit, "the pattern " + escape(shown) +
                                      " of the adapter's config takes too "
                                      "long to match " +
                                      escape(module));
  }
  return found > 0;
}

}  // namespace

bool matches_module(const std::string& key, std::string_view module) {
  // Python's $ matches before a final newline, which no name has.
  return match("(.*\\.)?(" + key + ")$", key, module);
}

bool matches_fully(const std::string& pattern, std::string_view module) {
  return match("(?:" + pattern + ")\\z", pattern, module);
}

}  // namespace zckpt
