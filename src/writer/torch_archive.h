// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "writer/tensor_slot.h"
#include "zckpt/merge.h"

namespace zckpt {

// A file as torch.save writes it, for data that is streamed: a zip archive of
// stored records whose CRCs stand behind the data (format.md 7.1), aligned to
// 64 bytes, so that torch.load can map it.
struct TorchArchive {
  // All bytes up to the data of the first storage; data.pkl is in it.
  std::string header;
  // In file order. Storages have no CRC yet.
  std::vector<PlannedRecord> records;
  uint64_t size_bytes = 0;
};

// A dict of tensors, in the order of `slots`, each with a storage of its own;
// then each alias, over the storage of the kept name. Sets offsets and sizes
// of the slots. `prefix` is the folder in the archive: the file's name without
// its extension, for torch.
// Errors: Unsupported for a name that is not UTF-8, Limit.
TorchArchive layout_torch_archive(
    std::string_view prefix, std::vector<TensorSlot>& slots,
    const std::vector<std::pair<std::string, std::string>>& aliases);

using ByteSink = std::function<void(uint64_t offset, std::string_view bytes)>;

// Gives what is between the data of storages and behind it. REQUIRES: every
// record has its CRC.
void write_archive_rest(const std::vector<PlannedRecord>& records,
                        const ByteSink& sink);

}  // namespace zckpt
