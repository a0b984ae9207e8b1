// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/layout.h"

// A model file without any optimizer shard: weights only, in the dtype that
// the model computes with. There are no masters, so nothing is added here.

namespace zckpt {
namespace {

bool fits(const ShardSet& shards) {
  const ShardFile* model = shards.leading_model();
  return model != nullptr && !model->name.rank;
}

void read(const std::shared_ptr<const ShardSet>& /*shards*/,
          const ModelStates& /*states*/, Contents& contents) {
  contents.notes.emplace_back(
      "there are no optimizer shards here: the weights come from the model "
      "file, in the precision that the model computes with");
}

}  // namespace

const Layout& model_only_layout() {
  static constexpr Layout kLayout{"weights only", &fits, &read};
  return kLayout;
}

}  // namespace zckpt
