// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/exchange.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

// First and last record of a journal; each record ends with a zero byte, which
// no file name contains.
constexpr std::string_view kJournalHead = "zckpt-commit 1";
constexpr std::string_view kJournalTail = "end";
constexpr uint64_t kJournalCap = uint64_t{64} << 20;

bool no_such_rename(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) {
    throw Error(ErrorCode::Io, "cannot list: " + error.message(),
                {.file = folder});
  }
  std::ranges::sort(names);
  return names;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && !is_own_name(name);
}

// A replaced folder keeps who may read and write it.
void copy_mode(const std::string& from, const std::string& to) {
  struct stat status {};
  if (::stat(from.c_str(), &status) != 0) return;
  // A file system without modes is no reason to fail.
  (void)::chmod(to.c_str(), status.st_mode & 07777U);
}

}  // namespace

void sync_folder(const std::string& path, const OutputCalls& calls) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == EACCES) return;  // may be entered but not listed
    throw_errno("cannot open", path);
  }
  if (calls.fsync(fd.get()) == 0 || errno == EINVAL || errno == EOPNOTSUPP) {
    return;
  }
  throw_errno("cannot write to the disk", path);
}

Exchange::Exchange(const OutputPlace& place, const OutputOptions& options,
                   const OutputCalls& calls)
    : place_(place), options_(options), calls_(calls) {}

void Exchange::sync_folder(const std::string& path) const {
  if (options_.sync) zckpt::sync_folder(path, calls_);
}

void Exchange::hold_output() {
  if (output_.has_value()) return;
  output_ = claim(place_, place_.path, calls_);
  if (!output_.has_value()) {
    throw Error(ErrorCode::Conflict, "another run replaced it meanwhile",
                {.file = place_.given});
  }
}

void Exchange::recover(bool inside) {
  if (is_folder(place_.path) &&
      (path_exists(place_.journal()) || path_exists(place_.journal_draft()) ||
       path_exists(place_.inner_staging()))) {
    hold_output();
    if (path_exists(place_.journal())) finish_journal();
    // Without locks they may be those of a live run.
    if (output_->locked) discard_inside();
    if (!inside) output_.reset();
  }
  if (inside || !is_folder(place_.old())) return;
  // A run that still removes it holds it.
  const std::optional<Claim> old = claim(place_, place_.old(), calls_);
  if (!old.has_value()) return;
  if (path_exists(place_.path)) return remove(place_.old());
  if (calls_.rename(place_.old().c_str(), place_.path.c_str(), 0) != 0) {
    throw_errno("cannot put back " + place_.old(), place_.given);
  }
  sync_folder(place_.parent);
}

void Exchange::discard_inside() {
  if (decided_ || !output_.has_value()) return;
  remove(place_.journal_draft());
  remove(place_.inner_staging());
}

void Exchange::publish_file() {
  refuse_output(place_, options_);
  if (!path_exists(place_.path)) return publish_new();
  copy_mode(place_.path, place_.staging());
  if (calls_.rename(place_.staging().c_str(), place_.path.c_str(), 0) != 0) {
    throw_errno("cannot rename " + place_.staging(), place_.given);
  }
  decided_ = true;
  sync_folder(place_.parent);
}

void Exchange::publish_beside() {
  // Hours may have passed since this was asked.
  refuse_output(place_, options_);
  if (!path_exists(place_.path)) return publish_new();
  copy_mode(place_.path, place_.staging());
  if (is_empty_folder(place_.path)) return publish_over_empty();
  publish_over_full();
}

void Exchange::publish_new() {
  const std::string from = place_.staging();
  int result =
      calls_.rename(from.c_str(), place_.path.c_str(), RENAME_NOREPLACE);
  if (result != 0 && no_such_rename(errno) && !path_exists(place_.path)) {
    // Something may appear at this very moment: an empty folder, which is
    // harmless, or for a single file another file, which would be lost.
    result = calls_.rename(from.c_str(), place_.path.c_str(), 0);
  }
  if (result != 0 && (errno == EEXIST || errno == ENOTEMPTY)) {
    throw Error(ErrorCode::Conflict, "it appeared while this run was writing",
                {.file = place_.given});
  }
  if (result != 0) throw_errno("cannot rename " + from, place_.given);
  decided_ = true;
  sync_folder(place_.parent);
}

void Exchange::publish_over_empty() {
  const std::string from = place_.staging();
  if (calls_.rename(from.c_str(), place_.path.c_str(), 0) == 0) {
    decided_ = true;
    return sync_folder(place_.parent);
  }
  if (errno == EEXIST || errno == ENOTEMPTY) {
    throw Error(ErrorCode::Conflict,
                "it was empty, and no longer is; it was left alone",
                {.file = place_.given});
  }
  if (!move_inside(errno)) throw_errno("cannot rename " + from, place_.given);
}

void Exchange::publish_over_full() {
  hold_output();
  const std::string from = place_.staging();
  if (calls_.rename(from.c_str(), place_.path.c_str(), RENAME_EXCHANGE) == 0) {
    decided_ = true;
    sync_folder(place_.parent);
    return remove_old(from);
  }
  if (no_such_rename(errno)) return publish_in_two_steps();
  if (!move_inside(errno)) throw_errno("cannot exchange", place_.given);
}

void Exchange::publish_in_two_steps() {
  const std::string from = place_.staging();
  const std::string old = place_.old();
  if (calls_.rename(place_.path.c_str(), old.c_str(), 0) != 0) {
    if (move_inside(errno)) return;
    throw_errno("cannot rename to " + old, place_.given);
  }
  if (calls_.rename(from.c_str(), place_.path.c_str(), 0) != 0) {
    const int error = errno;
    const bool undone = calls_.rename(old.c_str(), place_.path.c_str(), 0) == 0;
    throw Error(ErrorCode::Io,
                "cannot rename " + from + ": " + std::strerror(error) +
                    (undone ? "" : "; the old output is at " + old),
                {.file = place_.given});
  }
  decided_ = true;
  sync_folder(place_.parent);
  remove_old(old);
}

// The third way, where `error` says that OUT itself cannot be renamed: it is
// mounted there, an overlay's lower layer, or somebody else's.
bool Exchange::move_inside(int error) {
  if (error != EXDEV && error != EBUSY && error != EPERM && error != EACCES) {
    return false;
  }
  hold_output();
  const std::string from = place_.staging();
  if (calls_.rename(from.c_str(), place_.inner_staging().c_str(), 0) != 0) {
    throw_errno("cannot rename " + from + " into it", place_.given);
  }
  publish_inside();
  return true;
}

void Exchange::publish_inside() {
  refuse_output(place_, options_);
  Journal journal;
  journal.moves = names_in(place_.inner_staging());
  const bool mounted = is_mount_point(place_.path);
  for (const std::string& name : names_in(place_.path)) {
    if (is_own_name(name) || (mounted && name == "lost+found")) continue;
    journal.removals.push_back(name);
  }
  write_journal(journal);
  finish_journal();
}

void Exchange::write_journal(const Journal& journal) {
  std::string text(kJournalHead);
  text += '\0';
  for (const std::string& name : journal.moves) text += 'M' + name + '\0';
  for (const std::string& name : journal.removals) text += 'R' + name + '\0';
  text += kJournalTail;
  text += '\0';
  const std::string draft = place_.journal_draft();
  const UniqueFd fd(
      ::open(draft.c_str(),
             O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) throw_errno("cannot create", draft);
  write_at(fd.get(), 0, std::as_bytes(std::span(text)), draft);
  if (options_.sync && calls_.fsync(fd.get()) != 0) {
    throw_errno("cannot write to the disk", draft);
  }
  if (calls_.rename(draft.c_str(), place_.journal().c_str(), 0) != 0) {
    throw_errno("cannot rename " + draft, place_.given);
  }
  decided_ = true;
  sync_folder(place_.path);
}

Exchange::Journal Exchange::read_journal() const {
  const std::string text = read_text_file(place_.journal(), kJournalCap);
  std::vector<std::string> records;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\0', start), text.size());
    records.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  Journal journal;
  bool sound = records.size() >= 2 && records.front() == kJournalHead &&
               records.back() == kJournalTail;
  for (size_t i = 1; sound && i + 1 < records.size(); ++i) {
    const std::string name = records[i].empty() ? "" : records[i].substr(1);
    sound =
        is_plain_name(name) && (records[i][0] == 'M' || records[i][0] == 'R');
    (records[i][0] == 'M' ? journal.moves : journal.removals).push_back(name);
  }
  if (sound) return journal;
  throw Error(ErrorCode::Conflict,
              "an interrupted run left a commit list that is damaged; look at "
              "the folder, and remove " +
                  place_.journal(),
              {.file = place_.given});
}

// May start again at any step, by another run.
void Exchange::finish_journal() {
  const Journal journal = read_journal();
  const auto staged = [&](const std::string& name) {
    return place_.inner_staging() + "/" + name;
  };
  const auto final = [&](const std::string& name) {
    return place_.path + "/" + name;
  };
  // The old ones go first: a reader finds a folder that lacks files, not one
  // that mixes two models.
  for (const std::string& name : journal.removals) {
    const bool moved = std::ranges::binary_search(journal.moves, name) &&
                       !path_exists(staged(name));
    if (!moved) remove(final(name));
  }
  for (const std::string& name : journal.moves) {
    if (!path_exists(staged(name))) continue;
    if (calls_.rename(staged(name).c_str(), final(name).c_str(), 0) != 0) {
      throw_errno("cannot rename " + staged(name), final(name));
    }
  }
  sync_folder(place_.path);
  remove(place_.inner_staging());
  remove(place_.journal());
  sync_folder(place_.path);
}

void Exchange::remove(const std::string& path) const {
  if (calls_.remove_all(path) != 0) throw_errno("cannot remove", path);
}

void Exchange::remove_old(const std::string& path) const {
  if (calls_.remove_all(path) == 0) return;
  throw_errno("the new output is in place, but the old one cannot be removed",
              path);
}

}  // namespace zckpt
