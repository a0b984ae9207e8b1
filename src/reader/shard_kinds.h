// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "reader/shards.h"

namespace zckpt {

// The two kinds of shard, read out of an opened file into `shard`: its facts,
// its vectors and the keys that it lacks. Errors: those of view_of; Corrupt
// (key-missing) where a key is absent without which nothing can be told.
void read_optim(const ByteSource& source, const TorchFile& file,
                ShardFile& shard);
void read_model(const TorchFile& file, ShardFile& shard);

// Small questions that both ask.
std::string text_or_empty(const std::optional<Value>& value);
std::optional<int64_t> integer_or_none(const std::optional<Value>& value);
Value require(const Value& mapping, std::string_view key,
              std::string_view where);
void note_missing(const Value& mapping,
                  std::initializer_list<std::string_view> keys,
                  ShardFile& shard);

}  // namespace zckpt
