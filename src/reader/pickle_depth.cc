// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/pickle_depth.h"

#include <algorithm>
#include <string>
#include <vector>

#include "zckpt/error.h"

namespace zckpt {
namespace {

constexpr uint32_t kUnseen = 0;
constexpr uint32_t kOpen = UINT32_MAX;  // an ancestor of what is being walked

// Depth cannot be kept up while the tree is built: a list that is inside
// others already may grow deeper at any time. So it is measured at the end,
// as the height of every node, depth first.
class DepthWalk {
 public:
  DepthWalk(const Pickle& pickle, uint32_t max_depth)
      : pickle_(pickle),
        max_depth_(max_depth),
        heights_(pickle.node_count(), kUnseen) {}

  void run() {
    enter(pickle_.root());
    while (!frames_.empty()) {
      if (!walk_items(frames_.back())) next_update(frames_.back());
    }
  }

 private:
  struct Frame {
    NodeId id = 0;
    uint32_t update = 0;  // 0: the node's own items
    uint32_t position = 0;
    uint32_t height = 1;
  };

  bool is_leaf(NodeId id) const {
    const Node& node = pickle_.node(id);
    return node.items.size == 0 && node.first_update == 0;
  }

  // True once a child has been entered, and then `frame` may have moved; false
  // at the end of the items.
  bool walk_items(Frame& frame) {
    const auto items =
        pickle_.items(frame.update == 0 ? pickle_.node(frame.id).items
                                        : pickle_.update(frame.update).items);
    while (frame.position < items.size()) {
      const NodeId child = items[frame.position++];
      uint32_t& height = heights_[child];
      if (height == kUnseen) {
        if (!is_leaf(child)) {
          enter(child);
          return true;
        }
        height = 1;
      }
      if (height != kOpen) raise(frame, height + 1);
    }
    return false;
  }

  void enter(NodeId id) {
    if (frames_.size() >= max_depth_) too_deep();
    heights_[id] = kOpen;
    frames_.push_back({.id = id});
  }

  void next_update(Frame& frame) {
    frame.update = frame.update == 0 ? pickle_.node(frame.id).first_update
                                     : pickle_.update(frame.update).next;
    frame.position = 0;
    if (frame.update != 0) return;
    const uint32_t height = frame.height;
    heights_[frame.id] = height;
    frames_.pop_back();
    if (!frames_.empty()) raise(frames_.back(), height + 1);
  }

  void raise(Frame& frame, uint32_t height) const {
    frame.height = std::max(frame.height, height);
    if (frame.height > max_depth_) too_deep();
  }

  [[noreturn]] void too_deep() const {
    throw Error(ErrorCode::Limit, "pickle is nested deeper than " +
                                      std::to_string(max_depth_) + " levels");
  }

  const Pickle& pickle_;
  uint32_t max_depth_;
  std::vector<uint32_t> heights_;
  std::vector<Frame> frames_;
};

}  // namespace

void check_depth(const Pickle& pickle, uint32_t max_depth) {
  DepthWalk(pickle, max_depth).run();
}

}  // namespace zckpt
