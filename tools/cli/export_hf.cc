// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/export.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "base/text.h"
#include "cli/adapter_options.h"
#include "cli/verbs.h"
#include "cli/writer_report.h"

namespace zckpt::cli {
namespace {

struct ExportVerb {
  CommonOptions common;
  WriterOptions writer;
  AdapterOptions adapter;
  std::vector<std::string> adapters;
  std::string math = "exact";
  ExportOptions options;
};

// DIR or DIR:WEIGHT; a folder may have a colon in its name.
AdapterChoice parse_adapter(const std::string& text) {
  AdapterChoice choice{.path = text};
  const size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || std::filesystem::exists(text, ignored)) {
    return choice;
  }
  const std::string number = text.substr(colon + 1);
  double weight = 0;
  if (number.empty() || !CLI::detail::lexical_cast(number, weight) ||
      !std::isfinite(weight) || weight == 0) {
    throw UsageError("expected DIR or DIR:WEIGHT, found " + escape(text));
  }
  return {.path = text.substr(0, colon), .weight = weight};
}

void settle(ExportVerb& verb, const Context& context) {
  ExportOptions& options = verb.options;
  verb.writer.apply(options.write);
  if (options.write.single_file) {
    throw UsageError("the output is a folder of many files; give a folder");
  }
  for (const std::string& text : verb.adapters) {
    options.adapters.push_back(parse_adapter(text));
  }
  options.auto_dtype = verb.writer.dtype == "auto";
  options.math = verb.math == "peft" ? LoraMath::Peft : LoraMath::Exact;
  options.adapter_name = verb.adapter.name;
  options.adapter_config = verb.adapter.config;
  options.lora_alpha = verb.adapter.lora_alpha();
  verb.common.apply(context, options.write);
}

// Sums of many numbers: their last digits depend on the order.
std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

Json lora_json(const ExportResult& result, const ExportVerb& verb) {
  Json adapters = Json::array();
  for (const MergedAdapter& adapter : result.adapters) {
    adapters.push_back({{"adapter", adapter.label},
                        {"weight", adapter.weight},
                        {"tensors", adapter.tensors}});
  }
  Json weights = Json::array();
  for (const LoraReport& report : result.lora) {
    weights.push_back({{"name", report.name},
                       {"rank", report.rank},
                       {"max_delta", std::stod(digits(report.max_delta))},
                       {"mean_delta", std::stod(digits(report.mean_delta))},
                       {"overflowed", report.overflowed},
                       {"nonfinite", report.nonfinite}});
  }
  return {{"math", verb.math},
          {"adapters", std::move(adapters)},
          {"weights", std::move(weights)}};
}

Json result_json(const ExportResult& result, const ExportVerb& verb) {
  Json json = writer_json("export-hf", verb.common.path, result.written,
                          verb.options.write);
  json["base"] = result.base.empty() ? Json(nullptr) : Json(result.base);
  json["config"] = result.config_from;
  Json changes = Json::array();
  for (const ConfigChange& change : result.config_changes) {
    changes.push_back(
        {{"key", change.key},
         {"before",
          change.before.empty() ? Json(nullptr) : Json::parse(change.before)},
         {"after", Json::parse(change.after)}});
  }
  json["config_changes"] = std::move(changes);
  Json sides = Json::array();
  for (const SideFile& file : result.side_files) {
    sides.push_back({{"name", file.name}, {"from", file.from}});
  }
  json["side_files"] = std::move(sides);
  if (!result.adapters.empty()) json["lora"] = lora_json(result, verb);
  for (const std::string& note : result.notes) json["notes"].push_back(note);
  return json;
}

void print_lora(const ExportResult& result, const ExportVerb& verb,
                Terminal& terminal) {
  for (const MergedAdapter& adapter : result.adapters) {
    terminal.note(
        "adapter " + escape(adapter.label) + ": " +
        count_of(adapter.tensors, "tensor") + ", each used once" +
        (adapter.weight == 1 ? "" : ", weight " + digits(adapter.weight)));
  }
  if (result.lora.empty()) return;
  double most = 0;
  uint64_t unchanged = 0;
  for (const LoraReport& report : result.lora) {
    most = std::max(most, report.max_delta);
    unchanged += report.max_delta == 0 && report.nonfinite == 0;
    if (!verb.common.verbose) continue;
    terminal.note("merged " + escape(report.name) + ": rank " +
                  std::to_string(report.rank) + ", |delta| at most " +
                  digits(report.max_delta) + ", " + digits(report.mean_delta) +
                  " in the mean");
  }
  terminal.note("merged into " + count_of(result.lora.size(), "weight") + " (" +
                verb.math + "), |delta| at most " + digits(most) +
                (unchanged == 0 ? ""
                                : "; " + count_of(unchanged, "weight") +
                                      " did not change at all"));
}

void print_folder(const ExportResult& result, Terminal& terminal) {
  std::map<std::string, std::string> names;  // by folder
  for (const SideFile& file : result.side_files) {
    std::string& list = names[file.from];
    list += (list.empty() ? "" : ", ") + escape(file.name);
  }
  for (const auto& [folder, list] : names) {
    terminal.note("copied from " + escape(folder) + ": " + list);
  }
  std::string changes;
  for (const ConfigChange& change : result.config_changes) {
    changes += (changes.empty() ? ", with " : ", ") + escape(change.key) + " " +
               escape(change.after);
  }
  terminal.note("config.json is that of " + escape(result.config_from) +
                changes);
}

int run_export(ExportVerb& verb, const Context& context) {
  settle(verb, context);
  Terminal terminal(context.err, verb.common.terminal());
  verb.options.write.observer = &terminal;
  const ExportResult result = export_hf(verb.common.path, verb.options);
  terminal.finish();
  print_summary(result.written, verb.options.write, verb.common.verbose,
                terminal);
  print_lora(result, verb, terminal);
  print_folder(result, terminal);
  for (const std::string& note : result.notes) terminal.note(note);
  if (verb.common.json) {
    context.out << dump(result_json(result, verb)) << '\n';
  } else if (verb.writer.dry_run) {
    print_plan(result.written, context.out);
  }
  return 0;
}

}  // namespace

Verb add_export_hf(CLI::App& app) {
  const auto verb = std::make_shared<ExportVerb>();
  CLI::App* command = app.add_subcommand(
      "export-hf", "Write a folder that transformers loads, with LoRA merged");
  verb->common.add_to(*command);
  verb->writer.dtype = "auto";
  verb->writer.auto_dtype = true;
  verb->writer.folder = true;
  verb->writer.add_to(*command);
  command
      ->add_option("--base", verb->options.base,
                   "The model that the run began with: for what the "
                   "checkpoint lacks")
      ->type_name("DIR");
  command
      ->add_option("--adapter", verb->adapters,
                   "A PEFT adapter to merge, in this order (repeatable)")
      ->type_name("DIR[:WEIGHT]")
      ->allow_extra_args(false);
  verb->adapter.add_to(*command);
  command
      ->add_option("--lora-math", verb->math,
                   "exact (rounded once) or peft (as merge_and_unload)")
      ->capture_default_str()
      ->check(CLI::IsMember({"exact", "peft"}));
  return {.name = "export-hf",
          .json = &verb->common.json,
          .quiet = &verb->common.quiet,
          .run = [verb](const Context& context) {
            return run_export(*verb, context);
          }};
}

}  // namespace zckpt::cli
