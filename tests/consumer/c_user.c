/* SPDX-FileCopyrightText: The zckpt authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * c_user CHECKPOINT OUTPUT: reads every weight by name, merges, verifies. */
#include <zckpt/zckpt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(zckpt_error* error) {
  fprintf(stderr, "error: %s\n", zckpt_error_text(error));
  zckpt_error_free(error);
  return 1;
}

int main(int argc, char** argv) {
  zckpt_checkpoint* checkpoint = NULL;
  zckpt_verification* verification = NULL;
  zckpt_error* error = NULL;
  zckpt_merge_options options;
  zckpt_verdict verdict;
  double sum = 0;
  size_t weights = 0;
  size_t i;
  if (argc != 3) return 2;

  if (zckpt_open(argv[1], NULL, &checkpoint, &error) != ZCKPT_OK) {
    return fail(error);
  }
  for (i = 0; i < zckpt_tensor_count(checkpoint); ++i) {
    zckpt_tensor tensor;
    float* values;
    uint64_t k;
    if (zckpt_tensor_at(checkpoint, i, &tensor) != ZCKPT_OK) return 1;
    if (strcmp(tensor.role, "master") != 0) continue;
    if (zckpt_find(checkpoint, tensor.name, NULL, NULL) != (int64_t)i) return 1;
    values = malloc((size_t)tensor.numel * sizeof(float) + 1);
    if (zckpt_read(checkpoint, i, 0, tensor.numel, "fp32", values,
                   (size_t)tensor.numel * sizeof(float), &error) != ZCKPT_OK) {
      return fail(error);
    }
    for (k = 0; k < tensor.numel; ++k) sum += values[k];
    free(values);
    ++weights;
  }
  zckpt_close(checkpoint);
  printf("%lu masters, sum %.6f\n", (unsigned long)weights, sum);

  memset(&options, 0, sizeof options);
  options.dtype = "bf16";
  options.bin = 1;
  if (zckpt_merge(argv[1], argv[2], &options, &error) != ZCKPT_OK) {
    return fail(error);
  }
  if (zckpt_merge(argv[1], argv[2], &options, &error) != ZCKPT_CONFLICT) {
    return 1;
  }
  zckpt_error_free(error);

  if (zckpt_verify(argv[1], 0, &verification, &error) != ZCKPT_OK) {
    return fail(error);
  }
  if (zckpt_verdict_at(verification, 0, &verdict) != ZCKPT_OK) return 1;
  printf("%s\n", verdict.verdict);
  zckpt_verification_free(verification);
  return 0;
}
