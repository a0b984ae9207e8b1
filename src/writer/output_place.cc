// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/output_place.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const OutputPlace& place, const std::string& why) {
  throw Error(ErrorCode::Conflict, why, {.file = place.given});
}

[[noreturn]] void throw_io(const std::string& what, const std::string& path,
                           const std::error_code& error) {
  throw Error(ErrorCode::Io, what + ": " + error.message(), {.file = path});
}

std::string canonical(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (error) throw_io("cannot resolve", path, error);
  std::string text = fs::weakly_canonical(absolute, error).string();
  if (error) throw_io("cannot resolve", path, error);
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

// `path` itself, or a folder above it.
bool holds(const std::string& folder, const std::string& path) {
  if (!path.starts_with(folder)) return false;
  return path.size() == folder.size() || folder == "/" ||
         path[folder.size()] == '/';
}

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return status;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw_errno("cannot look at", path);
}

std::vector<fs::directory_entry> entries_of(const std::string& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    entries.push_back(*it);
  }
  // Gone meanwhile: another run may be at work here, which the lock will tell.
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) throw_io("cannot list", folder, error);
  return entries;
}

// The home of the user who runs this, from the user database.
std::string home_folder() {
  std::array<char, 4096> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) !=
          0 ||
      found == nullptr || found->pw_dir == nullptr || *found->pw_dir == '\0') {
    return "";
  }
  return canonical(found->pw_dir);
}

void refuse_checkpoint_name(const OutputPlace& place, const std::string& name,
                            const std::string& path) {
  if (name == "latest" || name.ends_with("_states.pt")) {
    refuse(place, "it holds " + path +
                      ", part of a checkpoint, and is not replaced; choose "
                      "another output");
  }
}

// Everything below the folder would be gone, so everything is looked at.
void refuse_contents(const OutputPlace& place) {
  std::vector<std::string> pending{place.path};
  while (!pending.empty()) {
    const std::string folder = std::move(pending.back());
    pending.pop_back();
    for (const fs::directory_entry& entry : entries_of(folder)) {
      const std::string path = entry.path().string();
      if (is_folder(path)) {
        if (is_mount_point(path)) {
          refuse(place, "another file system is mounted below it, at " + path +
                            "; it is not replaced");
        }
        pending.push_back(path);
      } else {
        refuse_checkpoint_name(place, entry.path().filename().string(), path);
      }
    }
  }
}

void refuse_folder(const OutputPlace& place, const OutputOptions& options) {
  if (is_empty_folder(place.path)) return;
  if (!options.force) {
    refuse(place, "it exists and is not empty; --force replaces it");
  }
  if (is_mount_point(place.path)) {
    refuse(place, "it is a mount point, which is not replaced");
  }
  const std::string home = home_folder();
  if (!home.empty() && holds(place.path, home)) {
    refuse(place, "it is, or holds, the home folder " + home +
                      ", which is not replaced");
  }
  refuse_contents(place);
}

void refuse_file(const OutputPlace& place, const OutputOptions& options,
                 const struct stat& status) {
  if (S_ISDIR(status.st_mode)) {
    refuse(place, "it is a folder, and the output is one file");
  }
  if (!S_ISREG(status.st_mode)) refuse(place, "it is not a regular file");
  if (!options.force) refuse(place, "it exists; --force replaces it");
  refuse_checkpoint_name(place, place.name, place.given);
}

// An output that is not there yet: can it be made?
void refuse_missing(const OutputPlace& place) {
  std::string folder = place.parent;
  while (!path_exists(folder)) {
    folder = fs::path(folder).parent_path().string();
  }
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    refuse(place, folder + " is not a folder");
  }
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw_errno("cannot write in " + folder, place.given);
  }
}

}  // namespace

std::string OutputPlace::beside(std::string_view suffix) const {
  return (parent == "/" ? "/." : parent + "/.") + name + std::string(suffix);
}

OutputPlace resolve_output(const std::string& path) {
  if (path.empty()) {
    throw Error(ErrorCode::Invalid, "the output has no name");
  }
  const fs::path resolved = canonical(path);
  return {.given = path,
          .path = resolved.string(),
          .parent = resolved.parent_path().string(),
          .name = resolved.filename().string()};
}

bool path_exists(const std::string& path) {
  return status_of(path).has_value();
}

bool is_folder(const std::string& path) {
  const std::optional<struct stat> status = status_of(path);
  return status.has_value() && S_ISDIR(status->st_mode);
}

bool is_mount_point(const std::string& path) {
  const std::optional<struct stat> status = status_of(path);
  const std::optional<struct stat> above = status_of(path + "/..");
  if (!status.has_value() || !above.has_value()) return false;
  if (status->st_dev != above->st_dev) return true;
#ifdef STATX_ATTR_MOUNT_ROOT
  // A bind mount of the same file system differs in nothing else.
  struct statx more {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, 0, &more) == 0) {
    return (more.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  }
#endif
  return false;
}

bool is_working_folder(const std::string& path) {
  const std::optional<struct stat> a = status_of(path);
  const std::optional<struct stat> b = status_of(".");
  return a.has_value() && b.has_value() && a->st_dev == b->st_dev &&
         a->st_ino == b->st_ino;
}

bool is_own_name(std::string_view name) {
  return name == ".zckpt-partial" || name == ".zckpt-commit" ||
         name == ".zckpt-commit.new";
}

bool is_empty_folder(const std::string& path) {
  const std::vector<fs::directory_entry> entries = entries_of(path);
  return std::ranges::all_of(entries, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return is_own_name(name) || (name == "lost+found" && is_mount_point(path));
  });
}

bool is_half_replaced(const OutputPlace& place) {
  if (path_exists(place.path)) return path_exists(place.journal());
  return is_folder(place.old());
}

void refuse_above_inputs(const OutputPlace& place,
                         const OutputOptions& options) {
  if (place.name.empty()) refuse(place, "the root folder cannot be an output");
  for (const std::string& input : options.inputs) {
    const std::string path = canonical(input);
    if (holds(place.path, path) || holds(place.staging(), path) ||
        holds(place.old(), path)) {
      refuse(place, "it holds " + input + ", which is read to make it");
    }
  }
}

void refuse_output(const OutputPlace& place, const OutputOptions& options) {
  refuse_above_inputs(place, options);
  const std::optional<struct stat> status = status_of(place.path);
  if (!status.has_value()) return refuse_missing(place);
  if (S_ISLNK(status->st_mode)) {
    refuse(place, "it is a symbolic link to nothing");
  }
  if (options.single_file) return refuse_file(place, options, *status);
  if (!S_ISDIR(status->st_mode)) {
    refuse(place, "it exists and is no folder");
  }
  refuse_folder(place, options);
}

void check_output(const std::string& path, const OutputOptions& options) {
  const OutputPlace place = resolve_output(path);
  refuse_above_inputs(place, options);
  if (!options.single_file && is_half_replaced(place)) return;
  refuse_output(place, options);
}

}  // namespace zckpt
