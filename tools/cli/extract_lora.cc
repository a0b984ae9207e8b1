// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/text.h"
#include "cli/verbs.h"
#include "cli/writer_report.h"
#include "zckpt/lora.h"

namespace zckpt::cli {
namespace {

struct ExtractVerb {
  CommonOptions common;
  WriterOptions writer;
  ExtractOptions options;
  double alpha = 0;
};

Json result_json(const ExtractResult& result, const ExtractVerb& verb) {
  Json json = writer_json("extract-lora", verb.common.path, result.written,
                          verb.options.write);
  json["lora"] = {
      {"adapter", result.adapter_name},
      {"modules", result.modules},
      {"config",
       result.config_from.empty() ? Json(nullptr) : Json(result.config_from)}};
  for (const std::string& note : result.notes) json["notes"].push_back(note);
  return json;
}

void settle(ExtractVerb& verb, const Context& context) {
  MergeOptions& options = verb.options.write;
  verb.writer.apply(options);
  if (options.single_file) {
    throw UsageError("an adapter is a folder with two files; give a folder");
  }
  options.open = verb.common.open;
  options.open.stop = context.stop;
  if (verb.common.memory_bytes != 0) {
    options.memory_bytes = verb.common.memory_bytes;
  }
  if (verb.alpha != 0) verb.options.lora_alpha = verb.alpha;
}

int run_extract(ExtractVerb& verb, const Context& context) {
  settle(verb, context);
  Terminal terminal(context.err, verb.common.terminal());
  verb.options.write.observer = &terminal;
  const ExtractResult result = extract_lora(verb.common.path, verb.options);
  terminal.finish();
  print_summary(result.written, verb.options.write, verb.common.verbose,
                terminal);
  terminal.note("adapter " + escape(result.adapter_name) + " of " +
                count_of(result.modules, "module") + ", config from " +
                (result.config_from.empty() ? "--lora-alpha"
                                            : escape(result.config_from)));
  for (const std::string& note : result.notes) terminal.note(note);
  if (verb.common.json) {
    context.out << dump(result_json(result, verb)) << '\n';
  } else if (verb.writer.dry_run) {
    print_plan(result.written, context.out);
  }
  return 0;
}

}  // namespace

Verb add_extract_lora(CLI::App& app) {
  const auto verb = std::make_shared<ExtractVerb>();
  CLI::App* command = app.add_subcommand(
      "extract-lora", "Write the PEFT adapter of a LoRA run's checkpoint");
  verb->common.add_to(*command);
  verb->writer.dtype = "keep";
  verb->writer.sharded = false;
  verb->writer.add_to(*command);
  command
      ->add_option("--adapter-name", verb->options.adapter_name,
                   "Which of several adapters, e.g. default")
      ->type_name("NAME");
  command
      ->add_option("--adapter-config", verb->options.adapter_config,
                   "adapter_config.json of the run, instead of the "
                   "checkpoint's")
      ->type_name("FILE");
  command
      ->add_option("--lora-alpha", verb->alpha,
                   "lora_alpha of the run, where no config is at hand")
      ->type_name("X")
      ->check([](const std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value > 0 &&
            std::isfinite(value)) {
          return "";
        }
        return "expected a number above 0, found " + escape(text);
      });
  return {.name = "extract-lora",
          .json = &verb->common.json,
          .quiet = &verb->common.quiet,
          .run = [verb](const Context& context) {
            return run_extract(*verb, context);
          }};
}

}  // namespace zckpt::cli
