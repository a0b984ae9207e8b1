// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/merge.h"
#include "cli/verbs.h"
#include "cli/writer_report.h"

namespace zckpt::cli {
namespace {

struct MergeVerb {
  CommonOptions common;
  WriterOptions writer;
  MergeOptions options;
  std::string aliases = "drop";
  std::string order = "module";
};

int run_merge(MergeVerb& verb, const Context& context) {
  verb.writer.apply(verb.options);
  verb.options.aliases = verb.aliases == "copy" ? Aliases::Copy : Aliases::Drop;
  verb.options.order = verb.order == "param_shapes" ? TensorOrder::ParamShapes
                                                    : TensorOrder::Module;
  return merge_and_report("merge", verb.common, verb.options, context);
}

}  // namespace

Verb add_merge(CLI::App& app) {
  const auto verb = std::make_shared<MergeVerb>();
  CLI::App* command = app.add_subcommand(
      "merge", "Write full weights: model.safetensors, or shards and an index");
  verb->common.add_to(*command);
  verb->writer.add_to(*command);
  command
      ->add_option("--include", verb->options.include,
                   "Only tensors whose name matches (repeatable)")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command
      ->add_option("--exclude", verb->options.exclude,
                   "No tensors whose name matches (repeatable)")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command
      ->add_option("--aliases", verb->aliases,
                   "Tied names: drop (written once) or copy")
      ->capture_default_str()
      ->check(CLI::IsMember({"drop", "copy"}));
  command->add_flag("--exclude-frozen", verb->options.exclude_frozen,
                    "Leave frozen weights out");
  command
      ->add_option("--strip-prefix", verb->options.strip_prefix,
                   "Remove this from the front of names, e.g. module.")
      ->type_name("P");
  command
      ->add_option("--order", verb->order,
                   "Order that cuts files: module or param_shapes")
      ->capture_default_str()
      ->check(CLI::IsMember({"module", "param_shapes"}));
  return {.name = "merge",
          .json = &verb->common.json,
          .quiet = &verb->common.quiet,
          .run = [verb](const Context& context) {
            return run_merge(*verb, context);
          }};
}

}  // namespace zckpt::cli
