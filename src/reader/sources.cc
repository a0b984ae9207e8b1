// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/sources.h"

#include <filesystem>

#include "zckpt/error.h"

namespace zckpt {

uint32_t SourceSet::add(const std::string& path, uint64_t size_bytes) {
  namespace fs = std::filesystem;
  const fs::path relative = fs::path(path).lexically_relative(folder_);
  sources_.push_back(
      {.name = relative.empty() ? path : relative.generic_string(),
       .size_bytes = size_bytes});
  paths_.push_back(path);
  return static_cast<uint32_t>(sources_.size() - 1);
}

std::shared_ptr<const FileSource> SourceSet::open(uint32_t source) const {
  const std::lock_guard lock(mutex_);
  if (const auto it = open_.find(source); it != open_.end()) {
    uses_.splice(uses_.begin(), uses_, it->second.use);
    return it->second.file;
  }
  auto file = std::make_shared<const FileSource>(paths_[source]);
  // The index was made from a file of another size: somebody writes to it.
  if (file->size() != sources_[source].size_bytes) {
    throw Error(ErrorCode::Conflict, "the file changed while it was in use",
                {.file = sources_[source].name});
  }
  while (open_.size() >= max_open_) {
    open_.erase(uses_.back());
    uses_.pop_back();
  }
  uses_.push_front(source);
  open_.emplace(source, Entry{file, uses_.begin()});
  return file;
}

}  // namespace zckpt
