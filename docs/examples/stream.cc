// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// Streams a checkpoint's weights into buffers of one's own, in bfloat16, the
// way a loader does: stream PATH

#include <zckpt/checkpoint.h>
#include <zckpt/dtype.h>
#include <zckpt/error.h>
#include <zckpt/load.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: stream PATH\n");
    return 2;
  }
  const zckpt::Checkpoint checkpoint = zckpt::open_for_load(argv[1]);

  // The buffers: here plain memory, in a real loader pinned or on a device.
  // weights_of() gives the best tensor of each name: the fp32 master where the
  // optimizer has one, else what the model computed with.
  std::map<std::string, std::vector<std::byte>> buffers;
  for (const zckpt::Tensor* tensor : zckpt::weights_of(checkpoint)) {
    // Only floating tensors are converted; indices and masks stay as they are.
    const zckpt::DType dtype =
        is_floating(tensor->dtype) ? zckpt::DType::BF16 : tensor->dtype;
    buffers[tensor->name].resize(tensor->numel * size_of(dtype));
  }

  // Tensors come in the order of the files, whole unless they are larger than
  // the stream's buffer. Memory stays bounded whatever the model's size.
  zckpt::TensorStream stream(
      checkpoint, {.dtype = zckpt::DType::BF16, .buffer_bytes = 8 << 20});
  while (const auto piece = stream.next()) {
    std::vector<std::byte>& buffer = buffers[piece->tensor->name];
    const size_t offset = piece->first * size_of(piece->dtype);
    std::copy(piece->bytes.begin(), piece->bytes.end(),
              buffer.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  // Reaching the end means that the CRC of every record that was read whole
  // has been compared: only now do the values count.
  const zckpt::LoadResult result = stream.result();
  std::printf("%zu tensors, %llu bytes, %llu CRCs compared\n", buffers.size(),
              static_cast<unsigned long long>(stream.size_bytes()),
              static_cast<unsigned long long>(result.checked_records));

  // Where everything fits into memory, one call does the same without the
  // stream's buffer between: zckpt::load(checkpoint, targets). A part of one
  // tensor is read with checkpoint.read(tensor, first, numel, dtype, out).
  return 0;
} catch (const zckpt::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
