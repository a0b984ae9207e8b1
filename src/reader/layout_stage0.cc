// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <set>

#include "base/crc32.h"
#include "base/half.h"
#include "base/text.h"
#include "reader/layout.h"

// Stage 0 (format.md 2.4): the optimizer lies in the model file. fp32 training
// has no masters beside the weights. fp16 and bf16 training has them, but
// without names: per optimizer group one flat vector (fused) or a list of
// tensors (unfused), each in the order of the model's parameters. They are
// named here only where exactly one assignment makes every master round to the
// model's own copy, bit for bit.

namespace zckpt {
namespace {

constexpr size_t kCompareElements = size_t{1} << 16;
// The first look, which tells most strangers apart.
constexpr size_t kGlanceElements = 64;
// What the search for names may cost: it goes one call deeper per entry, and
// weights that all look alike make it try every order.
constexpr size_t kMaxEntries = 10'000;
constexpr size_t kMaxSteps = 1'000'000;

// The masters of one group.
struct Group {
  std::vector<TensorView> tensors;  // one, if flat
  bool flat = false;

  uint64_t end() const {
    return flat ? tensors[0].numel : static_cast<uint64_t>(tensors.size());
  }
  // The master at `cursor` if it can be the one of `copy` by its shape.
  std::optional<TensorView> candidate(uint64_t cursor,
                                      const TensorView& copy) const {
    if (cursor >= end()) return std::nullopt;
    if (!flat) {
      const TensorView& master = tensors[static_cast<size_t>(cursor)];
      if (master.shape != copy.shape || !master.contiguous) {
        return std::nullopt;
      }
      return master;
    }
    if (copy.numel > end() - cursor) return std::nullopt;
    TensorView master = tensors[0];
    master.offset += cursor * size_of(master.dtype);
    master.shape = copy.shape;
    master.numel = copy.numel;
    master.stride.assign(copy.shape.size(), 1);
    for (size_t d = copy.shape.size(); d-- > 1;) {
      master.stride[d - 1] = master.stride[d] * copy.shape[d];
    }
    return master;
  }
  uint64_t after(uint64_t cursor, const TensorView& copy) const {
    return flat ? cursor + copy.numel : cursor + 1;
  }
};

// Whether every element of `master` rounds to that of `copy`.
bool rounds_to(const FileSource& file, const TensorView& master,
               const TensorView& copy) {
  if (master.dtype != DType::F32 || !copy.contiguous) return false;
  if (copy.dtype != DType::BF16 && copy.dtype != DType::F16) return false;
  std::vector<uint32_t> wide;
  std::vector<uint16_t> narrow;
  for (uint64_t done = 0; done < copy.numel;) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(
        done == 0 ? kGlanceElements : kCompareElements, copy.numel - done));
    wide.resize(count);
    narrow.resize(count);
    file.read_at(master.offset + done * 4,
                 std::as_writable_bytes(std::span(wide).first(count)));
    file.read_at(copy.offset + done * 2,
                 std::as_writable_bytes(std::span(narrow).first(count)));
    for (size_t i = 0; i < count; ++i) {
      const uint16_t rounded = copy.dtype == DType::BF16
                                   ? bf16_from_float_bits(wide[i])
                                   : fp16_from_float_bits(wide[i]);
      const bool nan = (wide[i] & 0x7fffffffU) > 0x7f800000U;
      if (rounded != narrow[i] && !nan) return false;
    }
    done += count;
  }
  return true;
}

// Finds the assignments of masters to names. Groups list their parameters in
// the module's order, so a search over one cursor per group finds them all; a
// state that led nowhere is not tried again.
class Namer {
 public:
  Namer(const FileSource& file, std::vector<Group> groups,
        std::vector<const ModuleEntry*> entries)
      : file_(file),
        groups_(std::move(groups)),
        entries_(std::move(entries)),
        choice_(entries_.size(), kFrozen) {
    left_.resize(entries_.size() + 1);
    for (size_t i = entries_.size(); i-- > 0;) {
      left_[i] = left_[i + 1] + entries_[i]->tensor->numel;
    }
  }

  // For each entry the master that is its own; empty unless there is exactly
  // one assignment.
  std::vector<std::optional<TensorView>> run() {
    if (entries_.size() > kMaxEntries) return {};
    search(0, std::vector<uint64_t>(groups_.size(), 0));
    if (solutions_ != 1 || steps_ > kMaxSteps) return {};
    std::vector<std::optional<TensorView>> masters;
    std::vector<uint64_t> cursors(groups_.size(), 0);
    for (size_t i = 0; i < entries_.size(); ++i) {
      auto& master = masters.emplace_back();
      if (found_[i] == kFrozen) continue;
      const TensorView& copy = *entries_[i]->tensor;
      uint64_t& cursor = cursors[found_[i]];
      master = groups_[found_[i]].candidate(cursor, copy);
      cursor = groups_[found_[i]].after(cursor, copy);
    }
    return masters;
  }

  int solutions() const { return solutions_; }

 private:
  static constexpr size_t kFrozen = SIZE_MAX;

  bool search(size_t i, const std::vector<uint64_t>& cursors) {
    if (i == entries_.size()) {
      for (size_t g = 0; g < groups_.size(); ++g) {
        if (cursors[g] != groups_[g].end()) return false;
      }
      found_ = choice_;
      ++solutions_;
      return true;
    }
    if (++steps_ > kMaxSteps || !can_fill(i, cursors) ||
        failed_.contains({i, cursors})) {
      return false;
    }
    bool any = false;
    for (size_t g = 0; g < groups_.size() && solutions_ < 2; ++g) {
      if (!matches(i, g, cursors[g])) continue;
      std::vector<uint64_t> next = cursors;
      next[g] = groups_[g].after(cursors[g], *entries_[i]->tensor);
      choice_[i] = g;
      any = search(i + 1, next) || any;
    }
    choice_[i] = kFrozen;
    if (solutions_ < 2) any = search(i + 1, cursors) || any;
    if (!any) failed_.insert({i, cursors});
    return any;
  }

  // Whether the entries from `i` on are enough for what the groups still hold.
  bool can_fill(size_t i, const std::vector<uint64_t>& cursors) const {
    uint64_t flat = 0;
    uint64_t tensors = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      (groups_[g].flat ? flat : tensors) += groups_[g].end() - cursors[g];
    }
    return flat <= left_[i] && tensors <= entries_.size() - i;
  }

  bool matches(size_t i, size_t group, uint64_t cursor) {
    const auto [known, fresh] =
        matches_.try_emplace(std::tuple(i, group, cursor), false);
    if (!fresh) return known->second;
    const TensorView& copy = *entries_[i]->tensor;
    const auto master = groups_[group].candidate(cursor, copy);
    known->second = master && rounds_to(file_, *master, copy);
    return known->second;
  }

  const FileSource& file_;
  std::vector<Group> groups_;
  std::vector<const ModuleEntry*> entries_;
  std::vector<uint64_t> left_;  // elements of the entries from each one on
  std::vector<size_t> choice_;
  std::vector<size_t> found_;
  int solutions_ = 0;
  size_t steps_ = 0;
  std::set<std::pair<size_t, std::vector<uint64_t>>> failed_;
  std::map<std::tuple<size_t, size_t, uint64_t>, bool> matches_;
};

bool fits(const ShardSet& shards) {
  const ShardFile* model = shards.leading_model();
  const bool any_optim = std::any_of(
      shards.files.begin(), shards.files.end(),
      [](const ShardFile& file) { return file.name.kind == ShardKind::Optim; });
  return model != nullptr && !any_optim && !model->name.rank &&
         model->model->has_optimizer;
}

std::vector<Group> read_groups(const TorchFile& file, const Value& optimizer) {
  std::vector<Group> groups;
  const auto sequence = [&](std::string_view key) -> std::optional<Value> {
    const auto value = optimizer.find(key);
    return value && value->is_sequence() ? value : std::nullopt;
  };
  if (const auto flat = sequence("fp32_groups_flat")) {
    for (size_t g = 0; g < flat->size(); ++g) {
      Group& group = groups.emplace_back();
      group.flat = true;
      const auto view = view_of(file, flat->item(g));
      if (!view) return {};
      group.tensors.push_back(*view);
    }
  } else if (const auto lists = sequence("fp32_groups")) {
    for (size_t g = 0; g < lists->size(); ++g) {
      Group& group = groups.emplace_back();
      const Value list = lists->item(g);
      for (size_t k = 0; k < (list.is_sequence() ? list.size() : 0); ++k) {
        const auto view = view_of(file, list.item(k));
        if (!view) return {};
        if (view->numel != 0) group.tensors.push_back(*view);
      }
    }
  }
  return groups;
}

// Module entries that can be parameters: no buffers, tied data once.
std::vector<const ModuleEntry*> parameter_entries(const ModelStates& states) {
  std::set<std::string> buffers;
  if (states.buffer_names) {
    buffers.insert(states.buffer_names->begin(), states.buffer_names->end());
  }
  std::vector<const ModuleEntry*> entries;
  std::set<uint64_t> places;
  for (const ModuleEntry& entry : states.module) {
    if (!entry.tensor || buffers.contains(entry.name)) continue;
    // One without elements has no master to be found, nor to be missed.
    if (entry.tensor->numel == 0) continue;
    if (!places.insert(entry.tensor->offset).second) continue;
    entries.push_back(&entry);
  }
  return entries;
}

// Masters that match nothing may be damaged: then their CRC says so.
void check_records(const FileSource& file, const std::vector<Group>& groups) {
  std::set<uint64_t> masters;
  for (const Group& group : groups) {
    for (const TensorView& view : group.tensors) {
      masters.insert(view.storage_offset);
    }
  }
  std::vector<std::byte> buffer;
  for (const StorageRecord& record : read_storage_records(file)) {
    if (!record.has_crc || !masters.contains(record.offset)) continue;
    uint32_t crc = 0;
    for (uint64_t done = 0; done < record.size_bytes; done += buffer.size()) {
      buffer.resize(static_cast<size_t>(
          std::min<uint64_t>(uint64_t{1} << 20, record.size_bytes - done)));
      file.read_at(record.offset + done, buffer);
      crc = crc32_update(crc, buffer);
    }
    if (crc != record.crc) {
      throw fault_error("crc-mismatch",
                        "storage " + record.key +
                            ", which holds masters, does not have the CRC "
                            "that the archive states",
                        record.offset);
    }
  }
}

void read(const std::shared_ptr<const ShardSet>& shards,
          const ModelStates& states, Contents& contents) {
  const auto optimizer = states.file->root().find("optimizer");
  const std::vector<Group> groups = read_groups(*states.file, *optimizer);
  if (groups.empty()) {
    if (optimizer->find("fp32_groups") || optimizer->find("fp32_groups_flat")) {
      contents.notes.emplace_back(
          "the optimizer of this stage-0 checkpoint holds no masters; the "
          "weights come from the model, in its own precision");
    }
    return;  // fp32: the weights are the masters
  }
  const auto entries = parameter_entries(states);
  const auto file = shards->sources->open(states.source);
  Namer namer(*file, groups, entries);
  const auto masters = namer.run();
  if (masters.empty()) {
    check_records(*file, groups);
    contents.notes.emplace_back(
        namer.solutions() == 0
            ? "the fp32 masters of this stage-0 checkpoint have no names and "
              "match the model's weights in no order; the weights come from "
              "the model, in its own precision"
            : "the fp32 masters of this stage-0 checkpoint have no names and "
              "more than one order fits; the weights come from the model, in "
              "its own precision");
    return;
  }
  size_t without = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!masters[i]) {
      ++without;
      continue;
    }
    contents.add({.name = entries[i]->name,
                  .role = Role::Master,
                  .dtype = masters[i]->dtype,
                  .shape = masters[i]->shape,
                  .numel = masters[i]->numel},
                 place_view(states.source, *masters[i]));
  }
  contents.notes.emplace_back(
      std::string("the fp32 masters of this stage-0 checkpoint have no names; "
                  "they were ") +
      "named by comparing every element with the model's own copy" +
      (without == 0 ? std::string()
                    : "; " + count_of(without, "tensor") +
                          " without a master (frozen ones) come from the "
                          "model"));
}

}  // namespace

const Layout& stage0_layout() {
  static constexpr Layout kLayout{"ZeRO-0", &fits, &read};
  return kLayout;
}

}  // namespace zckpt
