// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/ties.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/cast.h"
#include "base/parallel.h"
#include "base/text.h"
#include "export/source_model.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

constexpr uint64_t kChunk = uint64_t{1} << 18;

bool same_runs(const NamedTensor& a, const NamedTensor& b) {
  return std::equal(a.runs.begin(), a.runs.end(), b.runs.begin(), b.runs.end(),
                    [](const PlannedRun& x, const PlannedRun& y) {
                      return std::tie(x.tensor, x.first, x.numel) ==
                             std::tie(y.tensor, y.first, y.numel);
                    });
}

class TieSettler {
 public:
  TieSettler(const Checkpoint& checkpoint, const LoraPlan& plan,
             std::optional<DType> dtype, const StopToken* stop)
      : checkpoint_(checkpoint), plan_(plan), dtype_(dtype), stop_(stop) {}

  bool equal(const NamedTensor& a, const NamedTensor& b) const {
    if (a.shape != b.shape) return false;
    if (has_terms(a) || has_terms(b)) return false;
    if (same_runs(a, b) && rounding(a) == rounding(b)) return true;
    return equal_values(a, b);
  }

 private:
  bool has_terms(const NamedTensor& tensor) const {
    return tensor.change && !plan_.changes[*tensor.change].terms.empty();
  }
  std::optional<DType> rounding(const NamedTensor& tensor) const {
    if (!tensor.change) return std::nullopt;
    return plan_.changes[*tensor.change].base;
  }

  bool equal_values(const NamedTensor& a, const NamedTensor& b) const {
    if (a.runs.size() != 1 || b.runs.size() != 1) return false;
    const uint64_t numel = a.runs.front().numel;
    for (uint64_t at = 0; at < numel; at += kChunk) {
      throw_if_stopped(stop_);
      const uint64_t count = std::min(kChunk, numel - at);
      if (values(a, at, count) != values(b, at, count)) return false;
    }
    return true;
  }

  // Elements as they will be written.
  std::vector<std::byte> values(const NamedTensor& tensor, uint64_t first,
                                uint64_t count) const {
    const PlannedRun& run = tensor.runs.front();
    const Tensor& stored = checkpoint_.tensors()[run.tensor];
    std::vector<std::byte> bytes(
        static_cast<size_t>(count * size_of(stored.dtype)));
    checkpoint_.read(stored, run.first + first, count, bytes);
    DType from = stored.dtype;
    for (const std::optional<DType>& to : {rounding(tensor), dtype_}) {
      if (!to || !is_floating(from) || !can_cast(from, *to)) continue;
      std::vector<std::byte> next(static_cast<size_t>(count * size_of(*to)));
      CastCounts ignored;
      cast(from, bytes, *to, next, ignored);
      bytes = std::move(next);
      from = *to;
    }
    return bytes;
  }

  const Checkpoint& checkpoint_;
  const LoraPlan& plan_;
  std::optional<DType> dtype_;
  const StopToken* stop_;
};

}  // namespace

void add_configured_tie(const ConfigFile& config, Model& model) {
  const bool tied =
      config.tie_word_embeddings().value_or(config.ties_by_default());
  const std::string embedding = embedding_name(model);
  if (!tied || embedding.empty()) return;
  std::string head = head_name(model);
  const auto is_pair = [&](const auto& tie) {
    return (tie.first == head && tie.second == embedding) ||
           (tie.first == embedding && tie.second == head);
  };
  if (std::any_of(model.ties.begin(), model.ties.end(), is_pair)) return;
  if (head.empty()) {
    head = head_beside(embedding);
    NamedTensor copy = *model.find(embedding);
    copy.name = head;
    model.add(std::move(copy));
  }
  model.ties.emplace_back(head, embedding);
}

void settle_ties(const Checkpoint& checkpoint, const LoraPlan& plan,
                 std::optional<DType> dtype, const StopToken* stop,
                 ConfigFile& config, Model& model,
                 std::vector<std::string>& notes) {
  const TieSettler settler(checkpoint, plan, dtype, stop);
  const std::string embedding = embedding_name(model);
  const std::string head = head_name(model);
  const bool tied =
      config.tie_word_embeddings().value_or(config.ties_by_default());
  for (auto [alias, kept] : model.ties) {
    // transformers keeps the embedding and drops the head.
    if (alias == embedding) std::swap(alias, kept);
    if (!settler.equal(*model.find(alias), *model.find(kept))) {
      if (tied && alias == head) config.set_tie_word_embeddings(false);
      if (tied) {
        notes.push_back(
            escape(alias) + " and " + escape(kept) +
            " were one weight and differ now: both are written" +
            (alias == head ? ", and the config says tie_word_embeddings: false"
                           : ""));
      }
      continue;
    }
    if (!tied) continue;  // a loader asks for both
    model.remove(alias);
    notes.push_back(escape(alias) + " is " + escape(kept) +
                    " and is written once");
  }
  model.ties.clear();
  const NamedTensor* in = model.find(embedding);
  const NamedTensor* out = model.find(head);
  if (in == nullptr || out == nullptr || in->shape.empty() ||
      out->shape.empty() || in->shape[0] == out->shape[0]) {
    return;
  }
  throw Error(ErrorCode::Corrupt,
              escape(embedding) + " has " + count_of(in->shape[0], "row") +
                  ", and " + escape(head) + " has " +
                  std::to_string(out->shape[0]) +
                  ": one of them was resized without the other",
              {.tensor = head});
}

void settle_vocabulary(std::optional<uint64_t> tokenizer_size,
                       const Model& model, ConfigFile& config,
                       std::vector<std::string>& notes) {
  const NamedTensor* embedding = model.find(embedding_name(model));
  if (embedding == nullptr || embedding->shape.empty()) return;
  const uint64_t rows = embedding->shape[0];
  if (tokenizer_size && *tokenizer_size > rows) {
    throw Error(ErrorCode::Corrupt,
                "the tokenizer has " + std::to_string(*tokenizer_size) +
                    " ids, and this embedding has " + count_of(rows, "row") +
                    ": they are not of one model",
                {.tensor = embedding->name});
  }
  const auto said = config.vocab_size();
  if (!said || *said == rows) return;
  notes.push_back("the vocabulary has " + count_of(rows, "row") +
                  ", config.json said " + std::to_string(*said));
  config.set_vocab_size(rows);
  if (tokenizer_size && *tokenizer_size <= std::min(rows, *said) &&
      rows > *said) {
    notes.push_back("the tokenizer knows " + count_of(*tokenizer_size, "id") +
                    " of them: the tokens that were added are not in it");
  }
}

}  // namespace zckpt
