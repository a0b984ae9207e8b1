// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reader/shards.h"
#include "zckpt/checkpoint.h"
#include "zckpt/inspect.h"

namespace zckpt {

// What one file's bytes are for; the order of rows in a table.
std::vector<std::string> content_order(const std::vector<FileBytes>& files);

// Bytes that tensors of a checkpoint occupy, per source and content: what is
// left of a vector once its padding is taken away.
class UsefulBytes {
 public:
  explicit UsefulBytes(const Checkpoint& checkpoint);
  // Nothing where the checkpoint holds no tensors of this content at all.
  std::optional<uint64_t> of(uint32_t source, const std::string& content) const;

 private:
  std::map<std::string, std::vector<uint64_t>> bytes_;  // by source
};

// Accounts for every byte of one shard. `useful` may be null (a layout that is
// not read): padding inside vectors then counts as what surrounds it. Errors:
// Internal where the parts do not add up to the file.
FileBytes account_shard(const ShardFile& shard, const std::string& name,
                        const UsefulBytes* useful);

// "masters", "model", ... of a tensor.
std::string content_of(const Tensor& tensor);

}  // namespace zckpt
