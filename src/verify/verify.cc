// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/verify.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "reader/checkpoint_data.h"
#include "reader/layout.h"
#include "verify/checks.h"
#include "verify/resume_checks.h"
#include "verify/scan.h"
#include "verify/severity.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

bool any_error(const std::vector<Finding>& findings, bool strict) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
    return f.severity == Severity::Error ||
           (strict && f.severity == Severity::Warning);
  });
}

bool has_code(const std::vector<Finding>& findings, std::string_view code) {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const Finding& f) { return f.code == code; });
}

void append(std::vector<Finding>& to, std::vector<Finding> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()),
            std::make_move_iterator(from.end()));
}

// Errors first, else as they were.
void sort_by_severity(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) {
                     return a.severity > b.severity;
                   });
}

std::optional<Framework> framework_named(const std::string& name) {
  if (name == "hf") return Framework::HfTrainer;
  if (name == "deepspeed") return Framework::DeepSpeed;
  if (name == "accelerate") return Framework::Accelerate;
  if (name == "lightning") return Framework::Lightning;
  return std::nullopt;
}

// Judges one checkpoint.
class Judge {
 public:
  Judge(const CheckpointPath& where, const VerifyOptions& options)
      : where_(where),
        options_(options),
        framework_(
            framework_named(options.framework).value_or(where.framework)) {}

  Verification run() {
    result_.tag = where_.tag;
    result_.step = where_.step;
    CheckedCheckpoint checked = check_for_merge(where_, options_.open);
    fill_facts(checked);
    if (options_.full) read_everything(checked);
    std::vector<Finding> merge = answer(checked.findings, Question::Merge);
    std::vector<Finding> resume = answer(checked.findings, Question::Resume);
    settle_for_resume(resume, checked.shards.get());
    // What the save left out on purpose is no damage to what it holds.
    if (result_.facts.frozen_excluded) downgrade_excluded(merge);
    if (checked.shards != nullptr) {
      std::vector<Finding> more = resume_findings(*checked.shards);
      append(merge, answer_merge(more));
      append(resume, answer(std::move(more), Question::Resume));
      // Who wants to resume says nothing about the weights.
      append(resume, check_requested(*checked.shards, options_));
    } else if (where_.framework == Framework::Weights) {
      resume.push_back({.code = "weights-only-model",
                        .severity = Severity::Error,
                        .message = "a folder of weights: there is no "
                                   "optimizer state to resume from"});
    }
    decide(std::move(merge), std::move(resume));
    return std::move(result_);
  }

 private:
  void fill_facts(const CheckedCheckpoint& checked) {
    if (checked.checkpoint) {
      result_.facts = checked.checkpoint->facts();
    } else if (checked.shards != nullptr) {
      result_.facts = facts_of(*checked.shards);
    }
    result_.facts.framework = to_string(framework_);
  }

  void read_everything(CheckedCheckpoint& checked) {
    ScanResult scanned = scan(where_, checked, options_);
    append(checked.findings, std::move(scanned.findings));
    result_.facts.notes.insert(result_.facts.notes.end(), scanned.notes.begin(),
                               scanned.notes.end());
    result_.scan = scanned.facts;
  }

  std::vector<Finding> resume_findings(const ShardSet& shards) const {
    std::vector<Finding> findings;
    if (!unsupported_layout(shards)) findings = check_optimizer(shards);
    append(findings, check_framework(shards, framework_));
    append(findings, check_classes(shards));
    return findings;
  }

  // What only a resume reads says nothing about the weights.
  static std::vector<Finding> answer_merge(std::vector<Finding> findings) {
    for (Finding& finding : findings) {
      const CodeRow* row = find_code(finding.code);
      const bool weights = finding.code != "group-length-mismatch";
      finding.severity = row == nullptr || !weights
                             ? Severity::Note
                             : row->merge.value_or(Severity::Note);
    }
    return findings;
  }

  // A resume knows the names from the model that it loads into.
  static bool names_are_absent(const Finding& finding, const ShardSet* shards) {
    if (finding.code != "container-damaged" || !finding.file.empty() ||
        shards == nullptr) {
      return false;
    }
    const ShardFile* model = shards->leading_model();
    return model != nullptr && model->model->shapes_digest == 0;
  }

  // Codes whose meaning for a resume depends on who loads.
  void settle_for_resume(std::vector<Finding>& findings,
                         const ShardSet* shards) const {
    for (Finding& finding : findings) {
      if (names_are_absent(finding, shards)) {
        finding.severity = Severity::Warning;
        continue;
      }
      if (finding.code == "latest-missing" ||
          finding.code == "latest-dangling") {
        // accelerate names the tag itself; so does whoever gave --tag.
        const bool named =
            framework_ == Framework::Accelerate ||
            (framework_ == Framework::DeepSpeed && !options_.open.tag.empty());
        finding.severity = named ? Severity::Note : Severity::Error;
      } else if (finding.code == "frozen-missing" && finding.tensor.empty()) {
        finding.severity = Severity::Note;
        finding.message =
            "the save left frozen weights out; a resume takes them from the "
            "base model and must load non-strictly, as the Trainer does for "
            "PEFT models";
      } else if (is_file_fault(finding.code)) {
        const bool surplus =
            finding.rank && *finding.rank >= result_.facts.world_size;
        finding.severity = surplus ? Severity::Warning : Severity::Error;
      }
    }
  }

  static bool is_file_fault(std::string_view code) {
    const CodeRow* row = find_code(code);
    return row != nullptr && row->area == "file" && !row->resume;
  }

  static void downgrade_excluded(std::vector<Finding>& findings) {
    for (Finding& finding : findings) {
      if (finding.code == "frozen-missing" && finding.tensor.empty()) {
        finding.severity = Severity::Warning;
      }
    }
  }

  void decide(std::vector<Finding> merge, std::vector<Finding> resume) {
    const bool unread = has_code(merge, "unsupported-layout");
    const bool unsupported = unread || has_code(merge, "foreign-writer");
    const bool nothing_wrong = unread ? !any_damage(merge) : unsupported;
    result_.can_merge = !any_error(merge, options_.strict);
    result_.can_resume = !unsupported && !any_error(resume, options_.strict);
    if (result_.can_resume) {
      result_.verdict = Verdict::Resumable;
    } else if (!where_.problem.empty()) {
      result_.verdict = Verdict::NotACheckpoint;
    } else if (nothing_wrong) {
      result_.verdict = Verdict::Unsupported;
    } else if (result_.can_merge) {
      result_.verdict = Verdict::WeightsOnly;
    } else {
      result_.verdict = Verdict::Damaged;
    }
    result_.findings = options_.question == Question::Resume ? std::move(resume)
                                                             : std::move(merge);
    sort_by_severity(result_.findings);
  }

  // Errors that mean damage in whatever layout they are found.
  static bool any_damage(const std::vector<Finding>& findings) {
    return std::any_of(
        findings.begin(), findings.end(), [](const Finding& finding) {
          const CodeRow* row = find_code(finding.code);
          return finding.severity == Severity::Error && row != nullptr &&
                 (row->area == "file" || row->area == "grid" ||
                  finding.code.ends_with("-shard-missing"));
        });
  }

  const CheckpointPath& where_;
  const VerifyOptions& options_;
  Framework framework_;
  Verification result_;
};

// A checkpoint that vanished, or that a disk failed under, while it was judged.
Verification unreadable(const std::string& path, const Error& error) {
  Verification result{.path = path, .verdict = Verdict::Damaged};
  result.findings.push_back({.code = "file-unreadable",
                             .severity = Severity::Error,
                             .message = error.message(),
                             .file = error.file()});
  return result;
}

// Of a tmp-checkpoint-N, what a save that was cut short leaves behind. No
// framework resumes from a folder of that name; its weights may be whole.
Verification judge_unfinished(const fs::path& folder, uint64_t step,
                              const VerifyOptions& options) {
  Verification unfinished{.path = folder.string(),
                          .verdict = Verdict::NotACheckpoint};
  try {
    const auto found = find_checkpoints(folder.string(), options.open);
    unfinished = Judge(found.front(), options).run();
    unfinished.path = folder.string();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Interrupted) throw;
    if (error.code() != ErrorCode::Invalid) {
      unfinished = unreadable(folder.string(), error);
    }
  }
  unfinished.step = step;
  unfinished.can_resume = false;
  if (unfinished.verdict == Verdict::Resumable) {
    unfinished.verdict =
        unfinished.can_merge ? Verdict::WeightsOnly : Verdict::Damaged;
  }
  std::vector<Finding> first = {
      {.code = "tmp-checkpoint",
       .severity = Severity::Error,
       .message = "a save that never finished, or what a late rank wrote of "
                  "checkpoint-" +
                  std::to_string(step) +
                  "; nothing resumes from a folder of this name. It can be "
                  "removed if that checkpoint is whole"}};
  first = answer(std::move(first), options.question);
  append(first, std::move(unfinished.findings));
  sort_by_severity(first);
  unfinished.findings = std::move(first);
  return unfinished;
}

std::vector<Verification> judge_unfinished(const std::string& path,
                                           const VerifyOptions& options) {
  std::vector<Verification> found;
  std::error_code error;
  for (fs::directory_iterator it(path, error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto step = number_after(name, "tmp-checkpoint-")) {
      found.push_back(judge_unfinished(it->path(), *step, options));
    }
  }
  return found;
}

Verification not_a_checkpoint(const std::string& path, const Error& error) {
  Verification result{.path = path, .verdict = Verdict::NotACheckpoint};
  if (!error.findings().empty()) {
    result.findings = error.findings();
    return result;
  }
  result.findings.push_back({.code = "model-shard-missing",
                             .severity = Severity::Error,
                             .message = error.message()});
  return result;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::Resumable: return "resumable";
    case Verdict::WeightsOnly: return "weights-only";
    case Verdict::Damaged: return "damaged";
    case Verdict::Unsupported: return "unsupported";
    case Verdict::NotACheckpoint: return "not-a-checkpoint";
  }
  return "damaged";
}

VerifyResult verify(const std::string& path, const VerifyOptions& options) {
  VerifyResult result;
  std::vector<CheckpointPath> found;
  try {
    found = find_checkpoints(path, options.open);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Invalid) throw;
    result.checkpoints.push_back(not_a_checkpoint(path, error));
  }
  // A run is a folder of checkpoints, be it one.
  std::error_code ignored;
  const auto inside = [&](const CheckpointPath& where) {
    return !fs::equivalent(where.folder, path, ignored) &&
           !fs::equivalent(where.tag_folder, path, ignored);
  };
  result.is_run =
      found.size() > 1 || std::any_of(found.begin(), found.end(), inside);
  for (const CheckpointPath& where : found) {
    try {
      result.checkpoints.push_back(Judge(where, options).run());
    } catch (const Error& error) {
      // Of a run the other checkpoints count all the same.
      if (error.code() == ErrorCode::Interrupted || found.size() == 1) throw;
      result.checkpoints.push_back(unreadable(where.folder, error));
      result.checkpoints.back().step = where.step;
    }
    result.checkpoints.back().path = !result.is_run      ? path
                                     : inside(where)     ? where.folder
                                     : where.tag.empty() ? where.folder
                                                         : where.tag_folder;
    if (options.newest_only && result.checkpoints.back().can_resume) break;
  }
  // No answer to --newest.
  if (!options.newest_only) {
    for (Verification& unfinished : judge_unfinished(path, options)) {
      result.is_run = true;
      result.checkpoints.push_back(std::move(unfinished));
    }
  }
  std::stable_sort(result.checkpoints.begin(), result.checkpoints.end(),
                   [](const Verification& a, const Verification& b) {
                     return a.step.value_or(0) > b.step.value_or(0);
                   });
  for (size_t i = 0; i < result.checkpoints.size(); ++i) {
    if (result.checkpoints[i].can_resume) {
      result.newest_resumable = i;
      break;
    }
  }
  return result;
}

}  // namespace zckpt
