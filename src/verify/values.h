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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/nonfinite.h"
#include "zckpt/checkpoint.h"
#include "zckpt/finding.h"

namespace zckpt {

// Whether a tensor lies in plain runs, without a stride.
bool is_plain(const Checkpoint& checkpoint, const Tensor& tensor);

// ValueChecks looks at the values of a checkpoint while somebody else reads
// them, in whatever order and by whom: it counts NaN and infinities, and
// compares masters with the copies that hold the same weights in another
// dtype, in the shards of stages 0 to 2 and in gathered weights beside them (a
// "sidecar"). Nothing is read a second time for it: both sides of a pair are
// cut alike, each piece gives a 64-bit hash of its place and of its values in
// the copy's dtype, and the sums of those must agree. Only a pair that differs
// is read again, to name the element.
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

  // How many elements from `first` on look() takes as one piece, at most
  // kPiece.
  static constexpr uint64_t kPiece = uint64_t{1} << 15;
  uint64_t piece_length(Id id, uint64_t first) const;

  // Elements [first, first + piece_length) of a tensor. `scratch` is the
  // caller's, for conversions.
  void look(Id id, uint64_t first, std::span<const std::byte> bytes,
            std::vector<std::byte>& scratch);

  // Once all pieces have been looked at: nan, inf, weights-disagree,
  // sidecar-disagree. Reads what differs. Errors: Io.
  std::vector<Finding> findings();

  // Tensors whose copies were compared, in the shards and in the sidecar.
  uint64_t compared() const;
  uint64_t compared_with_sidecar() const;

 private:
  struct Pair {
    const Tensor* master = nullptr;
    const Tensor* copy = nullptr;
    bool sidecar = false;
    // Strided views cannot be cut alike, and of NaN there are many.
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

  void add_pair(const Tensor& master, const Tensor& copy, bool sidecar);
  void pair_copies();
  void pair_sidecar();
  const Uses* uses_of(Id id) const;
  const Checkpoint& home_of(Id id) const {
    return id.sidecar ? *sidecar_ : checkpoint_;
  }
  void count(Id id, uint64_t first, const NonFinite& found);
  void report_census(std::vector<Finding>& findings) const;
  void report_pairs(bool sidecar, std::vector<Finding>& findings) const;

  const Checkpoint& checkpoint_;
  const Checkpoint* sidecar_;
  std::deque<Pair> pairs_;
  std::vector<Finding> mismatched_;  // shapes; found while pairing
  std::vector<Uses> uses_;           // of the checkpoint's tensors
  std::vector<Uses> sidecar_uses_;
  std::mutex mutex_;                   // guards: census_
  std::map<uint32_t, Census> census_;  // by tensor of the checkpoint
};

}  // namespace zckpt
