// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "lora/live_adapter.h"
#include "lora/values.h"
#include "merge/plan_files.h"
#include "merge/write.h"
#include "zckpt/error.h"
#include "zckpt/lora.h"

namespace zckpt {
namespace {

class Extractor {
 public:
  Extractor(const Checkpoint& checkpoint, const ExtractOptions& options,
            ExtractResult& result)
      : checkpoint_(checkpoint),
        options_(options),
        result_(result),
        adapter_(find_live_adapter(
            checkpoint, {options.adapter_name, options.adapter_config,
                         options.lora_alpha})) {}

  void plan() {
    for (const auto& [module, rank] : adapter_.ranks) add_embedding(module);
    add_others();
    if (!options_.write.dry_run) check_values();  // reads payloads
    Plan& plan = result_.written.plan;
    plan.dtype = options_.write.dtype;
    std::vector<NamedTensor> selected;
    const auto select = [&](const std::string& name, const Tensor* tensor) {
      const auto index =
          static_cast<uint32_t>(tensor - checkpoint_.tensors().data());
      selected.push_back(whole_tensor(checkpoint_, index, name));
    };
    for (const LivePart& part : adapter_.parts) {
      select(part.live.file_name, part.tensor);
    }
    for (const auto& [name, tensor] : extra_) select(name, tensor);
    // PEFT reads an adapter from one file.
    MergeOptions whole = options_.write;
    whole.max_shard_bytes = UINT64_MAX;
    plan_files(selected, whole, "adapter_model", plan);
    PlannedFile config{.name = kAdapterConfigName,
                       .header = std::move(adapter_.config_text)};
    config.size_bytes = config.header.size();
    plan.files.push_back(std::move(config));
    result_.adapter_name = adapter_.name;
    result_.config_from = adapter_.config_from;
    result_.modules = adapter_.ranks.size();
    result_.notes.insert(result_.notes.begin(), adapter_.notes.begin(),
                         adapter_.notes.end());
  }

 private:
  // PEFT saves the embedding beside the factors that were put on it.
  void add_embedding(const std::string& module) {
    const std::string name = module.substr(module.rfind('.') + 1);
    if (name != "embed_tokens" && name != "lm_head") return;
    const std::string end = module + ".base_layer.weight";
    for (const Tensor& tensor : checkpoint_.tensors()) {
      if (is_best(checkpoint_, tensor) &&
          peft_name(tensor.name).ends_with("." + end)) {
        extra_.push_back({std::string(kPeftPrefix) + end, &tensor});
        return;
      }
    }
    result_.notes.push_back(
        "PEFT would save the weight of " + escape(module) +
        " beside its factors; this save left it out: the base model must be "
        "the one of the run, with as many rows");
  }

  // Trained, but under no adapter's name: biases have a place in the file, and
  // PEFT saves them under their own names.
  void add_others() {
    for (const Tensor* tensor : adapter_.others) {
      const std::string_view name = peft_name(tensor->name);
      if (name.empty() || !name.ends_with(".bias")) {
        throw Error(ErrorCode::Unsupported,
                    "this weight was trained beside the adapter, and an "
                    "adapter file has no place for it (a value head, an "
                    "unwrapped module); merge --exclude-frozen writes all that "
                    "was trained",
                    {.tensor = tensor->name});
      }
      if (adapter_.config_from.empty()) {
        throw Error(ErrorCode::Invalid,
                    "biases were trained too; which of them a config would "
                    "have to say: give --adapter-config FILE",
                    {.tensor = tensor->name});
      }
      if (adapter_.config.bias == "none") {
        throw Error(ErrorCode::Corrupt,
                    "this bias was trained, and the config says bias: none",
                    {.file = adapter_.config_from, .tensor = tensor->name});
      }
      extra_.push_back({std::string(name), tensor});
    }
  }

  void check_values() {
    bool any_effect = false;
    for (const LivePart& part : adapter_.parts) {
      const ValueCensus census =
          take_census(checkpoint_, *part.tensor, options_.write.open.stop);
      any_effect = any_effect ||
                   (census.any &&
                    !begins_random(part.live.part, part.live.is_embedding));
      if (census.bad.nan + census.bad.inf == 0) continue;
      result_.written.findings.push_back(
          {.code = census.bad.nan != 0 ? "nan" : "inf",
           .severity = Severity::Warning,
           .message = std::to_string(census.bad.nan + census.bad.inf) + " of " +
                      count_of(part.tensor->numel, "element") +
                      " are NaN or infinite",
           .tensor = part.tensor->name});
    }
    if (!any_effect) {
      result_.notes.push_back(
          "every factor that begins as zero still is: the adapter has no "
          "effect (nothing was trained yet)");
    }
  }

  const Checkpoint& checkpoint_;
  const ExtractOptions& options_;
  ExtractResult& result_;
  LiveAdapter adapter_;
  // What PEFT saves of the base model beside the adapter, by file name.
  std::vector<std::pair<std::string, const Tensor*>> extra_;
};

}  // namespace

ExtractResult extract_lora(const std::string& path,
                           const ExtractOptions& options) {
  MergeOptions opening = options.write;
  opening.exclude_frozen = true;  // the base is no part of an adapter
  CheckedCheckpoint checked = open_checked(path, opening);
  ExtractResult result;
  result.written = begin_result(checked, options.write);
  // Remarks on the base model's names.
  std::erase_if(result.written.findings, [](const Finding& finding) {
    return finding.severity == Severity::Note;
  });
  Extractor(*checked.checkpoint, options, result).plan();
  write_plan(*checked.checkpoint, options.write, nullptr, result.written);
  return result;
}

}  // namespace zckpt
