// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file.h"
#include "reader/shards.h"

namespace zckpt {

// Fills in facts and vectors of one shard, or its fault; never throws for what
// is wrong with the file. `vectors` comes back unshared. REQUIRES: shard.name
// and shard.path are set.
void read_shard(ShardFile& shard);

// The contiguous vector behind a pickled tensor. Errors: those of view_of;
// Unsupported where it is strided.
FlatVector flat_vector(const TorchFile& file, const Value& value,
                       uint64_t base);

// Bytes from the file's start to the first storage that holds any.
uint64_t first_payload(const TorchFile& file);

// The value of `name`, looked for at entry `i` first: mappings that list the
// same names in the same order are walked together in linear time.
std::optional<Value> entry_near(const Value& mapping, size_t i,
                                std::string_view name);

// The integer behind a ZeroStageEnum in either of its two pickled forms, or
// a plain integer (format.md 8).
std::optional<int64_t> stage_number(const Value& value);

// "module name" of every class and function that an unpickler would import,
// sorted. getattr counts only where it is not one of the two forms of
// ZeroStageEnum.
std::vector<std::string> imported_names(const Pickle& pickle);

// What is wrong with a file, told from the error that reading it gave.
FileFault fault_of(const ByteSource& source, const Error& error);

}  // namespace zckpt
