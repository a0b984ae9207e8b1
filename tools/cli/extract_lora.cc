// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"
#include "cli/adapter_options.h"
#include "cli/verbs.h"
#include "cli/writer_report.h"
#include "zckpt/lora.h"

namespace zckpt::cli {
namespace {

struct ExtractVerb {
  CommonOptions common;
  WriterOptions writer;
  AdapterOptions adapter;
  ExtractOptions options;
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
  verb.common.apply(context, options);
  verb.options.adapter_name = verb.adapter.name;
  verb.options.adapter_config = verb.adapter.config;
  verb.options.lora_alpha = verb.adapter.lora_alpha();
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
  verb->adapter.add_to(*command);
  return {.name = "extract-lora",
          .json = &verb->common.json,
          .quiet = &verb->common.quiet,
          .run = [verb](const Context& context) {
            return run_extract(*verb, context);
          }};
}

}  // namespace zckpt::cli
