// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lora/adapter.h"
#include "zckpt/export.h"

namespace zckpt {

// Errors: Invalid, with the command that would do, where `path` holds an
// adapter and no model.
void refuse_adapter_alone(const std::string& path);

// The adapters to merge into `main`, in order: its own live one, or those that
// the options name. Their values are read and the CRCs of their records
// compared, but for a dry run; counts go into `written`.
// Errors: those of open_adapter and live_adapter; Invalid where options and
//         checkpoint do not go together; Unsupported for an adapter whose run
//         changed its base, in a folder.
std::vector<Adapter> choose_adapters(const std::string& path,
                                     const Checkpoint& main,
                                     const ExportOptions& options,
                                     MergeResult& written);

}  // namespace zckpt
