// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "writer/output_calls.h"
#include "writer/output_lock.h"
#include "writer/output_place.h"

namespace zckpt {

// Exchange puts a finished staging folder or file in the place of an output.
// Three ways, the first that the file system offers:
//  1. one rename: onto nothing, onto an empty folder, or exchanging the two;
//  2. two renames, OUT to ".OUT.zckpt-old" and staging to OUT. A run killed
//     between them leaves no OUT; the next one renames the old one back;
//  3. inside OUT (a mount point, the working folder, a parent that cannot be
//     written): a journal lists what moves up out of "OUT/.zckpt-partial" and
//     what goes. Once it is there the next run completes what it says.
// Whoever replaces OUT, or changes what is in it, holds a lock on it; a lock
// follows its folder through renames, so that nobody takes the old output for
// leavings while it is being removed.
class Exchange {
 public:
  // The arguments must outlive this.
  Exchange(const OutputPlace& place, const OutputOptions& options,
           const OutputCalls& calls);

  // Locks OUT until this dies. For the third way, before inner_staging() is
  // made. REQUIRES: OUT is a folder.
  void hold_output();

  // Completes or undoes what earlier runs began. REQUIRES: a claim on the
  // staging folder, or, for the third way (`inside`), hold_output().
  void recover(bool inside);
  // Removes what this run has inside OUT, if it holds OUT and decided nothing.
  void discard_inside();

  // Put what is at place.staging(), or at inner_staging(), in place.
  void publish_file();
  void publish_beside();
  void publish_inside();

  // True once the new output is in place, or the next run will put it there;
  // a throw after that is about what remains to be cleaned up.
  bool decided() const { return decided_; }

 private:
  struct Journal {
    std::vector<std::string> moves;
    std::vector<std::string> removals;
  };

  void publish_new();
  void publish_over_empty();
  void publish_over_full();
  void publish_in_two_steps();
  bool move_inside(int error);
  void write_journal(const Journal& journal);
  Journal read_journal() const;
  void finish_journal();
  void remove(const std::string& path) const;
  void remove_old(const std::string& path) const;
  void sync_folder(const std::string& path) const;

  const OutputPlace& place_;
  const OutputOptions& options_;
  const OutputCalls& calls_;
  std::optional<Claim> output_;
  bool decided_ = false;
};

// fsync of a folder; where a file system does not offer it there is nothing to
// be had.
void sync_folder(const std::string& path, const OutputCalls& calls);

}  // namespace zckpt
