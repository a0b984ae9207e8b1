// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/merge.h"

#include <algorithm>

#include "base/text.h"
#include "merge/execute.h"
#include "merge/write.h"
#include "reader/checkpoint_data.h"
#include "verify/checks.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

bool is_error(const Finding& finding) {
  return finding.severity == Severity::Error;
}

// Damage is Corrupt; what is sound, but cannot be read or was never in the
// save, is not.
ErrorCode code_of(const Finding& finding) {
  if (finding.code == "unsupported-layout" ||
      finding.code == "foreign-writer") {
    return ErrorCode::Unsupported;
  }
  const bool left_out = finding.code == "frozen-missing" &&
                        finding.file.empty() && finding.tensor.empty();
  return left_out ? ErrorCode::Invalid : ErrorCode::Corrupt;
}

// A refusal that carries all that was found.
Error refusal(std::vector<Finding> findings) {
  const auto first = std::find_if(findings.begin(), findings.end(), is_error);
  const auto errors = std::count_if(findings.begin(), findings.end(), is_error);
  ErrorPlace place;
  std::string message;
  if (errors == 1) {
    message = first->message;
    place = {
        .file = first->file, .tensor = first->tensor, .offset = first->offset};
  } else {
    message = std::to_string(errors) + " errors keep it from being merged";
  }
  Error error(code_of(*first), message, std::move(place));
  error.with_findings(std::move(findings));
  return error;
}

void refuse_on_error(const std::vector<Finding>& findings) {
  if (std::any_of(findings.begin(), findings.end(), is_error)) {
    throw refusal(findings);
  }
}

// Takes out findings about names that the options leave out anyway: whoever
// excludes a tensor whose data is lost gets the rest.
void excuse(const MergeOptions& options, std::vector<Finding>& findings) {
  std::erase_if(findings, [&](const Finding& finding) {
    if (options.exclude_frozen && (finding.code == "frozen-missing" ||
                                   finding.code == "frozen-unrecoverable")) {
      return true;
    }
    const bool about_data = finding.code == "name-unaccounted" ||
                            finding.code == "frozen-missing" ||
                            finding.code == "frozen-unrecoverable";
    return about_data && !finding.tensor.empty() &&
           !wants_name(options, finding.tensor);
  });
}

// The newest other checkpoint of a run that has no error, for the refusal of
// the one that was taken: nothing falls back in silence.
std::string newest_sound(const std::vector<CheckpointPath>& found,
                         const MergeOptions& options) {
  for (size_t i = 1; i < found.size(); ++i) {
    try {
      const std::vector<Finding> findings =
          check_for_merge(found[i], options.open).findings;
      if (std::none_of(findings.begin(), findings.end(), is_error)) {
        return (found[i].tag_folder.empty() ? found[i].folder
                                            : found[i].tag_folder);
      }
    } catch (const Error&) {
      continue;  // not that one either
    }
  }
  return "";
}

}  // namespace

CheckedCheckpoint open_checked(const std::string& path,
                               const MergeOptions& options) {
  std::vector<CheckpointPath> found = find_checkpoints(path, options.open);
  if (found.size() > 1) {
    const CheckpointPath& taken = found.front();
    found.front().notes.insert(
        found.front().notes.begin(),
        "took " +
            escape(taken.tag_folder.empty() ? taken.folder : taken.tag_folder) +
            ", the highest step of " + count_of(found.size(), "checkpoint"));
  }
  try {
    CheckedCheckpoint checked = check_for_merge(found.front(), options.open);
    excuse(options, checked.findings);
    refuse_on_error(checked.findings);
    return checked;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Interrupted) throw;
    const std::string sound = newest_sound(found, options);
    if (sound.empty()) throw;
    // Findings name their places themselves.
    const bool found_out = !error.findings().empty();
    const ErrorPlace place{.file = error.file(),
                           .tensor = error.tensor(),
                           .offset = error.offset()};
    Error with_hint(error.code(),
                    (found_out ? "" : error.message() + "; ") +
                        "the newest checkpoint here that can be merged is " +
                        escape(sound),
                    found_out ? ErrorPlace{} : place);
    with_hint.with_findings(error.findings());
    throw with_hint;
  }
}

MergeResult begin_result(CheckedCheckpoint& checked,
                         const MergeOptions& options) {
  const Checkpoint& checkpoint = *checked.checkpoint;
  MergeResult result;
  result.checkpoint = checkpoint.facts();
  result.findings = std::move(checked.findings);
  result.sources.assign(checkpoint.sources().begin(),
                        checkpoint.sources().end());
  if (options.observer != nullptr) {
    for (const std::string& note : checkpoint.facts().notes) {
      options.observer->note(note);
    }
  }
  return result;
}

uint64_t check_own_copies(const Checkpoint& checkpoint,
                          const MergeOptions& options) {
  if (options.check == Check::None) return 0;
  const CopyCheck copies =
      check_copies(checkpoint, options.check == Check::Full, options.open);
  refuse_on_error(copies.findings);
  return copies.elements;
}

void write_plan(const Checkpoint& checkpoint, const MergeOptions& options,
                Changes* changes, MergeResult& result) {
  OutputOptions output_options{.single_file = options.single_file,
                               .force = options.force,
                               .sync = options.sync,
                               .inputs = {}};
  const SourceSet& sources = *checkpoint.data().sources;
  for (uint32_t i = 0; i < sources.list().size(); ++i) {
    output_options.inputs.push_back(sources.path(i));
  }
  if (options.dry_run) {
    if (!options.output.empty()) {
      check_output(options.output, output_options);
    }
    return;
  }
  check_output(options.output, output_options);

  result.checked_elements = check_own_copies(checkpoint, options);
  Output output(options.output, output_options);
  execute(checkpoint, result.plan, options, changes, output, result);
  output.commit();
}

MergeResult merge(const std::string& path, const MergeOptions& options) {
  CheckedCheckpoint checked = open_checked(path, options);
  MergeResult result = begin_result(checked, options);
  result.plan = plan_merge(*checked.checkpoint, options);
  write_plan(*checked.checkpoint, options, nullptr, result);
  return result;
}

}  // namespace zckpt
