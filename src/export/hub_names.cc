// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "export/hub_names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "base/text.h"

namespace zckpt {
namespace {

struct Rename {
  std::string_view memory;
  std::string_view hub;
};

// How the experts of a layer are called one by one: "<path>.N.<gate>.weight".
struct Experts {
  std::string_view gate;
  std::string_view up;
  std::string_view down;
};

struct Family {
  std::span<const std::string_view> model_types;
  std::span<const Rename> prefixes;  // the first that fits counts
  std::span<const Rename> infixes;
  std::optional<Experts> experts;
};

constexpr std::array<std::string_view, 3> kMixtralTypes{"mixtral", "minimax",
                                                        "minimax_m2"};
constexpr std::array kMixtralInfixes{Rename{".mlp.", ".block_sparse_moe."}};

constexpr std::array<std::string_view, 1> kPhiMoeTypes{"phimoe"};
constexpr std::array kPhiMoeInfixes{Rename{".mlp.", ".block_sparse_moe."},
                                    Rename{".router.weight", ".gate.weight"}};

constexpr std::array<std::string_view, 20> kQwenMoeTypes{
    "qwen2_moe",     "afmoe",       "deepseek_v2",  "deepseek_v3",
    "deepseek_v32",  "dots1",       "ernie4_5_moe", "glm4_moe",
    "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe",    "longcat_flash",
    "solar_open",    "qwen3_moe",   "qwen3_next",   "hunyuan_v1_moe",
    "flex_olmo",     "olmoe",       "exaone_moe",   "cohere2_moe"};

constexpr std::array<std::string_view, 2> kQwenVlTypes{"qwen2_vl",
                                                       "qwen2_5_vl"};
constexpr std::array kQwenVlPrefixes{Rename{"model.language_model.", "model."},
                                     Rename{"model.visual.", "visual."}};

constexpr std::array<std::string_view, 12> kLlavaTypes{
    "llava",    "aria",       "paligemma",        "aya_vision",
    "got_ocr2", "gemma3",     "internvl",         "vipllava",
    "mistral3", "llava_next", "llava_next_video", "llava_onevision"};
constexpr std::array kLlavaPrefixes{
    Rename{"model.language_model.", "language_model.model."},
    Rename{"lm_head.", "language_model.lm_head."},
    Rename{"model.vision_tower.", "vision_tower."},
    Rename{"model.multi_modal_projector.", "multi_modal_projector."},
    Rename{"model.image_newline", "image_newline"}};

constexpr Experts kMixtralExperts{"w1", "w3", "w2"};
constexpr Experts kQwenMoeExperts{"gate_proj", "up_proj", "down_proj"};

const std::array kFamilies{
    Family{kMixtralTypes, {}, kMixtralInfixes, kMixtralExperts},
    Family{kPhiMoeTypes, {}, kPhiMoeInfixes, kMixtralExperts},
    Family{kQwenMoeTypes, {}, {}, kQwenMoeExperts},
    Family{kQwenVlTypes, kQwenVlPrefixes, {}, std::nullopt},
    Family{kLlavaTypes, kLlavaPrefixes, {}, std::nullopt}};

const Family* family_of(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (std::find(family.model_types.begin(), family.model_types.end(),
                  model_type) != family.model_types.end()) {
      return &family;
    }
  }
  return nullptr;
}

std::string renamed(const Family& family, std::string name) {
  for (const Rename& rename : family.prefixes) {
    if (!name.starts_with(rename.memory)) continue;
    name.replace(0, rename.memory.size(), rename.hub);
    break;
  }
  for (const Rename& rename : family.infixes) {
    const size_t at = name.find(rename.memory);
    if (at != std::string::npos) {
      name.replace(at, rename.memory.size(), rename.hub);
    }
  }
  return name;
}

constexpr std::string_view kGateUp = ".experts.gate_up_proj";
constexpr std::string_view kDown = ".experts.down_proj";

bool is_fused(const NamedTensor& tensor) {
  return tensor.shape.size() == 3 &&
         (tensor.name.ends_with(kGateUp) || tensor.name.ends_with(kDown));
}

// One matrix out of a tensor of several: elements [first, first + numel).
NamedTensor part_of(const NamedTensor& whole, std::string name, uint64_t rows,
                    uint64_t first) {
  NamedTensor part = whole;
  part.name = std::move(name);
  part.shape = {rows, whole.shape[2]};
  part.runs.front().first += first;
  part.runs.front().numel = rows * whole.shape[2];
  return part;
}

// experts x 2 rows x cols, or experts x rows x cols, as one matrix each.
void take_apart(const NamedTensor& fused, const Experts& experts, Model& out) {
  const bool both = fused.name.ends_with(kGateUp);
  const size_t end = both ? kGateUp.size() : kDown.size();
  const std::string path =
      fused.name.substr(0, fused.name.size() - end) + ".experts.";
  const uint64_t rows = both ? fused.shape[1] / 2 : fused.shape[1];
  const uint64_t size = rows * fused.shape[2];
  uint64_t first = 0;
  for (uint64_t e = 0; e < fused.shape[0]; ++e) {
    const std::string expert = path + std::to_string(e) + ".";
    const auto add = [&](std::string_view which) {
      out.add(
          part_of(fused, expert + std::string(which) + ".weight", rows, first));
      first += size;
    };
    if (both) {
      add(experts.gate);
      add(experts.up);
    } else {
      add(experts.down);
    }
  }
}

Model converted(const Family& family, const Model& model) {
  Model out;
  for (const NamedTensor& tensor : model.tensors()) {
    NamedTensor copy = tensor;
    copy.name = renamed(family, tensor.name);
    const bool odd = copy.name.ends_with(kGateUp) && copy.shape.size() == 3 &&
                     copy.shape[1] % 2 != 0;
    if (family.experts && is_fused(copy) && copy.runs.size() == 1 && !odd) {
      take_apart(copy, *family.experts, out);
    } else {
      out.add(std::move(copy));
    }
  }
  for (const auto& [alias, kept] : model.ties) {
    out.ties.emplace_back(renamed(family, alias), renamed(family, kept));
  }
  return out;
}

}  // namespace

std::string hub_name(std::string_view model_type, const std::string& name) {
  const Family* family = family_of(model_type);
  return family == nullptr ? name : renamed(*family, name);
}

void convert_to_hub_names(
    std::string_view model_type,
    const std::function<bool(const std::string&)>& in_files, Model& model,
    std::vector<std::string>& notes) {
  const auto known = [&](const Model& candidate) {
    const auto& tensors = candidate.tensors();
    return std::count_if(
        tensors.begin(), tensors.end(),
        [&](const NamedTensor& tensor) { return in_files(tensor.name); });
  };
  const Family* family = family_of(model_type);
  if (family != nullptr) {
    Model other = converted(*family, model);
    if (!in_files || known(other) > known(model)) {
      bool changed = other.tensors().size() != model.tensors().size();
      for (size_t i = 0; !changed && i < model.tensors().size(); ++i) {
        changed = other.tensors()[i].name != model.tensors()[i].name;
      }
      if (changed) {
        notes.push_back("names in memory were turned into those of " +
                        escape(model_type) + " files");
      }
      model = std::move(other);
      return;
    }
  }
  // These have fused experts in their files too.
  if (model_type == "gpt_oss" || model_type == "llama4" ||
      model_type == "llama4_text") {
    return;
  }
  const auto& tensors = model.tensors();
  const auto fused = std::find_if(tensors.begin(), tensors.end(), is_fused);
  if (fused != tensors.end() && (!in_files || !in_files(fused->name))) {
    notes.push_back(
        "experts are fused, as transformers 5 keeps some models in memory (" +
        escape(fused->name) + "), and no rule is known for the model type " +
        escape(model_type) +
        ": written as they are, other loaders may not "
        "know these names");
  }
}

}  // namespace zckpt
