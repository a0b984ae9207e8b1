// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/checks.h"

#include <algorithm>
#include <filesystem>

#include "reader/checkpoint_data.h"

namespace zckpt {
namespace {

bool any_error(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
    return f.severity == Severity::Error;
  });
}

void append(std::vector<Finding>& to, const std::vector<Finding>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// An error that building the index gave, as the finding that it is.
Finding finding_of(const Error& error, const std::string& folder) {
  Finding finding{.code = "container-damaged",
                  .severity = Severity::Error,
                  .message = error.message(),
                  .file = relative_name(error.file(), folder),
                  .tensor = error.tensor(),
                  .offset = error.offset()};
  if (!error.findings().empty()) {
    finding.code = error.findings().front().code;
  } else if (error.code() == ErrorCode::Unsupported ||
             error.code() == ErrorCode::Invalid) {
    finding.code = "unsupported-layout";
  }
  return finding;
}

Finding excluded_finding() {
  return {.code = "frozen-missing",
          .severity = Severity::Error,
          .message =
              "the save left frozen weights out (exclude_frozen_parameters, as "
              "the Trainer does for PEFT models): the full model is not here. "
              "export-hf --base DIR takes them from the base model, "
              "--exclude-frozen merges what is here, extract-lora writes the "
              "adapter of a LoRA run"};
}

}  // namespace

std::string relative_name(const std::string& file, const std::string& folder) {
  const std::filesystem::path inner =
      std::filesystem::path(file).lexically_relative(folder);
  if (inner.empty() || *inner.begin() == "..") return file;
  return inner.generic_string();
}

std::vector<std::string> side_folders(const CheckpointPath& where) {
  std::vector<std::string> folders{where.folder};
  for (const std::string& tag_folder : where.also) {
    const auto path = std::filesystem::path(tag_folder);
    folders.push_back(
        (path.has_filename() ? path : path.parent_path()).parent_path());
  }
  return folders;
}

std::set<std::filesystem::path> side_files(const CheckpointPath& where) {
  namespace fs = std::filesystem;
  std::set<fs::path> files;
  for (const std::string& folder : side_folders(where)) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error);
         !error && it != fs::directory_iterator(); it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.starts_with("scheduler.") || name == "scaler.pt" ||
          name.starts_with("rng_state") || name.starts_with("random_states")) {
        files.insert(it->path());
      }
    }
  }
  return files;
}

CheckedCheckpoint check_for_merge(const CheckpointPath& where,
                                  const OpenOptions& options) {
  CheckedCheckpoint checked;
  if (!where.problem.empty()) {
    checked.findings.push_back({.code = "model-shard-missing",
                                .severity = Severity::Error,
                                .message = where.problem,
                                .file = where.folder});
    return checked;
  }
  std::shared_ptr<const ShardSet> shards;
  if (where.framework != Framework::Weights) {
    shards = std::make_shared<const ShardSet>(read_shards(where, options));
    checked.shards = shards;
    checked.findings = check_shards(*shards);
    if (any_error(checked.findings)) return checked;
  }
  try {
    if (shards != nullptr && shards->leading_model() != nullptr) {
      const ModelStates states =
          read_model_states(*shards, *shards->leading_model());
      append(checked.findings, check_sums(*shards, states));
      if (any_error(checked.findings)) return checked;
    }
    auto data = build_checkpoint(where, shards);
    append(checked.findings, data->contents.findings);
    if (data->facts.frozen_excluded) {
      checked.findings.push_back(excluded_finding());
    }
    checked.checkpoint = Checkpoint(std::move(data));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Io ||
        error.code() == ErrorCode::Interrupted) {
      throw;
    }
    checked.findings.push_back(finding_of(error, where.folder));
  }
  return checked;
}

}  // namespace zckpt
