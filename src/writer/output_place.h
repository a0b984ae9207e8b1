// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "writer/output.h"

namespace zckpt {

// Where an output goes, and the names used on the way there.
struct OutputPlace {
  std::string given;   // as the caller wrote it, for messages
  std::string path;    // absolute, links resolved
  std::string parent;  // the folder above `path`
  std::string name;    // the last part of `path`; empty for "/"

  std::string beside(std::string_view suffix) const;
  // Where everything is written first, and where the old output waits for its
  // removal if the two cannot be exchanged in one step.
  std::string staging() const { return beside(".zckpt-partial"); }
  std::string old() const { return beside(".zckpt-old"); }
  // The same inside the output, where nothing can be written beside it.
  std::string inner_staging() const { return path + "/.zckpt-partial"; }
  // The list of what remains to be done, while files move out of
  // inner_staging(); a name of its own until it is whole.
  std::string journal() const { return path + "/.zckpt-commit"; }
  std::string journal_draft() const { return path + "/.zckpt-commit.new"; }
};

OutputPlace resolve_output(const std::string& path);

bool path_exists(const std::string& path);  // a dangling link exists
bool is_folder(const std::string& path);    // a link to a folder is none
bool is_mount_point(const std::string& path);
// The working directory of this process.
bool is_working_folder(const std::string& path);
// True for a name that Output itself uses inside a folder.
bool is_own_name(std::string_view name);
// Nothing but what an interrupted run, or mkfs, left there.
bool is_empty_folder(const std::string& path);
// A run was interrupted between the first and the last step of a replacement.
bool is_half_replaced(const OutputPlace& place);

// Throws Conflict where `place` must not be written, or not be replaced.
void refuse_output(const OutputPlace& place, const OutputOptions& options);
// The part that holds whatever is at `place`: inputs and "/".
void refuse_above_inputs(const OutputPlace& place,
                         const OutputOptions& options);

}  // namespace zckpt
