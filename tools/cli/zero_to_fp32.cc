// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs.h"
#include "cli/writer_report.h"
#include "zckpt/merge.h"

namespace zckpt::cli {
namespace {

// merge under the arguments of DeepSpeed's script, so that who calls that
// changes one word.
struct ZeroToFp32Verb {
  CommonOptions common;
  WriterOptions writer;
  bool safe_serialization = false;
  bool debug = false;
  MergeOptions options;
};

int run_zero_to_fp32(ZeroToFp32Verb& verb, const Context& context) {
  verb.writer.format = verb.safe_serialization ? "safetensors" : "bin";
  verb.writer.apply(verb.options);
  verb.options.order = TensorOrder::ParamShapes;
  verb.common.verbose = verb.common.verbose || verb.debug;
  return merge_and_report("zero_to_fp32", verb.common, verb.options, context);
}

}  // namespace

Verb add_zero_to_fp32(CLI::App& app) {
  const auto verb = std::make_shared<ZeroToFp32Verb>();
  CLI::App* command = app.add_subcommand(
      "zero_to_fp32", "merge under the arguments of DeepSpeed's script");
  verb->common.add_to(*command);
  command
      ->add_option("OUT", verb->writer.output,
                   "Folder to write, or NAME.bin for one file")
      ->required();
  add_size(*command, "--max_shard_size", verb->writer.max_shard_bytes,
           "Largest weight file (default: 5GB)");
  command->add_flag("--safe_serialization", verb->safe_serialization,
                    "Write safetensors");
  command->add_option("-t", verb->common.open.tag, "The same as --tag")
      ->type_name("T");
  command->add_flag("--exclude_frozen_parameters", verb->options.exclude_frozen,
                    "Leave frozen weights out");
  command->add_flag("-d,--debug", verb->debug, "The same as --verbose");
  command->add_flag("--force", verb->writer.force,
                    "Replace an output that is not empty");
  return {.name = "zero_to_fp32",
          .json = &verb->common.json,
          .quiet = &verb->common.quiet,
          .run = [verb](const Context& context) {
            return run_zero_to_fp32(*verb, context);
          }};
}

}  // namespace zckpt::cli
