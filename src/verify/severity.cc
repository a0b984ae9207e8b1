// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/severity.h"

#include <algorithm>
#include <array>

namespace zckpt {
namespace {

constexpr auto kError = Severity::Error;
constexpr auto kWarning = Severity::Warning;
constexpr auto kNote = Severity::Note;
constexpr std::nullopt_t kAsFound = std::nullopt;

// Columns: code, area, consequence for resume, consequence for merge.
constexpr std::array<CodeRow, 62> kTable{{
    {"latest-missing", "folder", kAsFound, kWarning},
    {"latest-dangling", "folder", kAsFound, kWarning},
    {"tag-ambiguous", "folder", kError, kError},
    {"model-shard-missing", "folder", kError, kAsFound},
    {"optim-shard-missing", "folder", kError, kAsFound},
    {"shard-surplus", "folder", kWarning, kWarning},
    {"shard-elsewhere", "folder", kNote, kNote},
    {"shard-conflict", "folder", kError, kError},
    {"prefix-mixed", "folder", kError, kAsFound},
    {"stage-conflict", "folder", kError, kAsFound},
    {"world-size-conflict", "folder", kError, kAsFound},
    {"foreign-writer", "folder", kError, kAsFound},
    {"unsupported-layout", "folder", kError, kError},
    {"tmp-checkpoint", "folder", kError, kWarning},
    {"file-unreadable", "file", kAsFound, kAsFound},
    {"file-empty", "file", kAsFound, kAsFound},
    {"file-truncated", "file", kAsFound, kAsFound},
    {"file-misnamed", "file", kError, kError},
    {"file-duplicate", "file", kError, kError},
    {"container-damaged", "file", kAsFound, kAsFound},
    {"record-missing", "file", kAsFound, kAsFound},
    {"crc-mismatch", "file", kAsFound, kAsFound},
    {"crc-unchecked", "file", kNote, kNote},
    {"pickle-invalid", "file", kAsFound, kAsFound},
    {"pickle-dangerous", "file", kError, kWarning},
    {"pickle-opaque", "file", kNote, kNote},
    {"key-missing", "file", kAsFound, kAsFound},
    {"step-mismatch", "across ranks", kError, kError},
    {"version-mismatch", "across ranks", kWarning, kWarning},
    {"config-mismatch", "across ranks", kWarning, kWarning},
    {"shapes-mismatch", "across ranks", kAsFound, kAsFound},
    {"group-length-mismatch", "across ranks", kError, kError},
    {"partition-short", "across ranks", kError, kError},
    {"partition-surplus", "across ranks", kError, kError},
    {"padding-nonzero", "across ranks", kAsFound, kAsFound},
    {"slice-map-mismatch", "across ranks", kNote, kNote},
    {"name-unaccounted", "names", kWarning, kError},
    {"parameter-duplicate", "names", kError, kError},
    {"alias-implausible", "names", kWarning, kWarning},
    {"alias-dangling", "names", kAsFound, kAsFound},
    {"frozen-missing", "names", kAsFound, kAsFound},
    {"frozen-unrecoverable", "names", kError, kError},
    {"placeholder-weight", "names", kWarning, kWarning},
    {"weights-disagree", "values", kError, kError},
    {"sidecar-disagree", "values", kWarning, kWarning},
    {"nan", "values", kWarning, kWarning},
    {"inf", "values", kAsFound, kAsFound},
    {"optimizer-state-absent", "optimizer", kAsFound, kNote},
    {"moment-missing", "optimizer", kError, kNote},
    {"moment-length", "optimizer", kError, kNote},
    {"swap-file-missing", "optimizer", kError, kAsFound},
    {"swap-resume-broken", "optimizer", kError, kNote},
    {"trainer-state-missing", "framework", kError, kNote},
    {"trainer-state-invalid", "framework", kError, kNote},
    {"trainer-step-differs", "framework", kNote, kNote},
    {"scheduler-missing", "framework", kAsFound, kNote},
    {"rng-missing", "framework", kWarning, kNote},
    {"rng-damaged", "framework", kAsFound, kNote},
    {"class-needed", "framework", kAsFound, kNote},
    {"expert-missing", "grid", kError, kError},
    {"layer-missing", "grid", kAsFound, kAsFound},
    {"weights-only-model", "framework", kError, kNote},
}};

}  // namespace

std::span<const CodeRow> code_table() { return kTable; }

const CodeRow* find_code(std::string_view code) {
  const auto it =
      std::find_if(kTable.begin(), kTable.end(),
                   [&](const auto& row) { return row.code == code; });
  return it == kTable.end() ? nullptr : &*it;
}

std::vector<Finding> answer(std::vector<Finding> findings, Question question) {
  for (Finding& finding : findings) {
    const CodeRow* row = find_code(finding.code);
    if (row == nullptr) continue;
    const auto& severity =
        question == Question::Resume ? row->resume : row->merge;
    if (severity) finding.severity = *severity;
  }
  return findings;
}

}  // namespace zckpt
