// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "zckpt/error.h"
#include "zckpt/load.h"
#include "zckpt/merge.h"
#include "zckpt/verify.h"
#include "zckpt/zckpt.h"

struct zckpt_error {
  std::string text;
};

struct zckpt_checkpoint {
  zckpt::Checkpoint checkpoint;
};

struct zckpt_verification {
  zckpt::VerifyResult result;
};

namespace {

using zckpt::DType;
using zckpt::Error;
using zckpt::ErrorCode;

zckpt_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::Io: return ZCKPT_IO;
    case ErrorCode::Corrupt: return ZCKPT_CORRUPT;
    case ErrorCode::Unsupported: return ZCKPT_UNSUPPORTED;
    case ErrorCode::Invalid: return ZCKPT_INVALID;
    case ErrorCode::Conflict: return ZCKPT_CONFLICT;
    case ErrorCode::Limit: return ZCKPT_LIMIT;
    case ErrorCode::Internal: return ZCKPT_INTERNAL;
    case ErrorCode::Interrupted: return ZCKPT_INTERRUPTED;
  }
  return ZCKPT_INTERNAL;
}

void set_text(zckpt_error** error, std::string text) noexcept {
  if (error != nullptr) {
    *error = new (std::nothrow) zckpt_error{std::move(text)};
  }
}

std::string text_of(const Error& error) {
  std::string text = error.what();
  for (const zckpt::Finding& finding : error.findings()) {
    text += "\n" + std::string(to_string(finding.severity)) + " [" +
            finding.code + "] " + finding.message;
  }
  return text;
}

// The one place where exceptions become a status.
template <typename F>
zckpt_status guarded(zckpt_error** error, F&& call) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    call();
    return ZCKPT_OK;
  } catch (const Error& caught) {
    set_text(error, text_of(caught));
    return status_of(caught.code());
  } catch (const std::bad_alloc&) {
    set_text(error, "out of memory");
    return ZCKPT_LIMIT;
  } catch (const std::exception& caught) {
    set_text(error, caught.what());
    return ZCKPT_INTERNAL;
  }
}

void require(bool condition, const char* message) {
  if (!condition) throw Error(ErrorCode::Invalid, message);
}

const zckpt::Tensor& tensor_of(const zckpt_checkpoint* checkpoint,
                               size_t index) {
  require(checkpoint != nullptr, "no checkpoint");
  const auto tensors = checkpoint->checkpoint.tensors();
  require(index < tensors.size(), "no tensor of this number");
  return tensors[index];
}

DType dtype_of(const char* name, DType stored) {
  if (name == nullptr) return stored;
  const auto dtype = zckpt::dtype_from_short(name);
  if (!dtype) {
    throw Error(ErrorCode::Invalid, "no dtype is called " + std::string(name));
  }
  return *dtype;
}

std::span<std::byte> memory(void* out, size_t size) {
  return {static_cast<std::byte*>(out), size};
}

}  // namespace

extern "C" {

const char* zckpt_version(void) { return ZCKPT_VERSION; }

const char* zckpt_error_text(const zckpt_error* error) {
  return error == nullptr ? "" : error->text.c_str();
}

void zckpt_error_free(zckpt_error* error) { delete error; }

zckpt_status zckpt_open(const char* path, const char* tag,
                        zckpt_checkpoint** checkpoint, zckpt_error** error) {
  return guarded(error, [&] {
    require(path != nullptr && checkpoint != nullptr, "no path");
    *checkpoint = nullptr;
    zckpt::OpenOptions options;
    if (tag != nullptr) options.tag = tag;
    *checkpoint = new zckpt_checkpoint{zckpt::open_for_load(path, options)};
  });
}

void zckpt_close(zckpt_checkpoint* checkpoint) { delete checkpoint; }

size_t zckpt_tensor_count(const zckpt_checkpoint* checkpoint) {
  return checkpoint == nullptr ? 0 : checkpoint->checkpoint.tensors().size();
}

zckpt_status zckpt_tensor_at(const zckpt_checkpoint* checkpoint, size_t index,
                             zckpt_tensor* out) {
  return guarded(nullptr, [&] {
    const zckpt::Tensor& tensor = tensor_of(checkpoint, index);
    require(out != nullptr, "no place for the answer");
    // Names of roles and dtypes are literals.
    *out = {.name = tensor.name.c_str(),
            .role = to_string(tensor.role).data(),
            .state = tensor.state.c_str(),
            .dtype = short_name(tensor.dtype).data(),
            .dimensions = static_cast<uint32_t>(tensor.shape.size()),
            .shape = tensor.shape.data(),
            .numel = tensor.numel};
  });
}

int64_t zckpt_find(const zckpt_checkpoint* checkpoint, const char* name,
                   const char* role, const char* state) {
  if (checkpoint == nullptr || name == nullptr) return -1;
  const zckpt::Checkpoint& opened = checkpoint->checkpoint;
  const zckpt::Tensor* found = nullptr;
  if (role == nullptr) {
    found = opened.find(name);
    for (const auto& [alias, kept] : opened.facts().aliases) {
      if (found == nullptr && alias == name) found = opened.find(kept);
    }
  } else {
    for (const zckpt::Role each :
         {zckpt::Role::Master, zckpt::Role::Frozen, zckpt::Role::Buffer,
          zckpt::Role::Model, zckpt::Role::State}) {
      if (to_string(each) != role) continue;
      found = opened.find(name, each, state == nullptr ? "" : state);
    }
  }
  return found == nullptr ? -1 : found - opened.tensors().data();
}

size_t zckpt_alias_count(const zckpt_checkpoint* checkpoint) {
  return checkpoint == nullptr ? 0
                               : checkpoint->checkpoint.facts().aliases.size();
}

zckpt_status zckpt_alias_at(const zckpt_checkpoint* checkpoint, size_t index,
                            const char** alias, const char** kept) {
  return guarded(nullptr, [&] {
    require(index < zckpt_alias_count(checkpoint) && alias != nullptr &&
                kept != nullptr,
            "no alias of this number");
    const auto& names = checkpoint->checkpoint.facts().aliases[index];
    *alias = names.first.c_str();
    *kept = names.second.c_str();
  });
}

int zckpt_frozen_excluded(const zckpt_checkpoint* checkpoint) {
  return checkpoint != nullptr && checkpoint->checkpoint.facts().frozen_excluded
             ? 1
             : 0;
}

double zckpt_optimizer_step(const zckpt_checkpoint* checkpoint) {
  return checkpoint == nullptr
             ? -1
             : checkpoint->checkpoint.facts().optimizer_step.value_or(-1);
}

zckpt_status zckpt_read(const zckpt_checkpoint* checkpoint, size_t index,
                        uint64_t first, uint64_t numel, const char* dtype,
                        void* out, size_t size, zckpt_error** error) {
  return guarded(error, [&] {
    const zckpt::Tensor& tensor = tensor_of(checkpoint, index);
    checkpoint->checkpoint.read(
        tensor, first, numel, dtype_of(dtype, tensor.dtype), memory(out, size));
  });
}

zckpt_status zckpt_load(const zckpt_checkpoint* checkpoint,
                        const zckpt_target* targets, size_t count, int threads,
                        zckpt_error** error) {
  return guarded(error, [&] {
    require(checkpoint != nullptr, "no checkpoint");
    require(targets != nullptr || count == 0, "no targets");
    std::vector<zckpt::LoadTarget> list;
    for (size_t i = 0; i < count; ++i) {
      const zckpt::Tensor& tensor = tensor_of(checkpoint, targets[i].index);
      list.push_back({.tensor = &tensor,
                      .numel = tensor.numel,
                      .dtype = dtype_of(targets[i].dtype, tensor.dtype),
                      .out = memory(targets[i].out, targets[i].size)});
    }
    zckpt::load(checkpoint->checkpoint, list, {.threads = threads});
  });
}

zckpt_status zckpt_merge(const char* path, const char* output,
                         const zckpt_merge_options* options,
                         zckpt_error** error) {
  return guarded(error, [&] {
    require(path != nullptr && output != nullptr, "no path");
    zckpt::MergeOptions merging;
    if (options != nullptr) {
      if (options->tag != nullptr) merging.open.tag = options->tag;
      merging.dtype.reset();
      if (options->dtype != nullptr) {
        merging.dtype = dtype_of(options->dtype, DType::F32);
      }
      if (options->bin != 0) merging.format = zckpt::WeightFormat::Bin;
      merging.force = options->force != 0;
      merging.open.threads = options->threads;
      if (options->max_shard_bytes != 0) {
        merging.max_shard_bytes = options->max_shard_bytes;
      }
    }
    merging.output = output;
    zckpt::merge(path, merging);
  });
}

zckpt_status zckpt_verify(const char* path, int full,
                          zckpt_verification** verification,
                          zckpt_error** error) {
  return guarded(error, [&] {
    require(path != nullptr && verification != nullptr, "no path");
    *verification = nullptr;
    zckpt::VerifyOptions options;
    options.full = full != 0;
    *verification = new zckpt_verification{zckpt::verify(path, options)};
  });
}

void zckpt_verification_free(zckpt_verification* verification) {
  delete verification;
}

size_t zckpt_verification_count(const zckpt_verification* verification) {
  return verification == nullptr ? 0 : verification->result.checkpoints.size();
}

zckpt_status zckpt_verdict_at(const zckpt_verification* verification,
                              size_t index, zckpt_verdict* out) {
  return guarded(nullptr, [&] {
    require(index < zckpt_verification_count(verification) && out != nullptr,
            "no verdict of this number");
    const zckpt::Verification& one = verification->result.checkpoints[index];
    *out = {.path = one.path.c_str(),
            .verdict = to_string(one.verdict).data(),
            .can_resume = one.can_resume ? 1 : 0,
            .can_merge = one.can_merge ? 1 : 0,
            .findings = one.findings.size()};
  });
}

zckpt_status zckpt_finding_at(const zckpt_verification* verification,
                              size_t index, size_t finding,
                              zckpt_finding* out) {
  return guarded(nullptr, [&] {
    require(index < zckpt_verification_count(verification) && out != nullptr,
            "no verdict of this number");
    const auto& findings = verification->result.checkpoints[index].findings;
    require(finding < findings.size(), "no finding of this number");
    *out = {.code = findings[finding].code.c_str(),
            .severity = to_string(findings[finding].severity).data(),
            .message = findings[finding].message.c_str(),
            .file = findings[finding].file.c_str(),
            .tensor = findings[finding].tensor.c_str()};
  });
}

int64_t zckpt_newest_resumable(const zckpt_verification* verification) {
  if (verification == nullptr || !verification->result.newest_resumable) {
    return -1;
  }
  return static_cast<int64_t>(*verification->result.newest_resumable);
}

}  // extern "C"
