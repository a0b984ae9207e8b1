// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/apply_adapter.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/cast.h"
#include "base/text.h"
#include "lora/factors.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

std::string text_of(const std::vector<uint64_t>& shape) {
  std::string text;
  for (const uint64_t size : shape) {
    text += (text.empty() ? "[" : ", ") + std::to_string(size);
  }
  return text.empty() ? "[]" : text + "]";
}

// The tensors of one module.
struct Factors {
  const AdapterTensor* a = nullptr;
  const AdapterTensor* b = nullptr;
  const AdapterTensor* bias = nullptr;
  const AdapterTensor* magnitude = nullptr;
};

// A kind of weight that factors can be for. Which one a module is, shapes and
// the config tell; a new kind is a row and, in lora_changes, its arithmetic.
struct Kind {
  LoraKind kind;
  bool of_embedding;  // factors are called lora_embedding_A and _B
};

constexpr Kind kKinds[] = {
    {LoraKind::Linear, false},
    {LoraKind::Conv1D, false},
    {LoraKind::Embedding, true},
};

class Applier {
 public:
  Applier(const Adapter& adapter, const AdapterPlace& place, Model& model,
          LoraPlan& plan)
      : adapter_(adapter), place_(place), model_(model), plan_(plan) {}

  void run(std::vector<std::string>& notes) {
    check_fit(adapter_, place_, model_, notes);
    // What is replaced comes first: an embedding that was resized brings the
    // base that its factors are for.
    for (const AdapterTensor& tensor : adapter_.tensors) {
      if (tensor.part == AdapterPart::Replacement) replace(tensor);
    }
    std::map<std::string, Factors> modules;
    for (const AdapterTensor& tensor : adapter_.tensors) {
      Factors& module = modules[tensor.target];
      switch (tensor.part) {
        case AdapterPart::A: set(module.a, tensor); break;
        case AdapterPart::B: set(module.b, tensor); break;
        case AdapterPart::BiasOfB: set(module.bias, tensor); break;
        case AdapterPart::Magnitude: set(module.magnitude, tensor); break;
        case AdapterPart::Tokens: replace_rows(tensor); break;
        default: break;
      }
    }
    for (const auto& [module, factors] : modules) {
      if (factors.a != nullptr || factors.b != nullptr ||
          factors.bias != nullptr || factors.magnitude != nullptr) {
        add_factors(module, factors);
      }
    }
  }

 private:
  [[noreturn]] void refuse(const AdapterTensor& tensor,
                           const std::string& message,
                           ErrorCode code = ErrorCode::Corrupt) const {
    const Tensor& stored = adapter_.stored(tensor);
    throw Error(code, message, {.file = adapter_.label, .tensor = stored.name});
  }

  void set(const AdapterTensor*& slot, const AdapterTensor& tensor) const {
    if (slot != nullptr) {
      refuse(tensor, "the adapter has this part of the module twice");
    }
    slot = &tensor;
  }

  // check_fit has found it.
  NamedTensor& weight_of(const AdapterTensor& tensor) const {
    return *find_weight(tensor, place_, model_);
  }

  uint32_t number(const AdapterTensor& tensor) const {
    return place_.first_tensor + tensor.tensor;
  }

  // A weight is replaced once, and by nobody after it was changed.
  void refuse_changed(const AdapterTensor& tensor,
                      const NamedTensor& weight) const {
    const auto other = model_.replaced_by.find(weight.name);
    if (!weight.change && other == model_.replaced_by.end()) return;
    refuse(tensor,
           "another adapter has already changed " + escape(weight.name) +
               ", which this one replaces",
           ErrorCode::Conflict);
  }

  void replace(const AdapterTensor& tensor) {
    if (adapter_.weight != 1 && !tensor.of_base) {
      refuse(tensor,
             "a weight that is replaced cannot be scaled: the adapter's weight "
             "must be 1",
             ErrorCode::Unsupported);
    }
    const Tensor& stored = adapter_.stored(tensor);
    NamedTensor* weight = &weight_of(tensor);
    const bool grown = weight->shape.size() == 2 && stored.shape.size() == 2 &&
                       weight->shape[1] == stored.shape[1] &&
                       is_vocabulary(weight->name);
    if (weight->shape != stored.shape && !grown) {
      refuse(tensor, "its shape is " + text_of(stored.shape) + ", that of " +
                         escape(weight->name) + " in the base model " +
                         text_of(weight->shape));
    }
    if (grown && stored.shape[0] < weight->shape[0]) {
      refuse(tensor, "it has " + count_of(stored.shape[0], "row") + ", " +
                         escape(weight->name) + " in the base model has " +
                         std::to_string(weight->shape[0]) +
                         ": a vocabulary is never cut");
    }
    const std::string name = weight->name;
    for (const std::string& each : tensor.of_base
                                       ? model_.tied_with(name)
                                       : std::vector<std::string>{name}) {
      // A side that the adapter itself replaces is not taken along.
      if (each != name && model_.replaced_by.contains(each)) continue;
      NamedTensor& target = *model_.find(each);
      if (each == name) refuse_changed(tensor, target);
      const DType base = target.dtype;
      const Role role = target.role;
      target = named(tensor, each);
      target.role = role == Role::Buffer ? role : target.role;
      keep_rounding(target, base);
      if (each == name) model_.replaced_by[each] = adapter_.label;
    }
  }

  // peft holds every weight in the base's dtype.
  void keep_rounding(NamedTensor& target, DType base) {
    if (plan_.math != LoraMath::Peft || target.dtype == base ||
        !is_floating(target.dtype)) {
      return;
    }
    begin_change(target, base);
  }

  static bool is_vocabulary(const std::string& name) {
    return name.ends_with("embed_tokens.weight") ||
           name.ends_with("lm_head.weight") || name.ends_with("wte.weight") ||
           name.ends_with("word_embeddings.weight") ||
           name.ends_with("embed_in.weight") ||
           name.ends_with("embed_out.weight") ||
           name.ends_with("tok_embeddings.weight") ||
           name.ends_with("output.weight");
  }

  NamedTensor named(const AdapterTensor& tensor, std::string name) const {
    const Tensor& stored = adapter_.stored(tensor);
    return {.name = std::move(name),
            .role = Role::Master,
            .dtype = stored.dtype,
            .shape = stored.shape,
            .runs = {{.tensor = number(tensor), .numel = stored.numel}},
            .change = std::nullopt};
  }

  void replace_rows(const AdapterTensor& tensor) {
    const Tensor& stored = adapter_.stored(tensor);
    NamedTensor& weight = weight_of(tensor);
    // check_adapter_config has held them against the config.
    const std::vector<uint64_t>& rows =
        *adapter_.config.tokens_of(tensor.target);
    if (stored.shape.size() != 2 || weight.shape.size() != 2 ||
        stored.shape[1] != weight.shape[1] || stored.shape[0] != rows.size()) {
      refuse(tensor, "its shape is " + text_of(stored.shape) + ", for " +
                         count_of(rows.size(), "row") + " of " +
                         escape(weight.name) + " " + text_of(weight.shape));
    }
    if (adapter_.weight != 1) {
      refuse(tensor,
             "rows that are replaced cannot be scaled: the adapter's weight "
             "must be 1",
             ErrorCode::Unsupported);
    }
    // PEFT ties the adapters of tied embeddings.
    for (const std::string& name : model_.tied_with(weight.name)) {
      if (name != weight.name && has_tokens(name)) continue;
      splice(tensor, rows, *model_.find(name));
    }
  }

  bool has_tokens(const std::string& weight) const {
    return std::any_of(adapter_.tensors.begin(), adapter_.tensors.end(),
                       [&](const AdapterTensor& tensor) {
                         return tensor.part == AdapterPart::Tokens &&
                                tensor.target + ".weight" == weight;
                       });
  }

  void splice(const AdapterTensor& tensor, const std::vector<uint64_t>& rows,
              NamedTensor& weight) {
    if (weight.change || weight.runs.size() != 1) {
      refuse(tensor,
             "rows of " + escape(weight.name) +
                 " are replaced, and something else changes it too",
             ErrorCode::Unsupported);
    }
    const uint64_t cols = weight.shape[1];
    std::map<uint64_t, uint64_t> from;  // row of the weight -> row given
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] >= weight.shape[0] || !from.emplace(rows[i], i).second) {
        refuse(tensor,
               "trainable_token_indices lists row " + std::to_string(rows[i]) +
                   " of " + escape(weight.name) +
                   (rows[i] >= weight.shape[0]
                        ? ", which has " + std::to_string(weight.shape[0])
                        : " twice"));
      }
    }
    const PlannedRun whole = weight.runs.front();
    std::vector<PlannedRun> runs;
    uint64_t next = 0;
    const auto keep = [&](uint64_t end) {
      if (end == next) return;
      runs.push_back({.tensor = whole.tensor,
                      .first = whole.first + next * cols,
                      .numel = (end - next) * cols});
    };
    for (const auto& [row, given] : from) {
      keep(row);
      runs.push_back(
          {.tensor = number(tensor), .first = given * cols, .numel = cols});
      next = row + 1;
    }
    keep(weight.shape[0]);
    weight.runs = std::move(runs);
    if (plan_.math == LoraMath::Peft &&
        adapter_.stored(tensor).dtype != weight.dtype) {
      begin_change(weight, weight.dtype);
    }
  }

  LoraChange& begin_change(NamedTensor& weight, DType base) {
    if (!weight.change) {
      weight.change = static_cast<uint32_t>(plan_.changes.size());
      uint64_t cols = 1;
      for (size_t i = 1; i < weight.shape.size(); ++i) cols *= weight.shape[i];
      plan_.changes.push_back(
          {.name = weight.name,
           .base = base,
           .rows = weight.shape.empty() ? 1 : weight.shape[0],
           .cols = cols,
           .runs = weight.runs,
           .terms = {}});
    }
    return plan_.changes[*weight.change];
  }

  void add_factors(const std::string& module, const Factors& factors) {
    if (factors.a == nullptr || factors.b == nullptr) {
      const AdapterTensor& there = factors.a != nullptr   ? *factors.a
                                   : factors.b != nullptr ? *factors.b
                                   : factors.bias != nullptr
                                       ? *factors.bias
                                       : *factors.magnitude;
      refuse(there, std::string("its counterpart lora_") +
                        (factors.a == nullptr ? "A" : "B") + " is not here");
    }
    const AdapterTensor& a = *factors.a;
    const AdapterTensor& b = *factors.b;
    const auto& left = adapter_.stored(a).shape;
    const auto& right = adapter_.stored(b).shape;
    for (const AdapterTensor* part : {&a, &b}) {
      const Tensor& stored = adapter_.stored(*part);
      if (stored.shape.size() != 2) {
        refuse(*part,
               "its shape is " + text_of(stored.shape) +
                   ": factors of other modules than linear ones and embeddings "
                   "are not merged yet",
               ErrorCode::Unsupported);
      }
      if (stored.dtype == DType::F64 || !is_floating(stored.dtype) ||
          !can_cast(stored.dtype, DType::F32)) {
        refuse(*part,
               "factors of the type " + std::string(short_name(stored.dtype)) +
                   " are not merged",
               ErrorCode::Unsupported);
      }
    }
    const uint64_t rank = left[0];
    if (right[1] != rank || a.is_embedding != b.is_embedding) {
      refuse(a, "lora_A " + text_of(left) + " and lora_B " + text_of(right) +
                    " of this module do not fit each other");
    }
    NamedTensor& weight = weight_of(a);
    LoraTerm term{.kind = kind_of(a, left, right, weight),
                  .a = number(a),
                  .b = number(b),
                  .rank = rank,
                  .scale = adapter_.config.scale_of(module) * adapter_.weight};
    if (factors.magnitude != nullptr) {
      add_magnitude(*factors.magnitude, right[0], weight, term);
    }
    check_weight(a, weight);
    begin_change(weight, weight.dtype).terms.push_back(term);
    if (factors.bias != nullptr) add_bias(*factors.bias, right[0], term.scale);
  }

  void check_weight(const AdapterTensor& a, const NamedTensor& weight) const {
    if (!is_floating(weight.dtype) || !can_cast(weight.dtype, DType::F32)) {
      refuse(a,
             "the base weight " + escape(weight.name) + " is of the type " +
                 std::string(short_name(weight.dtype)) +
                 ": a quantised base cannot be merged into; give the model in "
                 "16 bits with --base",
             ErrorCode::Unsupported);
    }
    if (weight.dtype == DType::F64 && plan_.math == LoraMath::Peft) {
      refuse(a, "--lora-math peft knows no float64 base",
             ErrorCode::Unsupported);
    }
    if (weight.runs.size() != 1) {
      refuse(a,
             "rows of " + escape(weight.name) +
                 " are replaced, and something else changes it too",
             ErrorCode::Unsupported);
    }
  }

  // transformers' names of Conv1D layers.
  static bool is_conv1d_name(const std::string& module) {
    const std::string last = module.substr(module.rfind('.') + 1);
    return last == "c_attn" || last == "c_proj" || last == "c_fc" ||
           last == "q_attn";
  }

  // A is rank x in, B is out x rank; of embeddings, "in" is the vocabulary. The
  // config's fan_in_fan_out speaks of the module that PEFT wrapped last, so it
  // is no more than a hint.
  LoraKind kind_of(const AdapterTensor& a, const std::vector<uint64_t>& left,
                   const std::vector<uint64_t>& right,
                   const NamedTensor& weight) const {
    const uint64_t in = left[1];
    const uint64_t out = right[0];
    const bool said = adapter_.config.fan_in_fan_out;
    const bool is_conv1d = place_.has_conv1d && is_conv1d_name(a.target);
    std::vector<LoraKind> fits;
    for (const Kind& kind : kKinds) {
      if (kind.of_embedding != a.is_embedding) continue;
      const std::vector<uint64_t> shape = is_transposed(kind.kind)
                                              ? std::vector{in, out}
                                              : std::vector{out, in};
      const bool known_other = place_.has_conv1d && !kind.of_embedding &&
                               (kind.kind == LoraKind::Conv1D) != is_conv1d;
      const bool unheard_of =
          kind.kind == LoraKind::Conv1D && !place_.has_conv1d && !said;
      if (weight.shape == shape && !known_other && !unheard_of) {
        fits.push_back(kind.kind);
      }
    }
    if (fits.size() == 1) return fits.front();
    if (fits.size() == 2) {
      refuse(a,
             "its weight is square, the config says fan_in_fan_out, which "
             "speaks of one module of the model, and whether this one is a "
             "Conv1D is not known for this type of model",
             ErrorCode::Unsupported);
    }
    refuse(a, "its factors are for a weight of " +
                  text_of(a.is_embedding || is_conv1d ? std::vector{in, out}
                                                      : std::vector{out, in}) +
                  ", " + escape(weight.name) + " in the base model is " +
                  text_of(weight.shape));
  }

  void add_magnitude(const AdapterTensor& magnitude, uint64_t outputs,
                     const NamedTensor& weight, LoraTerm& term) const {
    const Tensor& stored = adapter_.stored(magnitude);
    if (stored.numel != outputs || !can_cast(stored.dtype, DType::F32)) {
      refuse(magnitude, "its shape is " + text_of(stored.shape) + ", for " +
                            count_of(outputs, "output") + " of " +
                            escape(weight.name));
    }
    if (adapter_.weight != 1) {
      refuse(magnitude,
             "an adapter with DoRA cannot be scaled: its weight must be 1",
             ErrorCode::Unsupported);
    }
    term.magnitude = number(magnitude);
  }

  void add_bias(const AdapterTensor& bias, uint64_t outputs, double scale) {
    const Tensor& stored = adapter_.stored(bias);
    NamedTensor& target = weight_of(bias);
    if (stored.numel != outputs || target.shape != stored.shape) {
      refuse(bias, "its shape is " + text_of(stored.shape) + ", that of " +
                       escape(target.name) + " in the base model " +
                       text_of(target.shape));
    }
    begin_change(target, target.dtype)
        .terms.push_back({.kind = LoraKind::Bias,
                          .b = number(bias),
                          .rank = 1,
                          .scale = scale});
  }

  const Adapter& adapter_;
  const AdapterPlace& place_;
  Model& model_;
  LoraPlan& plan_;
};

}  // namespace

void apply_adapter(const Adapter& adapter, const AdapterPlace& place,
                   Model& model, LoraPlan& plan,
                   std::vector<std::string>& notes) {
  Applier(adapter, place, model, plan).run(notes);
}

}  // namespace zckpt
