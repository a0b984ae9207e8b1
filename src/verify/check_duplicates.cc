// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"
#include "reader/layout.h"
#include "verify/checks.h"

namespace zckpt {
namespace {

class DuplicateFinder {
 public:
  explicit DuplicateFinder(const ShardSet& shards)
      : shards_(shards), ranks_(world_size(shards)) {}

  // Two ranks with the same values: one shard was copied over the other. The
  // ends of a vector tell ranks apart as a rule, so this reads little.
  std::vector<Finding> run() {
    constexpr uint64_t kSample = 4096;
    std::map<std::tuple<ShardKind, uint64_t, std::vector<std::byte>>,
             const ShardFile*>
        seen;
    for (const ShardFile& file : shards_.files) {
      if (!file.name.rank || *file.name.rank >= ranks_ || is_copy(file)) {
        continue;
      }
      const FlatVector* vector = longest(file);
      if (vector == nullptr) continue;
      const uint64_t size = vector->numel * size_of(vector->dtype);
      const uint64_t part = std::min(size, kSample);
      auto sample = vector_bytes(file, *vector, size - part, size);
      if (is_constant(sample)) continue;  // zeros tell nothing
      const auto [it, fresh] = seen.try_emplace(
          std::tuple(file.name.kind, size, std::move(sample)), &file);
      if (!fresh && same_vector(*it->second, file)) {
        report_duplicate(file, *it->second);
      }
    }
    return std::move(findings_);
  }

 private:
  // The longest vector of a shard that only this rank can hold.
  static const FlatVector* longest(const ShardFile& file) {
    if (!file.vectors) return nullptr;
    const auto& vectors =
        file.optim ? file.vectors->masters : file.vectors->fragments;
    const auto it = std::max_element(
        vectors.begin(), vectors.end(),
        [](const auto& a, const auto& b) { return a.numel < b.numel; });
    // A handful of values can be equal by chance.
    constexpr uint64_t kTelling = 64;
    return it == vectors.end() || it->numel < kTelling ? nullptr : &*it;
  }

  // Bytes [from, to) of the vector.
  std::vector<std::byte> vector_bytes(const ShardFile& file,
                                      const FlatVector& vector, uint64_t from,
                                      uint64_t to) const {
    std::vector<std::byte> bytes(static_cast<size_t>(to - from));
    shards_.sources->open(file.source)
        ->read_at(file.base + vector.offset + from, bytes);
    return bytes;
  }

  void report_duplicate(const ShardFile& file, const ShardFile& original) {
    findings_.push_back(
        {.code = "file-duplicate",
         .severity = Severity::Error,
         .message = "it holds the same values as " + escape(name_of(original)) +
                    ": one rank's shard was copied over another's",
         .file = name_of(file),
         .rank = file.name.rank});
  }

  // The same CRC for each record under one archive name: copied, however
  // little is in it.
  bool is_copy(const ShardFile& file) {
    if (!file.optim || file.content_digest == 0) return false;
    const auto [it, fresh] = copies_.try_emplace(
        std::tuple(file.content_digest, file.size_bytes, file.archive_prefix),
        &file);
    if (!fresh) report_duplicate(file, *it->second);
    return !fresh;
  }

  static bool is_constant(const std::vector<std::byte>& bytes) {
    constexpr size_t kElement = 8;  // a period of every element size
    return std::equal(bytes.begin() + kElement, bytes.end(), bytes.begin());
  }

  bool same_vector(const ShardFile& a, const ShardFile& b) const {
    constexpr uint64_t kChunk = uint64_t{1} << 20;
    const FlatVector& left = *longest(a);
    const FlatVector& right = *longest(b);
    const uint64_t size = left.numel * size_of(left.dtype);
    for (uint64_t at = 0; at < size; at += kChunk) {
      const uint64_t end = std::min(size, at + kChunk);
      if (vector_bytes(a, left, at, end) != vector_bytes(b, right, at, end)) {
        return false;
      }
    }
    return true;
  }

  const std::string& name_of(const ShardFile& file) const {
    return shards_.sources->list()[file.source].name;
  }

  const ShardSet& shards_;
  uint32_t ranks_;
  std::map<std::tuple<uint64_t, uint64_t, std::string>, const ShardFile*>
      copies_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_duplicates(const ShardSet& shards) {
  return DuplicateFinder(shards).run();
}

}  // namespace zckpt
