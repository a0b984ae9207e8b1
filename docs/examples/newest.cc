// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds the newest checkpoint of a run that resumes, for a launcher after a
// crash: newest RUN_FOLDER

#include <zckpt/error.h>
#include <zckpt/verify.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: newest RUN_FOLDER\n");
    return 2;
  }
  // Reads metadata only, newest checkpoint first, and stops at the first that
  // resumes. `full` would read every byte of each.
  zckpt::VerifyOptions options;
  options.newest_only = true;
  const zckpt::VerifyResult result = zckpt::verify(argv[1], options);

  // What is wrong with a checkpoint is data, not an exception: say why the
  // newer ones were passed over.
  for (const zckpt::Verification& one : result.checkpoints) {
    if (one.can_resume) break;
    std::fprintf(stderr, "%s: %s\n", one.path.c_str(),
                 to_string(one.verdict).data());
    for (const zckpt::Finding& finding : one.findings) {
      if (finding.severity == zckpt::Severity::Error) {
        std::fprintf(stderr, "  [%s] %s\n", finding.code.c_str(),
                     finding.message.c_str());
      }
    }
  }
  if (!result.newest_resumable) return 1;
  std::puts(result.checkpoints[*result.newest_resumable].path.c_str());
  return 0;
} catch (const zckpt::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
