// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>

#include "cli/terminal.h"
#include "zckpt/checkpoint.h"
#include "zckpt/merge.h"

namespace zckpt::cli {

// Wrong usage, told from the command line alone: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An option whose value is a number of bytes, or one with a unit.
CLI::Option* add_size(CLI::App& verb, const std::string& name, uint64_t& value,
                      const std::string& help);

// What --color WHEN means for standard error.
bool use_color(const std::string& when);

// What a verb gets to work with.
struct Context {
  std::ostream& out;
  std::ostream& err;
  const StopToken* stop;
};

// Options that every verb has.
struct CommonOptions {
  std::string path;
  OpenOptions open;
  uint64_t memory_bytes = 0;  // 0: the verb's default
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  bool no_progress = false;
  std::string color = "auto";

  void add_to(CLI::App& verb);
  TerminalOptions terminal() const;
  // Settles how a verb that writes opens, stops and uses memory.
  void apply(const Context& context, MergeOptions& options) const;
};

// Options of the verbs that write weights.
struct WriterOptions {
  std::string output;
  bool force = false;
  bool no_sync = false;
  bool dry_run = false;
  uint64_t max_shard_bytes = 5'000'000'000;
  std::string format = "safetensors";
  std::string dtype = "fp32";
  std::string check = "sample";
  bool sharded = true;      // weights can go into several files
  bool folder = false;      // and never into one file alone
  bool auto_dtype = false;  // --dtype has "auto"

  void add_to(CLI::App& verb);
  // Settles output, dtype and the like in `options`; throws UsageError.
  void apply(MergeOptions& options) const;
};

}  // namespace zckpt::cli
