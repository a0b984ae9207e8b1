// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/merge.h"
#include "base/text.h"
#include "cli/json_report.h"
#include "cli/verbs.h"

namespace zckpt::cli {
namespace {

struct MergeVerb {
  CommonOptions common;
  WriterOptions writer;
  MergeOptions options;
  std::string aliases = "drop";
  std::string order = "module";
};

std::string dtype_text(const Plan& plan) {
  return plan.dtype ? std::string(short_name(*plan.dtype)) : "keep";
}

Json result_json(const MergeResult& result, const MergeVerb& verb) {
  Json json = document("merge");
  json["path"] = verb.common.path;
  json["output"] = verb.writer.output;
  if (verb.writer.dry_run) json["dry_run"] = true;
  json["checkpoint"] = to_json(result.checkpoint);
  Json files = Json::array();
  for (const PlannedFile& file : result.plan.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.size_bytes},
                     {"tensors", file.tensors.size()}});
  }
  json["files"] = std::move(files);
  json["tensors"] = result.plan.tensor_count;
  json["parameters"] = result.plan.parameter_count;
  json["dtype"] = dtype_text(result.plan);
  Json aliases = Json::object();
  for (const auto& [alias, kept] : result.plan.aliases) aliases[alias] = kept;
  json["aliases"] = std::move(aliases);
  json["casts"] = {{"overflowed", result.overflowed}};
  json["checks"] = {{"records", result.checked_records},
                    {"records_without_crc", result.unchecked_records},
                    {"elements", result.checked_elements}};
  json["io"] = {{"reads", result.reads}, {"bytes_read", result.bytes_read}};
  json["notes"] = result.checkpoint.notes;
  json["findings"] = to_json(result.findings);
  return json;
}

// The plan tensor by tensor, for --dry-run.
void print_plan(const MergeResult& result, const Context& context) {
  for (const PlannedFile& file : result.plan.files) {
    context.out << escape(file.name) << "  " << format_bytes(file.size_bytes)
                << '\n';
    for (const PlannedTensor& tensor : file.tensors) {
      context.out << "  " << escape(tensor.name) << "  "
                  << short_name(tensor.dtype) << "  @" << tensor.offset << "  "
                  << tensor.size_bytes << " bytes\n";
    }
  }
}

std::string describe(const CheckpointFacts& facts) {
  std::string text = facts.layout;
  if (facts.world_size != 0) {
    text += ", " + count_of(facts.world_size, "rank");
  }
  if (facts.step) text += ", step " + std::to_string(*facts.step);
  if (!facts.deepspeed_version.empty()) {
    text += ", DeepSpeed " + escape(facts.deepspeed_version);
  }
  return text;
}

void print_summary(const MergeResult& result, const MergeVerb& verb,
                   Terminal& terminal) {
  const Plan& plan = result.plan;
  uint64_t files = 0;
  for (const PlannedFile& file : plan.files) files += !file.tensors.empty();
  std::string text = (verb.writer.dry_run ? "would write " : "wrote ") +
                     count_of(plan.tensor_count, "tensor") + " (" +
                     format_count(plan.parameter_count) + " parameters, " +
                     format_bytes(plan.data_bytes) + ", " + dtype_text(plan) +
                     ") in " + count_of(files, "file");
  if (!verb.writer.output.empty()) text += " to " + escape(verb.writer.output);
  terminal.note(text + ", from " + describe(result.checkpoint));
  for (const auto& [alias, kept] : plan.aliases) {
    terminal.note("tied: " + escape(alias) + " is " + escape(kept) +
                  " and is written once");
  }
  if (result.overflowed != 0) {
    terminal.note(count_of(result.overflowed, "value") +
                  " became infinite in " + dtype_text(plan));
  }
  if (verb.writer.dry_run) return;
  if (result.checked_records != 0) {
    terminal.note("checked the CRC of " +
                  count_of(result.checked_records, "record"));
  }
  if (result.unchecked_records != 0) {
    terminal.note(count_of(result.unchecked_records, "record") +
                  " could not be checked: saved without a CRC");
  }
  if (result.checked_elements != 0) {
    terminal.note("compared " + format_count(result.checked_elements) +
                  " elements with the model's own copy");
  }
  for (const PlannedFile& file : plan.files) {
    if (verb.common.verbose) {
      terminal.note("wrote " + escape(file.name) + ", " +
                    format_bytes(file.size_bytes));
    }
  }
}

int run_merge(MergeVerb& verb, const Context& context) {
  verb.writer.apply(verb.options);
  verb.options.aliases = verb.aliases == "copy" ? Aliases::Copy : Aliases::Drop;
  verb.options.order = verb.order == "param_shapes" ? TensorOrder::ParamShapes
                                                    : TensorOrder::Module;
  Terminal terminal(context.err, verb.common.terminal());
  verb.options.open = verb.common.open;
  verb.options.open.stop = context.stop;
  verb.options.observer = &terminal;
  if (verb.common.memory_bytes != 0) {
    verb.options.memory_bytes = verb.common.memory_bytes;
  }
  const MergeResult result = merge(verb.common.path, verb.options);
  terminal.finish();
  for (const Finding& finding : result.findings) terminal.finding(finding);
  print_summary(result, verb, terminal);
  if (verb.common.json) {
    context.out << dump(result_json(result, verb)) << '\n';
  } else if (verb.writer.dry_run) {
    print_plan(result, context);
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
