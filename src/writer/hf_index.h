// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zckpt {

// The Hugging Face rule for cutting a model into files (huggingface_hub's
// split_state_dict_into_shards_factory), over tensor sizes in state_dict order.

// For each tensor the number of its shard, from 0. Greedy: a tensor larger
// than `max_shard_bytes` is a shard of its own, numbered before the one still
// open; a shard may be exactly full. `shard_count` receives the count (0 for
// no tensors).
std::vector<uint32_t> split_into_shards(const std::vector<uint64_t>& sizes,
                                        uint64_t max_shard_bytes,
                                        uint32_t* shard_count);

// "model.safetensors", or "model-00001-of-00003.safetensors" for several, with
// `extension` ".safetensors": the dot belongs to it.
std::string shard_file_name(std::string_view stem, std::string_view extension,
                            uint32_t shard, uint32_t shard_count);

struct HfIndex {
  uint64_t total_size = 0;        // bytes of tensors, headers left out
  uint64_t total_parameters = 0;  // elements of parameters, buffers left out
  std::vector<std::pair<std::string, std::string>> aliases;     // alias, kept
  std::vector<std::pair<std::string, std::string>> weight_map;  // name, file
};

// model.safetensors.index.json as transformers writes it:
// json.dumps(index, indent=2, sort_keys=True) + "\n".
std::string hf_index_text(const HfIndex& index);

}  // namespace zckpt
