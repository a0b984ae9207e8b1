// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/source_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/text.h"
#include "lora/live_names.h"
#include "zckpt/dtype.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

// By their ends, the most common first.
constexpr std::array<std::string_view, 8> kEmbeddings{
    "embed_tokens.weight",    "wte.weight",
    "word_embeddings.weight", "embed_in.weight",
    "tok_embeddings.weight",  "shared.weight",
    "embedding.weight",       "embeddings.weight"};
constexpr std::array<std::string_view, 4> kHeads{
    "lm_head.weight", "embed_out.weight", "output.weight",
    "output_layer.weight"};

// What bitsandbytes keeps beside a weight, under the weight's own name.
bool is_quant_state(const std::string& name) {
  constexpr std::array<std::string_view, 5> kParts{
      ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax",
      ".weight.nested_quant_map", ".weight.quant_state."};
  return std::any_of(kParts.begin(), kParts.end(),
                     [&](std::string_view part) {
                       return name.find(part) != std::string::npos;
                     }) ||
         name.ends_with(".weight_format") || name.ends_with(".SCB");
}

class SourceReader {
 public:
  SourceReader(const Checkpoint& checkpoint, uint32_t first_tensor)
      : checkpoint_(checkpoint), first_tensor_(first_tensor) {
    for (const auto& [alias, kept] : checkpoint.facts().aliases) {
      kept_of_[alias] = kept;
    }
  }

  SourceModel read(std::vector<std::string>& notes) {
    for (const std::string& name : checkpoint_.facts().module_order) {
      if (parse_live_name(name) || is_quant_state(name)) continue;
      const std::string own = base_name(name);
      stripped_ = stripped_ || own != name;
      if (const auto alias = kept_of_.find(name); alias != kept_of_.end()) {
        const std::string kept = base_name(alias->second);
        if (kept != own) source_.model.ties.emplace_back(own, kept);
        continue;
      }
      add(own, checkpoint_.find(name));
    }
    if (stripped_) {
      notes.push_back("prefixes of the training run were taken off the names");
    }
    source_.partial = checkpoint_.facts().frozen_excluded;
    return std::move(source_);
  }

 private:
  void add(const std::string& own, const Tensor* tensor) {
    if (source_.model.find(own) != nullptr) {
      throw Error(ErrorCode::Corrupt,
                  "two tensors would get the name " + escape(own),
                  {.tensor = tensor == nullptr ? own : tensor->name});
    }
    // A quantised weight has another type, and often another shape.
    const bool quantized = tensor != nullptr && own.ends_with(".weight") &&
                           tensor->role == Role::Frozen &&
                           !is_floating(tensor->dtype);
    source_.quantized = source_.quantized || quantized;
    if (tensor == nullptr || quantized) {
      source_.missing.push_back(own);
      source_.model.add({.name = own, .change = std::nullopt});
      return;
    }
    const auto index =
        static_cast<uint32_t>(tensor - checkpoint_.tensors().data());
    NamedTensor named = whole_tensor(checkpoint_, index, own);
    named.runs.front().tensor += first_tensor_;
    source_.model.add(std::move(named));
  }

  const Checkpoint& checkpoint_;
  uint32_t first_tensor_;
  std::map<std::string, std::string> kept_of_;
  SourceModel source_;
  bool stripped_ = false;
};

template <typename Ends>
std::string find_by_end(const Model& model, const Ends& ends) {
  for (const std::string_view end : ends) {
    for (const NamedTensor& tensor : model.tensors()) {
      if (tensor.name == end || tensor.name.ends_with("." + std::string(end))) {
        return tensor.name;
      }
    }
  }
  return "";
}

bool is_vocabulary(const std::string& name) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  return std::any_of(kEmbeddings.begin(), kEmbeddings.end(), ends) ||
         std::any_of(kHeads.begin(), kHeads.end(), ends);
}

// Fused experts in the checkpoint stand for those of one layer in files.
std::string experts_path(const std::string& name) {
  for (const std::string_view end :
       {".experts.gate_up_proj", ".experts.down_proj"}) {
    if (name.ends_with(end)) {
      return name.substr(0, name.size() - end.size()) + ".experts.";
    }
  }
  return "";
}

class BaseFiller {
 public:
  BaseFiller(const Model& base, const std::string& folder, SourceModel& source)
      : base_(base), folder_(folder), source_(source) {}

  void fill(std::vector<std::string>& notes) {
    std::vector<std::string> foreign;
    for (const NamedTensor& tensor : source_.model.tensors()) {
      const NamedTensor* other = base_.find(tensor.name);
      if (tensor.runs.empty()) {
        add_missing(tensor.name, other);
      } else {
        if (other != nullptr) check_shape(tensor, *other);
        if (other == nullptr && !is_vocabulary(tensor.name)) {
          foreign.push_back(tensor.name);
        }
        filled_.add(tensor);
      }
    }
    if (source_.partial) {
      take_rest();
    } else {
      refuse_lacking();
    }
    source_.foreign = foreign;
    if (!foreign.empty()) {
      notes.push_back(count_of(foreign.size(), "weight") +
                      " of the checkpoint not known to the base model, "
                      "written under their own names: " +
                      escape(foreign.front()));
    }
    filled_.ties = source_.model.ties;
    source_.model = std::move(filled_);
  }

 private:
  [[noreturn]] void refuse(const std::string& message,
                           const std::string& name) const {
    throw Error(ErrorCode::Corrupt,
                message + escape(folder_) + "; is it another model?",
                {.tensor = name});
  }

  void add_missing(const std::string& name, const NamedTensor* other) {
    if (other != nullptr) {
      filled_.add(*other);
      return;
    }
    const std::string path = experts_path(name);
    if (path.empty()) {
      refuse(
          "the save left this weight out, and the nearest names in the base "
          "model are " +
              base_.nearest(name) + ", in ",
          name);
    }
    for (const NamedTensor& tensor : base_.tensors()) {
      if (tensor.name.starts_with(path) &&
          filled_.find(tensor.name) == nullptr) {
        filled_.add(tensor);
      }
    }
  }

  void check_shape(const NamedTensor& tensor, const NamedTensor& other) const {
    if (other.shape == tensor.shape || is_vocabulary(tensor.name)) return;
    refuse("this weight has another shape in the base model in ", tensor.name);
  }

  // All that the checkpoint does not name, in the base's order.
  void take_rest() {
    Model ordered;
    for (const NamedTensor& tensor : base_.tensors()) {
      const NamedTensor* own = filled_.find(tensor.name);
      ordered.add(own == nullptr ? tensor : *own);
    }
    for (const NamedTensor& tensor : filled_.tensors()) {
      if (ordered.find(tensor.name) == nullptr) ordered.add(tensor);
    }
    filled_ = std::move(ordered);
  }

  void refuse_lacking() const {
    for (const NamedTensor& tensor : base_.tensors()) {
      if (filled_.find(tensor.name) != nullptr || is_vocabulary(tensor.name) ||
          tensor.name.ends_with("rotary_emb.inv_freq")) {
        continue;
      }
      refuse("the checkpoint has no such weight, and the base model has, in ",
             tensor.name);
    }
  }

  const Model& base_;
  const std::string& folder_;
  SourceModel& source_;
  Model filled_;
};

}  // namespace

SourceModel read_source_model(const Checkpoint& checkpoint,
                              uint32_t first_tensor,
                              std::vector<std::string>& notes) {
  return SourceReader(checkpoint, first_tensor).read(notes);
}

void add_tied_copies(Model& model) {
  std::erase_if(model.ties, [&](const auto& tie) {
    const NamedTensor* kept = model.find(tie.second);
    if (kept == nullptr || model.find(tie.first) != nullptr) return true;
    NamedTensor copy = *kept;
    copy.name = tie.first;
    model.add(std::move(copy));
    return false;
  });
}

bool strip_module_prefix(const Model* base, SourceModel& source) {
  constexpr std::string_view kPrefix = "model.";
  const auto& tensors = source.model.tensors();
  const bool all = std::all_of(tensors.begin(), tensors.end(),
                               [&](const NamedTensor& tensor) {
                                 return tensor.name.starts_with(kPrefix);
                               });
  if (!all || tensors.empty()) return false;
  const auto in_base = [&](std::string_view name) {
    return base->find(name) != nullptr;
  };
  size_t as_they_are = 0;
  size_t stripped = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::string rest = tensor.name.substr(kPrefix.size());
    if (base != nullptr) {
      as_they_are += in_base(tensor.name) ? size_t{1} : 0;
      stripped += in_base(rest) ? size_t{1} : 0;
    } else {
      stripped += rest.starts_with(kPrefix) || rest.starts_with("lm_head.");
    }
  }
  if (stripped <= as_they_are) return false;
  const auto cut = [&](const std::string& name) {
    return name.substr(kPrefix.size());
  };
  Model model;
  for (const NamedTensor& tensor : tensors) {
    NamedTensor copy = tensor;
    copy.name = cut(copy.name);
    model.add(std::move(copy));
  }
  for (const auto& [alias, kept] : source.model.ties) {
    model.ties.emplace_back(cut(alias), cut(kept));
  }
  source.model = std::move(model);
  for (std::string& name : source.missing) name = cut(name);
  return true;
}

void fill_from_base(const Model& base, const std::string& base_folder,
                    SourceModel& source, std::vector<std::string>& notes) {
  BaseFiller(base, base_folder, source).fill(notes);
}

std::string embedding_name(const Model& model) {
  return find_by_end(model, kEmbeddings);
}

std::string head_name(const Model& model) { return find_by_end(model, kHeads); }

std::string head_beside(const std::string& embedding) {
  return embedding.ends_with("embed_in.weight") ? "embed_out.weight"
                                                : "lm_head.weight";
}

}  // namespace zckpt
