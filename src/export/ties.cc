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
    uint64_t numel = 0;
    for (const PlannedRun& run : a.runs) numel += run.numel;
    for (uint64_t at = 0; at < numel; at += kChunk) {
      throw_if_stopped(stop_);
      const uint64_t count = std::min(kChunk, numel - at);
      if (values(a, at, count) != values(b, at, count)) return false;
    }
    return true;
  }

  // Elements [first, first + count) as they will be written.
  std::vector<std::byte> values(const NamedTensor& tensor, uint64_t first,
                                uint64_t count) const {
    std::vector<std::byte> all;
    uint64_t begin = 0;  // of the run, in the tensor
    for (const PlannedRun& run : tensor.runs) {
      const uint64_t from = std::max(first, begin);
      const uint64_t to = std::min(first + count, begin + run.numel);
      if (from < to) {
        const auto part = values_of_run({.tensor = run.tensor,
                                         .first = run.first + (from - begin),
                                         .numel = to - from},
                                        rounding(tensor));
        all.insert(all.end(), part.begin(), part.end());
      }
      begin += run.numel;
    }
    return all;
  }

  std::vector<std::byte> values_of_run(
      const PlannedRun& run, const std::optional<DType>& rounding) const {
    const Tensor& stored = checkpoint_.tensors()[run.tensor];
    DType from = stored.dtype;
    std::vector<std::byte> bytes(
        static_cast<size_t>(run.numel * size_of(from)));
    checkpoint_.read(stored, run.first, run.numel, bytes);
    for (const std::optional<DType>& to : {rounding, dtype_}) {
      if (!to || !is_floating(from) || !can_cast(from, *to)) continue;
      std::vector<std::byte> next(
          static_cast<size_t>(run.numel * size_of(*to)));
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

// Names of one weight: the one that is kept first, then the others.
using TiedNames = std::vector<std::string>;

// transformers keeps an encoder-decoder's shared weight, else the embedding.
std::vector<TiedNames> groups_of(const Model& model,
                                 const std::string& embedding) {
  std::vector<TiedNames> groups;
  for (const auto& tie : model.ties) {
    const std::string& alias = tie.first;
    const std::string& kept = tie.second;
    const auto known =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
          return std::find(group.begin(), group.end(), kept) != group.end() ||
                 std::find(group.begin(), group.end(), alias) != group.end();
        });
    TiedNames& group =
        known == groups.end() ? groups.emplace_back(TiedNames{kept}) : *known;
    for (const std::string& name : {kept, alias}) {
      if (std::find(group.begin(), group.end(), name) == group.end()) {
        group.push_back(name);
      }
    }
  }
  const auto rank = [&](const std::string& name) {
    return name.ends_with("shared.weight") ? 0 : name == embedding ? 1 : 2;
  };
  for (TiedNames& group : groups) {
    std::stable_sort(group.begin(), group.end(),
                     [&](const std::string& a, const std::string& b) {
                       return rank(a) < rank(b);
                     });
  }
  return groups;
}

void refuse_other_ties(const TiedNames& group, const ConfigFile& config) {
  if (group.size() == 2 && !config.is_encoder_decoder()) return;
  throw Error(ErrorCode::Unsupported,
              "this weight and " + escape(group[1]) +
                  " are one in this kind of model, the merge changes one side "
                  "only, and no config says that for more than an embedding "
                  "and a head of a decoder",
              {.tensor = group.front()});
}

}  // namespace

void add_configured_tie(const ConfigFile& config, Model& model) {
  const std::string embedding = embedding_name(model);
  std::string head = head_name(model);
  // A missing key means what the model's class does; that there is no head is
  // evidence of a tie.
  const bool tied = config.tie_word_embeddings().value_or(
      head.empty() && config.has_language_head());
  if (!tied || embedding.empty()) return;
  for (const auto& [alias, kept] : model.ties) {
    const auto names = model.tied_with(alias);
    if (std::find(names.begin(), names.end(), embedding) != names.end()) return;
  }
  if (head.empty()) {
    if (!config.has_language_head()) return;
    head = head_beside(embedding);
    NamedTensor copy = *model.find(embedding);
    copy.name = head;
    model.add(std::move(copy));
  }
  model.ties.emplace_back(head, embedding);
}

void refuse_unknown_tie(const ConfigFile& config, const LoraPlan& plan,
                        const Model& model) {
  const NamedTensor* embedding = model.find(embedding_name(model));
  if (embedding == nullptr || !head_name(model).empty() ||
      !config.has_some_head() ||
      config.tie_word_embeddings() == std::optional(false)) {
    return;
  }
  const bool changed =
      (embedding->change && !plan.changes[*embedding->change].terms.empty()) ||
      embedding->runs.size() != 1 ||
      model.replaced_by.contains(embedding->name);
  if (!changed) return;
  throw Error(ErrorCode::Unsupported,
              "the adapter changes this embedding, the files hold no output "
              "head of a known name, and the two may be one weight: which "
              "cannot be told",
              {.tensor = embedding->name});
}

void settle_ties(const Checkpoint& checkpoint, const LoraPlan& plan,
                 std::optional<DType> dtype, const StopToken* stop,
                 ConfigFile& config, Model& model,
                 std::vector<std::string>& notes) {
  const TieSettler settler(checkpoint, plan, dtype, stop);
  const std::string head = head_name(model);
  // Loaders follow the config, or, without a word in it, the class, as the run
  // did whose ties these are.
  const bool tied = config.tie_word_embeddings().value_or(true);
  std::vector<std::pair<std::string, std::string>> dropped;
  std::vector<TiedNames> groups;
  // Without a tie in the config a loader asks for all names.
  if (tied) groups = groups_of(model, embedding_name(model));
  for (const TiedNames& group : groups) {
    const std::string& kept = group.front();
    const bool equal =
        std::all_of(group.begin() + 1, group.end(), [&](const auto& name) {
          return settler.equal(*model.find(name), *model.find(kept));
        });
    if (!equal) {
      refuse_other_ties(group, config);
      const bool has_head =
          std::find(group.begin(), group.end(), head) != group.end();
      if (has_head) config.set_tie_word_embeddings(false);
      notes.push_back(
          escape(group[1]) + " and " + escape(kept) +
          " are tied by the config and differ: both are written" +
          (has_head ? ", and the config says tie_word_embeddings: false" : ""));
      continue;
    }
    for (size_t i = 1; i < group.size(); ++i) {
      model.remove(group[i]);
      dropped.emplace_back(group[i], kept);
    }
  }
  model.ties = std::move(dropped);
}

bool vocabulary_sides_agree(const Model& model) {
  const NamedTensor* in = model.find(embedding_name(model));
  const NamedTensor* out = model.find(head_name(model));
  return in == nullptr || out == nullptr || in->shape.empty() ||
         out->shape.empty() || in->shape[0] == out->shape[0];
}

void check_vocabulary_sides(const Model& model) {
  if (vocabulary_sides_agree(model)) return;
  const NamedTensor& in = *model.find(embedding_name(model));
  const NamedTensor& out = *model.find(head_name(model));
  throw Error(ErrorCode::Corrupt,
              escape(in.name) + " has " + count_of(in.shape[0], "row") +
                  ", and " + escape(out.name) + " has " +
                  std::to_string(out.shape[0]) +
                  ": one of them was resized without the other",
              {.tensor = out.name});
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
