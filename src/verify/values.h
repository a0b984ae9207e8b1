// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/nonfinite.h"
#include "zckpt/checkpoint.h"
#include "zckpt/finding.h"

namespace zckpt {

// ValueChecks looks at the values of a checkpoint while somebody else reads
// them, in whatever order and by whom: it counts NaN and infinities, and
// compares masters with the copies that hold the same weights in another
// dtype, in the shards of stages 0 to 2 and in gathered weights beside them (a
// "sidecar"). Nothing is read a second time for it: both sides of a pair are
// cut alike, each piece gives a 64-bit hash of its place and of its values in
// the copy's dtype, and the sums of those must agree. Only a pair that differs
// is read again, to name the element. Of a view with a stride the storage
// behind it is looked at, and it is not compared.
// Threads: look() from any; the rest from one.
// Memory:  O(tensors).
class ValueChecks {
 public:
  // `sidecar` may be null. Both outlive *this.
  ValueChecks(const Checkpoint& checkpoint, const Checkpoint* sidecar);

  // One tensor of the checkpoint, or of the sidecar.
  struct Id {
    bool sidecar = false;
    uint32_t index = 0;
  };

  enum class Form : uint8_t {
    Plain,    // runs without a stride
    Strided,  // a view that is not contiguous
    Unknown,  // a state whose shard is too short: another finding says so
  };
  Form form_of(Id id) const {
    return (id.sidecar ? sidecar_forms_ : forms_)[id.index];
  }

  // How many elements from `first` on look() takes as one piece, at most
  // kPiece.
  static constexpr uint64_t kPiece = uint64_t{1} << 15;
  uint64_t piece_length(Id id, uint64_t first) const;

  // Elements [first, first + piece_length) of a tensor. `scratch` is the
  // caller's, for conversions.
  void look(Id id, uint64_t first, std::span<const std::byte> bytes,
            std::vector<std::byte>& scratch);

  // The same for elements [first, first + n) of the storage behind a strided
  // view.
  void look_behind(Id id, uint64_t first, std::span<const std::byte> bytes);

  // Once all pieces have been looked at: nan, inf, weights-disagree,
  // sidecar-disagree, and file-unreadable where reading what differs fails.
  std::vector<Finding> findings() const;

  // Tensors whose copies were compared, in the shards and in the sidecar.
  uint64_t compared() const;
  uint64_t compared_with_sidecar() const;
  // Pairs that a stride keeps from being compared.
  uint64_t not_compared() const { return not_compared_; }

 private:
  struct Pair {
    const Tensor* master = nullptr;
    const Tensor* copy = nullptr;
    bool sidecar = false;
    // There is more than one NaN.
    std::atomic<bool> by_element{false};
    std::atomic<uint64_t> difference{0};  // sum over masters - over copies
  };
  struct Uses {
    std::vector<uint32_t> as_master;  // indices into pairs_
    std::optional<uint32_t> as_copy;
  };
  struct Census {
    uint64_t nan = 0;
    uint64_t inf = 0;
    uint64_t first = 0;  // element that is either
  };

  std::vector<Form> forms_in(const Checkpoint& checkpoint) const;
  void add_pair(const Tensor& master, const Tensor& copy, bool sidecar);
  void pair_copies();
  void pair_sidecar();
  void report_missing(const std::set<const Tensor*>& matched);
  const Uses& uses_of(Id id) const {
    return (id.sidecar ? sidecar_uses_ : uses_)[id.index];
  }
  const Checkpoint& home_of(Id id) const {
    return id.sidecar ? *sidecar_ : checkpoint_;
  }
  void count(Id id, uint64_t first, const NonFinite& found);
  void report_census(std::vector<Finding>& findings) const;
  void report_pairs(bool sidecar, std::vector<Finding>& findings) const;
  std::optional<Finding> differs(const Pair& pair) const;

  const Checkpoint& checkpoint_;
  const Checkpoint* sidecar_;
  std::vector<Form> forms_;
  std::vector<Form> sidecar_forms_;
  std::deque<Pair> pairs_;
  uint64_t not_compared_ = 0;
  std::vector<Finding> mismatched_;  // shapes; found while pairing
  std::vector<Uses> uses_;           // of the checkpoint's tensors
  std::vector<Uses> sidecar_uses_;
  std::mutex mutex_;                   // guards: census_
  std::map<uint32_t, Census> census_;  // by tensor of the checkpoint
};

}  // namespace zckpt
