/* SPDX-FileCopyrightText: The zckpt authors
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef ZCKPT_ZCKPT_H_
#define ZCKPT_ZCKPT_H_

#include <stddef.h>
#include <stdint.h>

/* The library for C and for other languages: the same functions as the C++
 * headers, with opaque handles. No exception leaves it.
 *
 * Errors:  functions that can fail return a zckpt_status and, where `error` is
 *          not null, make a zckpt_error that the caller frees; `*error` is null
 *          after success.
 * Threads: handles are immutable once made; functions may be called on one
 *          concurrently. Freeing is the caller's to order.
 * Strings: UTF-8, as long as the handle lives that they came from.
 * Dtypes:  "fp32", "bf16", "fp16", "fp64", "int64", "uint8", "bool",
 *          "f8_e4m3", ...; NULL means as stored. */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum zckpt_status {
  ZCKPT_OK = 0,
  ZCKPT_IO = 1,          /* the operating system refused */
  ZCKPT_CORRUPT = 2,     /* the input contradicts itself or its format */
  ZCKPT_UNSUPPORTED = 3, /* a layout or a kind that is not read */
  ZCKPT_INVALID = 4,     /* the call makes no sense */
  ZCKPT_CONFLICT = 5,    /* the output is occupied or in use */
  ZCKPT_LIMIT = 6,       /* a cap, the memory budget, or memory itself */
  ZCKPT_INTERNAL = 7,    /* a bug in zckpt */
  ZCKPT_INTERRUPTED = 8
} zckpt_status;

typedef struct zckpt_error zckpt_error;
typedef struct zckpt_checkpoint zckpt_checkpoint;
typedef struct zckpt_verification zckpt_verification;

/* "0.1.0" */
const char* zckpt_version(void);

/* What went wrong: file, tensor, byte and reason; every finding on a line of
 * its own. */
const char* zckpt_error_text(const zckpt_error* error);
void zckpt_error_free(zckpt_error* error);

/* Opens the checkpoint at `path`, the newest of a run, with every check that
 * merging makes first, but for frozen weights that the save left out (see
 * zckpt_frozen_excluded). `tag` may be NULL. */
zckpt_status zckpt_open(const char* path, const char* tag,
                        zckpt_checkpoint** checkpoint, zckpt_error** error);
void zckpt_close(zckpt_checkpoint* checkpoint);

typedef struct zckpt_tensor {
  const char* name;
  const char* role;  /* "master", "frozen", "buffer", "model" or "state" */
  const char* state; /* "exp_avg", ... for states, else "" */
  const char* dtype; /* as stored */
  uint32_t dimensions;
  const uint64_t* shape;
  uint64_t numel;
} zckpt_tensor;

size_t zckpt_tensor_count(const zckpt_checkpoint* checkpoint);
/* Describes tensor number `index`; ZCKPT_INVALID beyond the last. */
zckpt_status zckpt_tensor_at(const zckpt_checkpoint* checkpoint, size_t index,
                             zckpt_tensor* tensor);
/* The number of the tensor of this name: of a role and state, or, where `role`
 * is NULL, the best there is (masters before copies). -1 if there is none. */
int64_t zckpt_find(const zckpt_checkpoint* checkpoint, const char* name,
                   const char* role, const char* state);

/* Tied weights have one tensor: how many other names there are, and each with
 * the name of its tensor. zckpt_find knows them as well. */
size_t zckpt_alias_count(const zckpt_checkpoint* checkpoint);
zckpt_status zckpt_alias_at(const zckpt_checkpoint* checkpoint, size_t index,
                            const char** alias, const char** kept);
/* 1 where the save left the frozen weights out, as a LoRA run's does: the full
 * model is not here then, and merging is refused. */
int zckpt_frozen_excluded(const zckpt_checkpoint* checkpoint);
/* The optimizer's count of updates, or -1. */
double zckpt_optimizer_step(const zckpt_checkpoint* checkpoint);

/* Reads elements [first, first + numel), in C order, converted to `dtype`,
 * into `out` of `size` bytes. */
zckpt_status zckpt_read(const zckpt_checkpoint* checkpoint, size_t index,
                        uint64_t first, uint64_t numel, const char* dtype,
                        void* out, size_t size, zckpt_error** error);

/* The whole of a tensor and the `size` bytes that it goes to. */
typedef struct zckpt_target {
  size_t index;
  const char* dtype;
  void* out;
  size_t size;
} zckpt_target;

/* Fills all targets at once, in the order of the files, and compares the CRC
 * of every record that is read whole. `threads` 0: one per core, at most 4. */
zckpt_status zckpt_load(const zckpt_checkpoint* checkpoint,
                        const zckpt_target* targets, size_t count, int threads,
                        zckpt_error** error);

typedef struct zckpt_merge_options {
  const char* tag;   /* NULL: as the folder says */
  const char* dtype; /* "fp32", "bf16" or "fp16"; NULL: keep what is stored */
  int bin;           /* pytorch_model.bin instead of model.safetensors */
  int force;         /* replace what is there */
  int threads;       /* 0: one per core, at most 4 */
  uint64_t max_shard_bytes; /* 0: 5 GB */
} zckpt_merge_options;

/* Writes full weights into the folder `output`. `options` NULL: fp32. */
zckpt_status zckpt_merge(const char* path, const char* output,
                         const zckpt_merge_options* options,
                         zckpt_error** error);

/* Judges the checkpoint at `path`, or all of a run folder, newest first.
 * `full` reads every byte. What is wrong with one is no error here. */
zckpt_status zckpt_verify(const char* path, int full,
                          zckpt_verification** verification,
                          zckpt_error** error);
void zckpt_verification_free(zckpt_verification* verification);
size_t zckpt_verification_count(const zckpt_verification* verification);

typedef struct zckpt_verdict {
  const char* path;
  const char* verdict; /* "resumable", "weights-only", "damaged", ... */
  int can_resume;
  int can_merge;
  size_t findings;
} zckpt_verdict;

typedef struct zckpt_finding {
  const char* code;
  const char* severity; /* "error", "warning" or "note" */
  const char* message;
  const char* file;   /* "" where unknown */
  const char* tensor; /* "" where unknown */
} zckpt_finding;

/* ZCKPT_INVALID beyond the last. */
zckpt_status zckpt_verdict_at(const zckpt_verification* verification,
                              size_t index, zckpt_verdict* verdict);
zckpt_status zckpt_finding_at(const zckpt_verification* verification,
                              size_t index, size_t finding, zckpt_finding* out);
/* The number of the newest that resumes, or -1. */
int64_t zckpt_newest_resumable(const zckpt_verification* verification);

#ifdef __cplusplus
}
#endif

#endif
