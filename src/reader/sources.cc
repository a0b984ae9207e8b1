// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/sources.h"

#include <filesystem>

#include "zckpt/error.h"

namespace zckpt {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_changed(const Source& source) {
  throw Error(ErrorCode::Conflict, "the file changed while it was in use",
              {.file = source.name});
}

}  // namespace

SourceSet::SourceSet(std::string folder, size_t max_open)
    : folder_(std::move(folder)), max_open_(max_open) {
  std::error_code ignored;  // absolute paths need none
  origin_ = fs::current_path(ignored).string();
}

uint32_t SourceSet::add(const std::string& path, uint64_t size_bytes,
                        const std::optional<FileStamp>& stamp) {
  const fs::path relative = fs::path(path).lexically_relative(folder_);
  sources_.push_back(
      {.name = relative.empty() ? path : relative.generic_string(),
       .size_bytes = size_bytes});
  paths_.push_back(path);
  stamps_.push_back(stamp);
  return static_cast<uint32_t>(sources_.size() - 1);
}

std::shared_ptr<const FileSource> SourceSet::open(uint32_t source) const {
  const std::lock_guard lock(mutex_);
  if (const auto it = open_.find(source); it != open_.end()) {
    uses_.splice(uses_.begin(), uses_, it->second.use);
    return it->second.file;
  }
  auto file = std::make_shared<const FileSource>(
      (fs::path(origin_) / paths_[source]).string());
  std::optional<FileStamp>& stamp = stamps_[source];
  if (file->size() != sources_[source].size_bytes ||
      (stamp && file->stamp() != *stamp)) {
    refuse_changed(sources_[source]);
  }
  stamp = file->stamp();
  while (open_.size() >= max_open_) {
    open_.erase(uses_.back());
    uses_.pop_back();
  }
  uses_.push_front(source);
  open_.emplace(source, Entry{file, uses_.begin()});
  return file;
}

void SourceSet::check_unchanged() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [source, entry] : open_) {
    if (!entry.file->is_unchanged()) refuse_changed(sources_[source]);
  }
}

std::optional<FileStamp> SourceSet::stamp(uint32_t source) const {
  const std::lock_guard lock(mutex_);
  return stamps_[source];
}

}  // namespace zckpt
