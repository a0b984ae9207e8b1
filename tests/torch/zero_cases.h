// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace zckpt::test {

// A checkpoint under tests/fixtures/zero that can be merged.
struct ZeroCase {
  std::string name;
  std::string folder;
  std::string checkpoint() const { return folder + "/ckpt"; }
};
// Those that hold all weights, as tests/fixtures/zero/*/case.json says.
std::vector<ZeroCase> zero_cases();
ZeroCase zero_case(const std::string& name);

// What the run held in memory; aliases are names of the same tensor.
struct ZeroTruth {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> aliases;  // alias -> kept
};
ZeroTruth truth_of(const ZeroCase& one);

// Same dtype, shape and bits.
bool identical(const at::Tensor& a, const at::Tensor& b);

}  // namespace zckpt::test
