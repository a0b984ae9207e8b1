// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/checks.h"
#include "zckpt/verify.h"

namespace zckpt {

struct ScanResult {
  std::vector<Finding> findings;
  std::vector<std::string> notes;  // what could not be compared, and why
  ScanFacts facts;
};

// Reads every byte of a checkpoint, each once and every file from front to
// back: shards, swap files, gathered weights beside the shards, and what a
// framework resumes from beside them. Compares the CRC of every record, and
// gives all values to ValueChecks. A file that is damaged does not end it.
// Findings: crc-mismatch, crc-unchecked, file-unreadable, container-damaged
// (only for a file that `checked` says nothing of), and those of ValueChecks.
// Errors: Interrupted.
// Memory: options.memory_bytes for buffers; O(tensors) and, for a few files at
//         a time, where each of their tensors lies.
ScanResult scan(const CheckpointPath& where, const CheckedCheckpoint& checked,
                const VerifyOptions& options);

}  // namespace zckpt
