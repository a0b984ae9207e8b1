// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/joined.h"

#include <utility>

namespace zckpt {
namespace {

// A tensor of another checkpoint, whose sources have new numbers.
class JoinedPlacement final : public Placement {
 public:
  JoinedPlacement(std::shared_ptr<const CheckpointData> data, size_t tensor,
                  uint32_t first_source)
      : data_(std::move(data)), tensor_(tensor), first_source_(first_source) {}

  void extents(uint64_t first, uint64_t numel,
               const ExtentSink& sink) const override {
    data_->contents.placement(tensor_).extents(
        first, numel, [&](const Extent& extent) {
          Extent renumbered = extent;
          renumbered.source += first_source_;
          sink(renumbered);
        });
  }

 private:
  std::shared_ptr<const CheckpointData> data_;
  size_t tensor_;
  uint32_t first_source_;
};

}  // namespace

Joined::Joined(const Checkpoint& main)
    : data_(std::make_shared<CheckpointData>()),
      sources_(std::make_shared<SourceSet>(main.facts().folder)) {
  const auto shared = main.shared_data();
  data_->facts = shared->facts;
  data_->shards = shared->shards;
  add_sources(*shared);
  const auto& tensors = shared->contents.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    data_->contents.add(tensors[i],
                        std::make_unique<JoinedPlacement>(shared, i, 0));
  }
}

uint32_t Joined::add_sources(const CheckpointData& data) {
  const auto first = static_cast<uint32_t>(sources_->list().size());
  for (uint32_t i = 0; i < data.sources->list().size(); ++i) {
    sources_->add(data.sources->path(i), data.sources->list()[i].size_bytes,
                  data.sources->stamp(i));
  }
  return first;
}

uint32_t Joined::add(const Checkpoint& other) {
  const auto shared = other.shared_data();
  const uint32_t first_source = add_sources(*shared);
  const auto& tensors = shared->contents.tensors();
  const auto first = static_cast<uint32_t>(data_->contents.tensors().size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    data_->contents.append(
        tensors[i], std::make_unique<JoinedPlacement>(shared, i, first_source));
  }
  return first;
}

uint32_t Joined::add_file(const std::string& path, uint64_t size_bytes) {
  return sources_->add(path, size_bytes);
}

Checkpoint Joined::finish() {
  data_->sources = sources_;
  return Checkpoint(std::move(data_));
}

}  // namespace zckpt
