// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file.h"

namespace zckpt {

// What a file is by its first bytes, its size and, for archives, its tail.
enum class FileForm {
  Empty,         // no bytes
  TorchZip,      // torch.save since 1.6
  TorchZipTorn,  // begins as a zip but has no end record: truncated
  TorchLegacy,   // torch.save before 1.6
  TorchTar,      // torch.save before 0.1.10: an uncompressed tar
  Safetensors,
  DataStates,  // DeepSpeed's DataStates engine (format.md 7.6)
  Pickle,      // a bare pickle
  Json,
  Unknown,
};

FileForm recognise(const ByteSource& source);

// "a torch zip archive", "a DataStates checkpoint, which torch.load cannot
// read either", ... for messages.
const char* describe(FileForm form);

}  // namespace zckpt
