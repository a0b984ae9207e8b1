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
  Terminal terminal(context.err, verb.common.terminal());
  verb.common.apply(context, verb.options);
  verb.options.observer = &terminal;
  const MergeResult result = merge(verb.common.path, verb.options);
  terminal.finish();
  print_summary(result, verb.options, verb.common.verbose, terminal);
  if (verb.common.json) {
    context.out << dump(writer_json("merge", verb.common.path, result,
                                    verb.options))
                << '\n';
  } else if (verb.writer.dry_run) {
    print_plan(result, context.out);
  }
  return 0;
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
