// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "writer/output_calls.h"
#include "writer/output_place.h"

namespace zckpt {

// A file or folder that no other run touches while this lives.
struct Claim {
  UniqueFd fd;
  bool locked = false;  // false where the file system has no locks
};

// Claims what is at `path`; nothing where there is nothing, or where another
// run renamed or removed it while the lock was taken. Throws Conflict where
// another run holds it.
std::optional<Claim> claim(const OutputPlace& place, const std::string& path,
                           const OutputCalls& calls);

// Makes `path`, a folder or an empty file, and claims it; what a dead run left
// there is removed. Nothing where the folder above cannot be written.
std::optional<Claim> claim_fresh(const OutputPlace& place,
                                 const std::string& path, bool single_file,
                                 const OutputCalls& calls);

// Makes the folders missing above and including `path`; returns those made,
// the outermost first.
std::vector<std::string> make_folders(const std::string& path,
                                      const OutputCalls& calls);

}  // namespace zckpt
