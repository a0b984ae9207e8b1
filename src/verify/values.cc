// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/values.h"

#ifdef ZCKPT_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>

#include "base/cast.h"
#include "base/text.h"
#include "verify/checks.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// Findings of one code that are given one by one.
constexpr size_t kListed = 16;

Finding sidecar_disagreement(const StoredTensor& copy, uint64_t element) {
  Finding finding{
      .code = "sidecar-disagree",
      .severity = Severity::Warning,
      .message = "element " + std::to_string(element) +
                 " of these gathered weights is not what the shards round to: "
                 "either file is of another step, in another order or damaged",
      .tensor = copy.tensor->name};
  set_place(finding, copy, element);
  return finding;
}

std::string place_text(const Tensor& tensor) {
  return tensor.role == Role::State ? "optimizer state " + escape(tensor.state)
                                    : std::string(to_string(tensor.role));
}

}  // namespace

ValueChecks::ValueChecks(const Checkpoint& checkpoint,
                         const Checkpoint* sidecar)
    : checkpoint_(checkpoint), sidecar_(sidecar) {
  forms_ = forms_in(checkpoint);
  uses_.resize(checkpoint.tensors().size());
  pair_copies();
  if (sidecar != nullptr) {
    sidecar_forms_ = forms_in(*sidecar);
    sidecar_uses_.resize(sidecar->tensors().size());
    pair_sidecar();
  }
}

std::vector<ValueChecks::Form> ValueChecks::forms_in(
    const Checkpoint& checkpoint) const {
  std::vector<Form> forms;
  for (const Tensor& tensor : checkpoint.tensors()) {
    Form form = Form::Plain;
    try {
      checkpoint.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
        if (extent.count == 1) return;
        form = Form::Strided;
        // There can be no end of runs in a view that repeats itself.
        throw Error(ErrorCode::Unsupported, "strided");
      });
    } catch (const Error&) {
      if (form == Form::Plain) form = Form::Unknown;
    }
    forms.push_back(form);
  }
  return forms;
}

void ValueChecks::add_pair(const Tensor& master, const Tensor& copy,
                           bool sidecar) {
  const Checkpoint& home = sidecar ? *sidecar_ : checkpoint_;
  const auto copy_index = static_cast<uint32_t>(&copy - home.tensors().data());
  const auto master_index =
      static_cast<uint32_t>(&master - checkpoint_.tensors().data());
  int runs = 0;
  if (form_of({sidecar, copy_index}) == Form::Plain) {
    home.extents(copy, 0, copy.numel, [&](const Extent&) { ++runs; });
  }
  // A copy in several runs would have to be cut at its own ends, too.
  if (runs > 1 || form_of({sidecar, copy_index}) != Form::Plain ||
      form_of({false, master_index}) != Form::Plain) {
    ++not_compared_;
    return;
  }
  const auto pair = static_cast<uint32_t>(pairs_.size());
  pairs_.emplace_back();
  pairs_.back().master = &master;
  pairs_.back().copy = &copy;
  pairs_.back().sidecar = sidecar;
  (sidecar ? sidecar_uses_ : uses_)[copy_index].as_copy = pair;
  uses_[master_index].as_master.push_back(pair);
}

void ValueChecks::pair_copies() {
  for (const Tensor& tensor : checkpoint_.tensors()) {
    if (const Tensor* copy = own_copy(checkpoint_, tensor)) {
      add_pair(tensor, *copy, false);
    }
  }
}

void ValueChecks::pair_sidecar() {
  std::set<const Tensor*> matched;
  bool placeholders = false;
  for (const Tensor& copy : sidecar_->tensors()) {
    if (copy.numel == 0) {  // which is another finding
      placeholders = true;
      continue;
    }
    std::string name = copy.name;
    for (const auto& [alias, kept] : checkpoint_.facts().aliases) {
      if (alias == name) name = kept;
    }
    const Tensor* master = checkpoint_.find(name);
    matched.insert(master);
    if (master == nullptr || !comparable(master->dtype) ||
        !comparable(copy.dtype)) {
      continue;
    }
    if (master->shape != copy.shape) {
      mismatched_.push_back(
          {.code = "sidecar-disagree",
           .severity = Severity::Warning,
           .message = "gathered weights beside the shards have another shape "
                      "than the shards: " +
                      count_of(copy.numel, "element") + " against " +
                      std::to_string(master->numel),
           .tensor = copy.name});
      continue;
    }
    add_pair(*master, copy, true);
  }
  matched.erase(nullptr);
  if (!matched.empty() && !placeholders) report_missing(matched);
}

void ValueChecks::report_missing(const std::set<const Tensor*>& matched) {
  uint64_t missing = 0;
  for (const Tensor& tensor : checkpoint_.tensors()) {
    const bool weight =
        tensor.role == Role::Master || tensor.role == Role::Frozen;
    if (!weight || tensor.numel == 0 || matched.contains(&tensor)) continue;
    if (missing++ != 0) continue;
    mismatched_.push_back(
        {.code = "sidecar-disagree",
         .severity = Severity::Warning,
         .message = "gathered weights beside the shards lack this tensor",
         .tensor = tensor.name});
  }
  if (missing > 1) {
    mismatched_.back().message +=
        " and " + count_of(missing - 1, "more tensor");
  }
}

uint64_t ValueChecks::piece_length(Id id, uint64_t first) const {
  const Tensor& tensor = home_of(id).tensors()[id.index];
  const uint64_t length =
      std::min(kPiece - first % kPiece, tensor.numel - first);
  const Uses& uses = uses_of(id);
  const Tensor* master = uses.as_copy             ? pairs_[*uses.as_copy].master
                         : uses.as_master.empty() ? nullptr
                                                  : &tensor;
  if (master == nullptr) return length;
  // Both sides end a piece where the master's extent ends.
  std::optional<uint64_t> run;
  checkpoint_.extents(*master, first, length, [&](const Extent& extent) {
    if (!run) run = extent.numel;
  });
  return *run;
}

void ValueChecks::look(Id id, uint64_t first, std::span<const std::byte> bytes,
                       std::vector<std::byte>& scratch) {
  const Tensor& tensor = home_of(id).tensors()[id.index];
  const NonFinite found = count_nonfinite(tensor.dtype, bytes);
  if (found.first && !id.sidecar) count(id, first, found);
  const Uses& uses = uses_of(id);
  const auto hash = [&](std::span<const std::byte> values) {
    return XXH3_64bits_withSeed(values.data(), values.size(), first);
  };
  if (uses.as_copy) {
    Pair& pair = pairs_[*uses.as_copy];
    if (found.nan != 0) pair.by_element = true;
    pair.difference -= hash(bytes);
  }
  for (const uint32_t i : uses.as_master) {
    Pair& pair = pairs_[i];
    if (found.nan != 0) pair.by_element = true;
    if (pair.copy->dtype == tensor.dtype) {
      pair.difference += hash(bytes);
      continue;
    }
    scratch.resize(bytes.size() / size_of(tensor.dtype) *
                   size_of(pair.copy->dtype));
    CastCounts ignored;
    cast(tensor.dtype, bytes, pair.copy->dtype, scratch, ignored);
    pair.difference += hash(scratch);
  }
}

void ValueChecks::look_behind(Id id, uint64_t first,
                              std::span<const std::byte> bytes) {
  const NonFinite found =
      count_nonfinite(home_of(id).tensors()[id.index].dtype, bytes);
  if (found.first && !id.sidecar) count(id, first, found);
}

void ValueChecks::count(Id id, uint64_t first, const NonFinite& found) {
  const uint64_t element = first + *found.first;
  const std::lock_guard lock(mutex_);
  const auto [it, fresh] = census_.try_emplace(id.index);
  Census& census = it->second;
  census.nan += found.nan;
  census.inf += found.inf;
  if (fresh || element < census.first) census.first = element;
}

void ValueChecks::report_census(std::vector<Finding>& findings) const {
  for (const bool nan : {true, false}) {
    size_t listed = 0;
    uint64_t more = 0;
    Severity most = Severity::Note;
    const std::string code = nan ? "nan" : "inf";
    const std::string what = nan ? "NaN" : "infinite";
    for (const auto& [index, census] : census_) {
      const uint64_t count = nan ? census.nan : census.inf;
      if (count == 0) continue;
      const Tensor& tensor = checkpoint_.tensors()[index];
      // Attention masks are buffers that hold -inf by design.
      const bool expected = !nan && tensor.role == Role::Buffer;
      const Severity severity = expected ? Severity::Note : Severity::Warning;
      if (listed++ >= kListed) {
        ++more;
        most = std::max(most, severity);
        continue;
      }
      const bool plain = form_of({false, index}) == Form::Plain;
      findings.push_back(
          {.code = code,
           .severity = severity,
           .message = std::to_string(count) + " of " +
                      (plain ? count_of(tensor.numel, "element")
                             : std::string("the elements behind this view")) +
                      " (" + place_text(tensor) + ") " +
                      (count == 1 ? "is " : "are ") + what +
                      "; the first that is no number is element " +
                      std::to_string(census.first),
           .tensor = tensor.name});
      if (plain) {
        set_place(findings.back(), {&checkpoint_, &tensor}, census.first);
      }
    }
    if (more != 0) {
      findings.push_back({.code = code,
                          .severity = most,
                          .message = "so have " +
                                     count_of(more, "more tensor") +
                                     ": values that are " + what});
    }
  }
}

std::optional<Finding> ValueChecks::differs(const Pair& pair) const {
  if (!pair.by_element && pair.difference == 0) return std::nullopt;
  const StoredTensor master{&checkpoint_, pair.master};
  const StoredTensor copy{pair.sidecar ? sidecar_ : &checkpoint_, pair.copy};
  const auto element = first_disagreement(master, copy, 0, pair.master->numel);
  if (!element) return std::nullopt;
  return pair.sidecar ? sidecar_disagreement(copy, *element)
                      : copy_disagreement(master, *element);
}

void ValueChecks::report_pairs(bool sidecar,
                               std::vector<Finding>& findings) const {
  uint64_t compared = 0;
  uint64_t differing = 0;
  std::optional<Finding> first;
  for (const Pair& pair : pairs_) {
    if (pair.sidecar != sidecar) continue;
    ++compared;
    std::optional<Finding> found;
    try {
      found = differs(pair);
    } catch (const Error& error) {
      // It was read a moment ago.
      found = {.code = sidecar ? "sidecar-disagree" : "file-unreadable",
               .severity = sidecar ? Severity::Warning : Severity::Error,
               .message = "reading it once more failed: " + error.message(),
               .file = relative_name(error.file(), checkpoint_.facts().folder),
               .tensor = pair.copy->name,
               .offset = error.offset()};
    }
    if (found && differing++ == 0) first = std::move(found);
  }
  if (!first) return;
  if (differing > 1) {
    first->message += "; of " + count_of(compared, "tensor") + " that were " +
                      "compared " + std::to_string(differing) + " differ";
  }
  findings.push_back(std::move(*first));
}

std::vector<Finding> ValueChecks::findings() const {
  std::vector<Finding> findings;
  report_census(findings);
  report_pairs(false, findings);
  report_pairs(true, findings);
  findings.insert(findings.end(), mismatched_.begin(), mismatched_.end());
  return findings;
}

uint64_t ValueChecks::compared() const {
  return static_cast<uint64_t>(
      std::count_if(pairs_.begin(), pairs_.end(),
                    [](const Pair& pair) { return !pair.sidecar; }));
}

uint64_t ValueChecks::compared_with_sidecar() const {
  return pairs_.size() - compared();
}

}  // namespace zckpt
