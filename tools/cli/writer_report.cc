// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/writer_report.h"

#include "base/text.h"

namespace zckpt::cli {
namespace {

std::string dtype_text(const Plan& plan) {
  return plan.dtype ? std::string(short_name(*plan.dtype)) : "keep";
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

}  // namespace

Json writer_json(const std::string& verb, const std::string& path,
                 const MergeResult& result, const MergeOptions& options) {
  Json json = document(verb);
  json["path"] = path;
  json["output"] = options.output;
  if (options.dry_run) json["dry_run"] = true;
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

void print_plan(const MergeResult& result, std::ostream& out) {
  for (const PlannedFile& file : result.plan.files) {
    out << escape(file.name) << "  " << format_bytes(file.size_bytes) << '\n';
    for (const PlannedTensor& tensor : file.tensors) {
      out << "  " << escape(tensor.name) << "  " << short_name(tensor.dtype)
          << "  @" << tensor.offset << "  " << tensor.size_bytes << " bytes\n";
    }
  }
}

void print_summary(const MergeResult& result, const MergeOptions& options,
                   bool verbose, Terminal& terminal) {
  for (const Finding& finding : result.findings) terminal.finding(finding);
  const Plan& plan = result.plan;
  uint64_t files = 0;
  for (const PlannedFile& file : plan.files) files += !file.tensors.empty();
  std::string text = (options.dry_run ? "would write " : "wrote ") +
                     count_of(plan.tensor_count, "tensor") + " (" +
                     format_count(plan.parameter_count) + " parameters, " +
                     format_bytes(plan.data_bytes) + ", " + dtype_text(plan) +
                     ") in " + count_of(files, "file");
  if (!options.output.empty()) text += " to " + escape(options.output);
  terminal.note(text + ", from " + describe(result.checkpoint));
  for (const auto& [alias, kept] : plan.aliases) {
    terminal.note("tied: " + escape(alias) + " is " + escape(kept) +
                  (options.format == WeightFormat::Bin
                       ? " and has the same data"
                       : " and is written once"));
  }
  if (result.overflowed != 0) {
    terminal.note(count_of(result.overflowed, "value") +
                  " became infinite in " + dtype_text(plan));
  }
  if (options.dry_run) return;
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
  if (!verbose) return;
  for (const PlannedFile& file : plan.files) {
    terminal.note("wrote " + escape(file.name) + ", " +
                  format_bytes(file.size_bytes));
  }
}

int merge_and_report(const std::string& verb, const CommonOptions& common,
                     MergeOptions& options, const Context& context) {
  Terminal terminal(context.err, common.terminal());
  common.apply(context, options);
  options.observer = &terminal;
  const MergeResult result = merge(common.path, options);
  terminal.finish();
  print_summary(result, options, common.verbose, terminal);
  if (common.json) {
    context.out << dump(writer_json(verb, common.path, result, options))
                << '\n';
  } else if (options.dry_run) {
    print_plan(result, context.out);
  }
  return 0;
}

}  // namespace zckpt::cli
