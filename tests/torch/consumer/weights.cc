// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
//
// The example of docs/torch.md: fills a module and lists what it holds.
//   weights CHECKPOINT
#include <torch/torch.h>
#include <zckpt/error.h>
#include <zckpt/torch.h>

#include <iostream>

// What the runs under tests/fixtures/zero train, as far as `up` and `down`.
struct Block : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(13, 29));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(29, 13));
};

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const zckpt::Checkpoint checkpoint = zckpt::open_for_load(argv[1]);

  Block block;
  block.to(torch::kBFloat16);
  const zckpt::LoadReport report =
      zckpt::load_into(block, checkpoint, {.strict = false});
  std::cout << report.missing.size() << " missing, " << report.unexpected.size()
            << " unexpected\n";
  std::cout
      << "down(up(1)) has "
      << block.down(block.up(torch::ones({1, 13}, torch::kBFloat16))).numel()
      << " elements\n";

  zckpt::TorchStream stream(checkpoint);
  while (const auto next = stream.next()) {
    std::cout << next->name << ' ' << next->data.scalar_type() << ' '
              << next->data.sizes() << '\n';
  }
} catch (const zckpt::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
