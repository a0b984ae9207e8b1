// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/export.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include "base/file.h"
#include "base/parallel.h"
#include "base/text.h"
#include "export/choose_adapters.h"
#include "export/config_file.h"
#include "export/hub_names.h"
#include "export/side_files.h"
#include "export/source_model.h"
#include "export/ties.h"
#include "lora/apply_adapter.h"
#include "lora/lora_changes.h"
#include "merge/write.h"
#include "reader/joined.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConfigCap = uint64_t{1} << 26;
// Types of models whose linear layers are transformers' Conv1D, by the names
// that apply_adapter knows.
const std::vector<std::string_view> kConv1DTypes{
    "gpt2", "openai-gpt",  "imagegpt", "decision_transformer",
    "clvp", "clvp_decoder"};

class Exporter {
 public:
  Exporter(const std::string& path, const Checkpoint& main,
           const ExportOptions& options, ExportResult& result)
      : path_(path),
        main_(main),
        options_(options),
        result_(result),
        joined_(main),
        is_weights_(main.facts().framework == "weights") {}

  void run() {
    adapters_ = choose_adapters(path_, main_, options_, result_.written);
    for (const Adapter& adapter : adapters_) add_notes(adapter.notes);
    open_base();
    read_config();
    build_model();
    apply_adapters();
    add_side_files();
    const Checkpoint joined = joined_.finish();
    settle(joined);
    write(joined);
  }

 private:
  // ---- what is read ----

  // The base model's folder: as given, else what an adapter's config names.
  void open_base() {
    if (is_weights_) {
      if (!options_.base.empty()) {
        throw Error(ErrorCode::Invalid,
                    "PATH holds a whole model already: --base is for "
                    "checkpoints");
      }
      result_.base = main_.facts().folder;
      return;
    }
    std::string folder = options_.base;
    for (const Adapter& adapter : adapters_) {
      std::error_code ignored;
      const std::string& named = adapter.config.base_model;
      if (folder.empty() && !named.empty() &&
          fs::exists(fs::path(named) / "config.json", ignored)) {
        folder = named;
        note("the base model is " + escape(named) +
             ", as adapter_config.json says");
      }
    }
    if (folder.empty()) return;
    base_ = open_weights_beside(folder);
    if (base_ == nullptr) {
      throw Error(ErrorCode::Invalid,
                  "there are no weights of a model in this folder",
                  {.file = folder});
    }
    result_.base = folder;
  }

  // Where side files come from, the nearest to the training first.
  std::vector<std::string> folders() const {
    std::vector<std::string> list;
    if (!is_weights_) list.push_back(main_.facts().folder);
    for (size_t i = adapters_.size(); i-- > 0;) {
      if (!adapters_[i].is_live) list.push_back(adapters_[i].label);
    }
    if (!result_.base.empty()) list.push_back(result_.base);
    return list;
  }

  void read_config() {
    result_.config_from = config_folder(folders());
    if (result_.config_from.empty()) {
      throw Error(ErrorCode::Invalid,
                  "there is no config.json: give the model that the run began "
                  "with: " +
                      command());
    }
    const std::string file =
        (fs::path(result_.config_from) / "config.json").string();
    config_.emplace(read_text_file(file, kConfigCap), file);
    if (config_->is_quantized()) {
      throw Error(ErrorCode::Unsupported,
                  "this model is quantised (quantization_config), and merging "
                  "needs the model in 16 bits: give that one" +
                      std::string(is_weights_ ? " as PATH" : ": " + command()),
                  {.file = file});
    }
  }

  // The command that would do, with the name to fill in.
  std::string command() const {
    std::string named;
    for (const Adapter& adapter : adapters_) {
      if (!adapter.config.base_model.empty()) named = adapter.config.base_model;
    }
    return "zckpt export-hf " + escape(path_) + " --base DIR -o OUT" +
           (named.empty() ? "" : " (DIR: a folder with " + escape(named) + ")");
  }

  // ---- the model ----

  void build_model() {
    SourceModel source = read_source_model(main_, 0, result_.notes);
    std::optional<Model> base;
    if (base_ != nullptr) {
      const Checkpoint checkpoint(base_);
      std::vector<std::string> ignored;
      base =
          read_source_model(checkpoint, joined_.add(checkpoint), ignored).model;
    }
    std::function<bool(const std::string&)> in_files;
    if (base) {
      in_files = [&](const std::string& name) {
        return base->find(name) != nullptr;
      };
    }
    if (!is_weights_) {
      // The one may be what hides the other.
      convert_to_hub_names(config_->model_type(), in_files, source.model,
                           result_.notes);
      if (strip_module_prefix(base ? &*base : nullptr, source)) {
        note("the prefix model. was taken off the names");
        convert_to_hub_names(config_->model_type(), in_files, source.model,
                             result_.notes);
      }
    }
    if (base) {
      sides_agree_ = vocabulary_sides_agree(*base);
      fill_from_base(*base, result_.base, source, result_.notes);
      refuse_foreign(source);
    } else {
      refuse_missing(source);
      sides_agree_ = vocabulary_sides_agree(source.model);
    }
    add_tied_copies(source.model);
    add_configured_tie(*config_, source.model);
    model_ = std::move(source.model);
    name_other_base();
  }

  // The base's config does not describe a model with other weights, such as a
  // classifier's.
  void refuse_foreign(const SourceModel& source) const {
    if (source.foreign.empty() || result_.config_from != result_.base) return;
    throw Error(ErrorCode::Invalid,
                "the run's model has this weight and the base model has not, "
                "so the base's config.json is not that of the run (a "
                "classifier or a reward model has another architecture): put "
                "the run's config.json into " +
                    escape(main_.facts().folder),
                {.tensor = source.foreign.front()});
  }

  void refuse_missing(const SourceModel& source) const {
    if (source.missing.empty() && !source.partial) return;
    const std::string what = source.missing.empty()
                                 ? "the frozen weights"
                                 : count_of(source.missing.size(), "weight");
    throw Error(
        ErrorCode::Invalid,
        (source.quantized ? "the save holds " + what + " quantised"
                          : "the save left out " + what) +
            ". Give the model that the run began with: " + command(),
        {.tensor = source.missing.empty() ? "" : source.missing.front()});
  }

  // An adapter on another model than its own may fit and be wrong.
  void name_other_base() {
    const auto last = [](const std::string& path) {
      return fs::path(path).lexically_normal().filename().string();
    };
    for (const Adapter& adapter : adapters_) {
      const std::string& named = adapter.config.base_model;
      if (named.empty() || result_.base.empty()) continue;
      if (last(named) == last(result_.base)) continue;
      note("the adapter's config names " + escape(named) +
           " as its base model, and " + escape(result_.base) + " was given");
    }
  }

  void apply_adapters() {
    plan_.math = options_.math;
    const auto convert = [&](const std::string& name) {
      return hub_name(config_->model_type(), name);
    };
    for (const Adapter& adapter : adapters_) {
      const AdapterPlace place{
          .first_tensor = adapter.is_live ? 0 : joined_.add(adapter.checkpoint),
          .convert = convert,
          .has_conv1d = config_->is_or_contains(kConv1DTypes)};
      apply_adapter(adapter, place, model_, plan_, result_.notes);
      result_.adapters.push_back({.label = adapter.label,
                                  .weight = adapter.weight,
                                  .tensors = adapter.tensors.size()});
    }
    refuse_unknown_tie(*config_, plan_, model_);
    refuse_original_base();
    for (const NamedTensor& tensor : model_.tensors()) {
      if (!tensor.runs.empty()) continue;
      throw Error(ErrorCode::Internal, "a weight without values",
                  {.tensor = tensor.name});
    }
  }

  // A live adapter whose run changed its base is right on the checkpoint's own.
  void refuse_original_base() const {
    for (const Adapter& adapter : adapters_) {
      if (!adapter.is_live || !adapter.config.changes_base()) continue;
      for (const LoraChange& change : plan_.changes) {
        if (change.terms.empty() ||
            change.runs.front().tensor < main_.tensors().size()) {
          continue;
        }
        throw Error(ErrorCode::Unsupported,
                    "the run changed its base model at the start "
                    "(init_lora_weights: " +
                        escape(adapter.config.init) +
                        "), and this save left the changed weights out: the "
                        "original ones are not what the adapter is for. Export "
                        "a save that holds them",
                    {.tensor = change.name});
      }
    }
  }

  // ---- the folder ----

  void add_side_files() {
    result_.side_files =
        choose_side_files(folders(), config_->has_remote_code(), result_.notes);
    for (const SideFile& file : result_.side_files) {
      const std::string path = (fs::path(file.from) / file.name).string();
      const uint64_t size = FileSource(path).size();
      PlannedFile planned{.name = file.name, .size_bytes = size};
      planned.copy_of = joined_.add_file(path, size);
      copies_.push_back(std::move(planned));
    }
    if (config_->architectures().empty()) take_architectures();
  }

  void take_architectures() {
    for (const std::string& folder : folders()) {
      const std::string path = (fs::path(folder) / "config.json").string();
      std::error_code ignored;
      if (folder == result_.config_from || !fs::exists(path, ignored)) continue;
      const auto names =
          ConfigFile(read_text_file(path, kConfigCap), path).architectures();
      if (names.empty()) continue;
      config_->set_architectures(names);
      return;
    }
    note("config.json names no architectures: some loaders (vLLM) need them");
  }

  // The folder that the tokenizer came from.
  std::string tokenizer_folder() const {
    for (const SideFile& file : result_.side_files) {
      if (file.name.starts_with("tokenizer") ||
          file.name.starts_with("vocab")) {
        return file.from;
      }
    }
    return "";
  }

  // The dtype of most elements.
  std::optional<DType> common_dtype() const {
    std::map<DType, uint64_t> sizes;
    for (const NamedTensor& tensor : model_.tensors()) {
      if (!is_floating(tensor.dtype)) continue;
      for (const PlannedRun& run : tensor.runs) {
        sizes[tensor.dtype] += run.numel;
      }
    }
    std::optional<DType> common;
    for (const auto& [dtype, size] : sizes) {
      if (!common || size > sizes[*common]) common = dtype;
    }
    return common;
  }

  void settle(const Checkpoint& joined) {
    Plan& plan = result_.written.plan;
    plan.dtype = options_.write.dtype;
    if (options_.auto_dtype) {
      plan.dtype = config_->dtype();
      if (!plan.dtype) plan.dtype = main_.facts().dtype;
      if (!plan.dtype) plan.dtype = common_dtype();
    }
    settle_ties(joined, plan_, plan.dtype, options_.write.open.stop, *config_,
                model_, result_.notes);
    if (sides_agree_) check_vocabulary_sides(model_);
    const std::string tokenizer = tokenizer_folder();
    settle_vocabulary(
        tokenizer.empty() ? std::nullopt : tokenizer_size(tokenizer), model_,
        *config_, result_.notes);
    const std::optional<DType> written =
        plan.dtype ? plan.dtype : common_dtype();
    if (written && config_->dtype() != written) config_->set_dtype(*written);
    result_.config_changes = config_->changes();

    MergeOptions writing = options_.write;
    writing.dtype = plan.dtype;
    // Loaders know ties from the config, so that safetensors do not list them,
    // as save_pretrained's do not; its .bin files hold both names.
    if (writing.format == WeightFormat::Bin) plan.aliases = model_.ties;
    plan_files(model_.tensors(), writing, model_stem(writing.format), plan);
    plan.aliases = model_.ties;  // for the report
    PlannedFile config{.name = "config.json", .header = config_->text()};
    config.size_bytes = config.header.size();
    plan.files.push_back(std::move(config));
    plan.files.insert(plan.files.end(), copies_.begin(), copies_.end());
  }

  void write(const Checkpoint& joined) {
    MergeResult& written = result_.written;
    written.sources.assign(joined.sources().begin(), joined.sources().end());
    MergeOptions writing = options_.write;
    writing.dtype = written.plan.dtype;
    LoraResources resources{
        .threads = resolve_threads(options_.write.open.threads),
        .memory_bytes = options_.write.memory_bytes / 2,
        .stop = options_.write.open.stop};
    writing.memory_bytes -= resources.memory_bytes;
    LoraChanges changes(joined, plan_, resources);
    if (!writing.dry_run) changes.prepare();
    write_plan(joined, writing, &changes, written);
    if (writing.dry_run) return;
    result_.lora = changes.report();
    for (const LoraReport& report : result_.lora) {
      if (report.nonfinite == 0) continue;
      written.findings.push_back(
          {.code = "nan",
           .severity = Severity::Warning,
           .message = count_of(report.nonfinite, "element") +
                      " are NaN or infinite, by the base model or by a "
                      "magnitude over a norm of zero",
           .tensor = report.name});
    }
  }

  void note(std::string text) { result_.notes.push_back(std::move(text)); }
  void add_notes(const std::vector<std::string>& notes) {
    result_.notes.insert(result_.notes.end(), notes.begin(), notes.end());
  }

  const std::string& path_;
  const Checkpoint& main_;
  const ExportOptions& options_;
  ExportResult& result_;
  Joined joined_;
  const bool is_weights_;
  std::vector<Adapter> adapters_;
  std::shared_ptr<const CheckpointData> base_;
  std::optional<ConfigFile> config_;
  Model model_;
  LoraPlan plan_;
  bool sides_agree_ = true;  // head and embedding, before anything is merged
  std::vector<PlannedFile> copies_;
};

}  // namespace

ExportResult export_hf(const std::string& path, const ExportOptions& options) {
  refuse_adapter_alone(path);
  MergeOptions opening = options.write;
  opening.exclude_frozen = true;  // they may come from the base
  CheckedCheckpoint checked = open_checked(path, opening);
  ExportResult result;
  result.written = begin_result(checked, options.write);
  if (has_live_adapter(*checked.checkpoint)) {
    // Remarks on the base model's names.
    std::erase_if(result.written.findings, [](const Finding& finding) {
      return finding.severity == Severity::Note;
    });
  }
  Exporter(path, *checked.checkpoint, options, result).run();
  return result;
}

}  // namespace zckpt
