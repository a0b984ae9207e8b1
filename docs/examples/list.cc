// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// Lists what a checkpoint holds: list PATH

#include <zckpt/checkpoint.h>
#include <zckpt/error.h>
#include <zckpt/load.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: list PATH\n");
    return 2;
  }

  // Opening reads names and metadata only, a few MB even for terabytes. It
  // throws where the files cannot be put together: shards of two saves, a rank
  // that is missing, a damaged file.
  const zckpt::Checkpoint checkpoint = zckpt::open_for_load(argv[1]);
  const zckpt::CheckpointFacts& facts = checkpoint.facts();
  std::printf("%s, %u ranks\n", facts.layout.c_str(), facts.world_size);

  // A name can be there several times: the optimizer's master, the model's
  // 16-bit copy, and each state of the optimizer. The role tells them apart.
  for (const zckpt::Tensor& tensor : checkpoint.tensors()) {
    std::printf("%-7s %-11s %-5s", to_string(tensor.role).data(),
                tensor.state.c_str(), short_name(tensor.dtype).data());
    for (const uint64_t size : tensor.shape) {
      std::printf(" %llu", static_cast<unsigned long long>(size));
    }
    std::printf("  %s\n", tensor.name.c_str());
  }

  // Tied weights have one tensor; the other names are aliases of it.
  for (const auto& [alias, kept] : facts.aliases) {
    std::printf("alias   %s is %s\n", alias.c_str(), kept.c_str());
  }
  return 0;
} catch (const zckpt::Error& error) {
  // One type for everything that can go wrong, with file, tensor and byte as
  // far as they are known.
  std::fprintf(stderr, "error: %s\n", error.what());
  for (const zckpt::Finding& finding : error.findings()) {
    std::fprintf(stderr, "  [%s] %s\n", finding.code.c_str(),
                 finding.message.c_str());
  }
  return 1;
}
