// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/shards.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>

#include "base/parallel.h"
#include "base/text.h"
#include "reader/shard_reader.h"
#include "reader/zip_directory.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

std::string file_name(const std::string& path) {
  return fs::path(path).filename().string();
}

// Tables of ranks are equal as a rule: one copy serves all of them.
template <typename Table>
class TablePool {
 public:
  std::shared_ptr<const Table> share(std::shared_ptr<const Table> table) {
    const std::lock_guard lock(mutex_);
    for (const auto& known : tables_) {
      if (*known == *table) return known;
    }
    tables_.push_back(table);
    return table;
  }

 private:
  std::mutex mutex_;  // guards: tables_
  std::vector<std::shared_ptr<const Table>> tables_;
};

// Whether two files hold the same shard: one file by two ways, or equal sizes
// and equal directories, which list a CRC for each record.
bool same_content(const std::string& a, const std::string& b) {
  std::error_code ignored;
  if (fs::equivalent(a, b, ignored)) return true;
  try {
    const FileSource first(a);
    const FileSource second(b);
    if (first.size() != second.size()) return false;
    const ZipDirectory left(first);
    const ZipDirectory right(second);
    return std::equal(left.entries().begin(), left.entries().end(),
                      right.entries().begin(), right.entries().end(),
                      [](const ZipEntry& x, const ZipEntry& y) {
                        // A CRC of 0 was not computed and proves nothing.
                        return x.name == y.name && x.size == y.size &&
                               x.crc == y.crc && (x.crc != 0 || x.size == 0);
                      });
  } catch (const Error&) {
    return false;
  }
}

bool same_bytes(const std::string& a, const std::string& b) {
  const FileSource first(a);
  const FileSource second(b);
  if (first.size() != second.size()) return false;
  std::vector<std::byte> left(size_t{1} << 20);
  std::vector<std::byte> right(left.size());
  for (uint64_t at = 0; at < first.size(); at += left.size()) {
    left.resize(static_cast<size_t>(
        std::min<uint64_t>(left.size(), first.size() - at)));
    right.resize(left.size());
    first.read_at(at, left);
    second.read_at(at, right);
    if (left != right) return false;
  }
  return true;
}

class FolderReader {
 public:
  FolderReader(const CheckpointPath& where, const OpenOptions& options)
      : options_(options) {
    set_.where = where;
    set_.sources = std::make_shared<SourceSet>(where.folder);
  }

  ShardSet read() {
    list(set_.where.tag_folder);
    for (const std::string& folder : set_.where.also) list(folder);
    std::sort(set_.files.begin(), set_.files.end(),
              [](const ShardFile& a, const ShardFile& b) {
                const auto key = [](const ShardFile& f) {
                  return std::tuple(f.name.kind, f.name.mp_rank,
                                    f.name.rank.value_or(0), f.path);
                };
                return key(a) < key(b);
              });
    settle_others();
    parallel_for(set_.files.size(), resolve_threads(options_.threads),
                 options_.stop, [&](size_t i, int) {
                   ShardFile& file = set_.files[i];
                   read_shard(file);
                   if (file.vectors) file.vectors = pool_.share(file.vectors);
                   if (file.globals) file.globals = names_.share(file.globals);
                 });
    for (ShardFile& file : set_.files) {
      file.source = set_.sources->add(file.path, file.size_bytes, file.stamp);
    }
    return std::move(set_);
  }

 private:
  void list(const std::string& folder) {
    std::error_code error;
    fs::directory_iterator it(folder, error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name == "zero" && it->is_directory(error)) {
        set_.has_universal = true;
        continue;
      }
      if (name == "offloaded_tensors") {
        list_swap_files(it->path());
        continue;
      }
      const ShardName shard = classify(name);
      if (shard.kind == ShardKind::Model || shard.kind == ShardKind::Optim) {
        add(shard, it->path().string());
      } else if (shard.kind != ShardKind::Other) {
        set_.others.push_back({shard, it->path().string()});
      }
    }
    if (error) {
      throw Error(ErrorCode::Io, "cannot list: " + error.message(),
                  {.file = folder});
    }
  }

  void add(const ShardName& shard, const std::string& path) {
    const auto [it, fresh] =
        by_name_.try_emplace(file_name(path), set_.files.size());
    if (!fresh) {
      const ShardFile& known = set_.files[it->second];
      if (!same_content(known.path, path)) {
        set_.findings.push_back(
            {.code = "shard-conflict",
             .severity = Severity::Error,
             .message = "two folders hold different files for this shard: " +
                        escape(known.path) + " and " + escape(path) +
                        "; leave one of the folders out",
             .file = file_name(path),
             .rank = shard.rank});
      }
      return;
    }
    ShardFile file;
    file.name = shard;
    file.path = path;
    set_.files.push_back(std::move(file));
  }

  void settle_others() {
    const auto key = [](const OtherFile& f) {
      return std::pair(file_name(f.path), f.path);
    };
    std::vector<OtherFile>& others = set_.others;
    std::sort(others.begin(), others.end(),
              [&](const auto& a, const auto& b) { return key(a) < key(b); });
    for (size_t i = 1; i < others.size();) {
      if (file_name(others[i].path) != file_name(others[i - 1].path)) {
        ++i;
        continue;
      }
      if (!same_content(others[i - 1].path, others[i].path)) {
        set_.findings.push_back(
            {.code = "shard-conflict",
             .severity = Severity::Error,
             .message = "two folders hold different files of this name: " +
                        escape(others[i - 1].path) + " and " +
                        escape(others[i].path) +
                        "; leave one of the folders out",
             .file = file_name(others[i].path)});
      }
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // offloaded_tensors/rankRR/*.tensor.swp (format.md 3.6).
  void list_swap_files(const fs::path& folder) {
    std::error_code error;
    // One level down only: anything deeper is somebody's copy.
    for (fs::recursive_directory_iterator it(folder, error);
         !error && it != fs::recursive_directory_iterator();
         it.increment(error)) {
      if (it.depth() > 1) continue;
      if (!it->is_regular_file(error)) continue;
      const fs::path& path = it->path();
      const std::string key = path.parent_path().filename().string() + "/" +
                              path.filename().string();
      add_swap_file(key, path.string(), it->file_size(error));
    }
    if (error) {
      throw Error(ErrorCode::Io, "cannot list: " + error.message(),
                  {.file = folder.string()});
    }
  }

  // Under node-local storage every node counts its ranks from 0, so two
  // folders can hold different files under one name.
  void add_swap_file(const std::string& key, const std::string& path,
                     uint64_t size) {
    const auto [it, fresh] = set_.swap_files.try_emplace(key, 0);
    if (fresh) {
      it->second = set_.sources->add(path, size);
      return;
    }
    const std::string& known = set_.sources->path(it->second);
    if (same_bytes(known, path)) return;
    set_.findings.push_back(
        {.code = "shard-conflict",
         .severity = Severity::Error,
         .message = "two folders hold different swap files for this rank: " +
                    escape(known) + " and " + escape(path) +
                    "; leave one of the folders out",
         .file = "offloaded_tensors/" + key});
  }

  const OpenOptions& options_;
  TablePool<VectorTable> pool_;
  TablePool<std::vector<std::string>> names_;
  std::map<std::string, size_t> by_name_;
  ShardSet set_;
};

}  // namespace

const ShardFile* ShardSet::model(std::optional<uint32_t> rank,
                                 uint32_t mp_rank) const {
  for (const ShardFile& file : files) {
    if (file.name.kind == ShardKind::Model && file.name.rank == rank &&
        file.name.mp_rank == mp_rank) {
      return &file;
    }
  }
  return nullptr;
}

const ShardFile* ShardSet::optim(uint32_t rank) const {
  for (const ShardFile& file : files) {
    if (file.name.kind == ShardKind::Optim && file.name.rank == rank) {
      return &file;
    }
  }
  return nullptr;
}

const ShardFile* ShardSet::leading_model() const {
  for (const ShardFile& file : files) {
    if (file.name.kind == ShardKind::Model && file.model) return &file;
  }
  return nullptr;
}

std::optional<uint32_t> ShardSet::swap_source(
    uint32_t rank, const std::string& swap_id) const {
  char folder[32];
  std::snprintf(folder, sizeof(folder), "rank%02u/", rank);
  const auto it = swap_files.find(folder + swap_id + ".tensor.swp");
  if (it == swap_files.end()) return std::nullopt;
  return it->second;
}

ShardSet read_shards(const CheckpointPath& where, const OpenOptions& options) {
  return FolderReader(where, options).read();
}

}  // namespace zckpt
