// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/verify.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "cli/json_report.h"
#include "cli/verbs.h"

namespace zckpt::cli {
namespace {

constexpr int kExitNo = 1;

struct VerifyVerb {
  CommonOptions common;
  VerifyOptions options;
  std::string question = "resume";
  uint32_t world_size = 0;
  int stage = -1;
  std::string dtype;
  bool newest = false;
};

const std::string& newest_path(const VerifyResult& result) {
  return result.checkpoints[*result.newest_resumable].path;
}

bool answer_is_yes(const VerifyVerb& verb, const Verification& v) {
  return verb.options.question == Question::Resume ? v.can_resume : v.can_merge;
}

Json verification_json(const Verification& v) {
  Json json = document("verify");
  json["path"] = v.path;
  json["tag"] = v.tag;
  json["verdict"] = std::string(to_string(v.verdict));
  json["can"] = {{"resume", v.can_resume}, {"merge", v.can_merge}};
  json["checkpoint"] =
      v.facts.framework.empty() ? Json::object() : to_json(v.facts);
  json["level"] = v.scan ? "full" : "metadata";
  if (v.scan) {
    json["scan"] = {{"bytes", v.scan->bytes},
                    {"checked_records", v.scan->checked_records},
                    {"unchecked_records", v.scan->unchecked_records},
                    {"compared_tensors", v.scan->compared_tensors},
                    {"compared_with_sidecar", v.scan->compared_with_sidecar}};
  }
  json["findings"] = to_json(v.findings);
  return json;
}

Json result_json(const VerifyVerb& verb, const VerifyResult& result) {
  if (!result.is_run) return verification_json(result.checkpoints.front());
  Json json = document("verify");
  json["path"] = verb.common.path;
  json["newest_resumable"] = nullptr;
  if (result.newest_resumable) {
    json["newest_resumable"] =
        std::filesystem::path(newest_path(result)).filename().string();
  }
  json["checkpoints"] = Json::array();
  for (const Verification& v : result.checkpoints) {
    json["checkpoints"].push_back(verification_json(v));
  }
  return json;
}

std::string headline(const Verification& v) {
  std::string text = std::string(to_string(v.verdict)) + "  " + escape(v.path);
  const CheckpointFacts& facts = v.facts;
  std::string details;
  const auto add = [&](const std::string& detail) {
    details += (details.empty() ? "" : ", ") + detail;
  };
  if (!facts.layout.empty()) add(facts.layout);
  if (facts.world_size != 0) add(count_of(facts.world_size, "rank"));
  if (facts.step) add("step " + std::to_string(*facts.step));
  if (!facts.deepspeed_version.empty()) {
    add("DeepSpeed " + escape(facts.deepspeed_version));
  }
  if (!details.empty()) text += "  (" + details + ")";
  if (!v.can_resume && v.can_merge) text += "  its weights can be merged";
  return text;
}

// What was proved, for whoever waited for it.
void print_scan(const ScanFacts& scan, std::ostream& out) {
  out << "  read all " << format_bytes(scan.bytes) << ": compared the CRC of "
      << count_of(scan.checked_records, "record");
  if (scan.unchecked_records != 0) {
    out << " (" << scan.unchecked_records << " came without one)";
  }
  if (scan.compared_tensors != 0) {
    out << ", " << count_of(scan.compared_tensors, "tensor")
        << " with the model's own copies";
  }
  if (scan.compared_with_sidecar != 0) {
    out << ", " << count_of(scan.compared_with_sidecar, "tensor")
        << " with the gathered weights";
  }
  out << '\n';
}

void print_findings(const Verification& v, bool verbose, std::ostream& out) {
  for (const Severity severity :
       {Severity::Error, Severity::Warning, Severity::Note}) {
    if (severity == Severity::Note && !verbose) continue;
    for (const Finding& finding : v.findings) {
      if (finding.severity != severity) continue;
      out << "  " << to_string(severity) << " [" << finding.code << "] ";
      if (!finding.file.empty()) out << escape(finding.file) << ": ";
      if (!finding.tensor.empty()) out << escape(finding.tensor) << ": ";
      if (finding.offset) out << "@" << *finding.offset << ": ";
      out << finding.message << '\n';
    }
  }
}

int print_newest(const VerifyVerb& verb, const VerifyResult& result,
                 const Context& context) {
  if (!result.newest_resumable) {
    context.err << "no checkpoint here can be resumed from\n";
    return kExitNo;
  }
  const Verification& newest = result.checkpoints[*result.newest_resumable];
  for (const std::string& note : newest.facts.notes) {
    if (!verb.common.quiet) context.err << "note: " << note << '\n';
  }
  context.out << newest.path << '\n';
  return 0;
}

void settle(VerifyVerb& verb, const Context& context) {
  verb.options.open = verb.common.open;
  verb.options.open.stop = context.stop;
  verb.options.question =
      verb.question == "merge" ? Question::Merge : Question::Resume;
  verb.options.newest_only = verb.newest && !verb.common.json;
  if (verb.common.memory_bytes != 0) {
    verb.options.memory_bytes = verb.common.memory_bytes;
  }
  if (verb.world_size != 0) verb.options.world_size = verb.world_size;
  if (verb.stage >= 0) verb.options.stage = verb.stage;
  if (verb.dtype == "bf16") verb.options.dtype = DType::BF16;
  if (verb.dtype == "fp16") verb.options.dtype = DType::F16;
  if (verb.dtype == "fp32") verb.options.dtype = DType::F32;
}

int run_verify(VerifyVerb& verb, const Context& context) {
  settle(verb, context);
  Terminal terminal(context.err, verb.common.terminal());
  verb.options.observer = &terminal;
  const VerifyResult result = verify(verb.common.path, verb.options);
  terminal.finish();
  if (verb.newest && !verb.common.json) {
    return print_newest(verb, result, context);
  }
  if (verb.common.json) {
    context.out << dump(result_json(verb, result)) << '\n';
  } else {
    for (const Verification& v : result.checkpoints) {
      context.out << headline(v) << '\n';
      if (v.scan) print_scan(*v.scan, context.out);
      print_findings(v, verb.common.verbose, context.out);
    }
    if (result.is_run && result.newest_resumable) {
      context.out << "newest that resumes: " << escape(newest_path(result))
                  << '\n';
    }
  }
  const bool yes = std::any_of(
      result.checkpoints.begin(), result.checkpoints.end(),
      [&](const Verification& v) { return answer_is_yes(verb, v); });
  return yes ? 0 : kExitNo;
}

}  // namespace

Verb add_verify(CLI::App& app) {
  const auto verb = std::make_shared<VerifyVerb>();
  CLI::App* command = app.add_subcommand(
      "verify", "Answer whether a checkpoint resumes and merges, and why not");
  verb->common.add_to(*command);
  command->add_flag("--full", verb->options.full,
                    "Read every byte: CRCs, NaN, copies against masters");
  command->add_option("--for", verb->question, "Question: resume or merge")
      ->type_name("WHAT")
      ->capture_default_str()
      ->check(CLI::IsMember({"resume", "merge"}));
  command
      ->add_option("--world-size", verb->world_size,
                   "Data-parallel ranks of the run that wants to resume")
      ->type_name("N")
      ->check(CLI::Range(1U, 1U << 20));
  command->add_option("--stage", verb->stage, "ZeRO stage of that run")
      ->type_name("S")
      ->check(CLI::Range(0, 3));
  command
      ->add_option("--dtype", verb->dtype, "Its precision: fp32, bf16 or fp16")
      ->type_name("D")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command
      ->add_option("--framework", verb->options.framework,
                   "Who loads it: hf, deepspeed, accelerate or lightning")
      ->type_name("F")
      ->check(CLI::IsMember({"hf", "deepspeed", "accelerate", "lightning"}));
  command->add_flag("--strict", verb->options.strict,
                    "Let warnings count as errors");
  command->add_flag("--newest", verb->newest,
                    "Print only the path of the newest that resumes");
  return {.name = "verify",
          .json = &verb->common.json,
          .quiet = &verb->common.quiet,
          .run = [verb](const Context& context) {
            return run_verify(*verb, context);
          }};
}

}  // namespace zckpt::cli
