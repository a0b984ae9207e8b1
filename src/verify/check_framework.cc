// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "reader/checkpoint_data.h"
#include "reader/layout.h"
#include "reader/safetensors_file.h"
#include "reader/shard_reader.h"
#include "verify/checks.h"
#include "verify/resume_checks.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTrainerStateCap = uint64_t{1} << 28;

class FrameworkChecker {
 public:
  FrameworkChecker(const ShardSet& shards, Framework framework)
      : shards_(shards), framework_(framework), ranks_(world_size(shards)) {}

  std::vector<Finding> run() {
    switch (framework_) {
      case Framework::HfTrainer:
        check_tag_name();
        check_trainer_state();
        check_scheduler("scheduler.pt", Severity::Error);
        check_random_states("rng_state", ".pth", Severity::Error);
        break;
      case Framework::Accelerate:
        check_scheduler("scheduler.bin", Severity::Warning);
        check_random_states("random_states", ".pkl", Severity::Warning);
        break;
      case Framework::Lightning:
      case Framework::DeepSpeed:
      case Framework::Weights: break;
    }
    for (Finding& finding : check_placeholders(shards_)) {
      findings_.push_back(std::move(finding));
    }
    return std::move(findings_);
  }

 private:
  void report(std::string code, Severity severity, std::string message,
              std::string file) {
    findings_.push_back({.code = std::move(code),
                         .severity = severity,
                         .message = std::move(message),
                         .file = std::move(file)});
  }

  // Where --also brings other halves of the save, side files may lie there.
  std::string path(const std::string& name) const {
    std::error_code ignored;
    for (const std::string& folder : side_folders(shards_.where)) {
      const fs::path candidate = fs::path(folder) / name;
      if (fs::is_regular_file(candidate, ignored)) return candidate.string();
    }
    return (fs::path(shards_.where.folder) / name).string();
  }
  bool exists(const std::string& name) const {
    std::error_code ignored;
    return fs::is_regular_file(path(name), ignored);
  }

  // The Trainer refuses a folder in which nothing is named global_step*.
  void check_tag_name() {
    if (shards_.where.tag.starts_with("global_step")) return;
    report("latest-dangling", Severity::Error,
           "the Trainer looks for a tag folder named global_step*, this one "
           "is " +
               escape(shards_.where.tag),
           "latest");
  }

  void check_trainer_state() {
    const std::string name = "trainer_state.json";
    if (!exists(name)) {
      report("trainer-state-missing", Severity::Error,
             "expected trainer_state.json, which the Trainer reads first; "
             "found none",
             name);
      return;
    }
    const auto state = nlohmann::json::parse(
        read_text_file(path(name), kTrainerStateCap), nullptr,
        /*allow_exceptions=*/false);
    if (!state.is_object() || !state.contains("global_step") ||
        !state["global_step"].is_number_integer()) {
      report("trainer-state-invalid", Severity::Error,
             "expected a JSON object with the number global_step", name);
      return;
    }
    const auto step = state["global_step"].get<int64_t>();
    const ShardFile* model = shards_.leading_model();
    if (model != nullptr && model->model->global_steps &&
        *model->model->global_steps != step) {
      report("trainer-step-differs", Severity::Note,
             "the Trainer is at step " + std::to_string(step) +
                 ", DeepSpeed at " +
                 std::to_string(*model->model->global_steps) +
                 ": legitimate after skipped steps or a resume with reset",
             name);
    }
  }

  // Loaded only where the scheduler is not DeepSpeed's own.
  void check_scheduler(const std::string& name, Severity severity) {
    if (exists(name)) {
      check_opens(name, "container-damaged", severity);
      return;
    }
    const ShardFile* model = shards_.leading_model();
    if (model == nullptr || model->model->has_scheduler_config) return;
    report("scheduler-missing", severity,
           "expected " + name +
               ", the state of the learning-rate scheduler; found none (a "
               "save with save_only_model leaves it out)",
           name);
  }

  void check_random_states(const std::string& stem, const std::string& ending,
                           Severity damaged) {
    std::string missing;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      std::string name = stem;
      name.append("_").append(std::to_string(rank)).append(ending);
      // One process writes no number.
      if (ranks_ == 1 && framework_ == Framework::HfTrainer) {
        name = stem + ending;
      }
      if (exists(name)) {
        check_opens(name, "rng-damaged", damaged);
      } else {
        missing.append(missing.empty() ? "" : ", ").append(name);
      }
    }
    if (missing.empty()) return;
    report("rng-missing", Severity::Warning,
           "expected a random state of every rank; training goes on, but not "
           "as it would have: missing are " +
               missing,
           "");
  }

  void check_opens(const std::string& name, const std::string& code,
                   Severity severity) {
    std::optional<FileSource> source;
    try {
      source.emplace(path(name));
      TorchFile::open(*source);
    } catch (const Error& error) {
      report(code, severity, "it cannot be opened: " + error.message(), name);
    }
  }

  const ShardSet& shards_;
  Framework framework_;
  uint32_t ranks_;
  std::vector<Finding> findings_;
};

bool holds_nothing(const fs::path& path) {
  try {
    const FileSource source(path.string());
    const auto entries = read_safetensors_header(source).entries;
    return std::all_of(entries.begin(), entries.end(),
                       [](const auto& entry) { return entry.size_bytes == 0; });
  } catch (const Error&) {
    return false;  // not a file that a resume reads
  }
}

// Modules whose code runs commands, touches files or looks up more code: what
// picklescan, modelscan and fickling flag.
constexpr std::array<std::string_view, 24> kDangerousModules{
    "os",        "posix",    "nt",          "subprocess", "sys",    "socket",
    "shutil",    "runpy",    "pty",         "pdb",        "bdb",    "pip",
    "asyncio",   "ctypes",   "ssl",         "webbrowser", "urllib", "requests",
    "importlib", "commands", "cloudpickle", "pydoc",      "code",   "pickle"};
constexpr std::array<std::string_view, 9> kDangerousBuiltins{
    "eval",    "exec",     "compile",    "open", "__import__",
    "getattr", "execfile", "breakpoint", "input"};

constexpr std::array<std::string_view, 22> kKnownRoots{
    "torch",       "deepspeed", "numpy",    "collections", "builtins",
    "__builtin__", "_codecs",   "copy_reg", "copyreg",     "argparse",
    "pathlib",     "datetime",  "enum",     "functools",   "fractions",
    "decimal",     "uuid",      "types",    "random",      "logging",
    "operator",    "re"};

std::string_view root_of(std::string_view module) {
  return module.substr(0, module.find('.'));
}

template <typename Array>
bool contains(const Array& array, std::string_view text) {
  return std::find(array.begin(), array.end(), text) != array.end();
}

bool is_dangerous(std::string_view module, std::string_view name) {
  if (module == "builtins" || module == "__builtin__") {
    return contains(kDangerousBuiltins, name);
  }
  if (module == "operator" || module == "_operator") {
    return name == "attrgetter" || name == "itemgetter" ||
           name == "methodcaller" || name == "call";
  }
  // Both unpickle whatever they are given.
  if (module == "torch" || module == "torch.serialization") {
    return name == "load";
  }
  if (module == "torch.storage") return name == "_load_from_bytes";
  if (module == "io" || module == "_io") return name.starts_with("open");
  if (module == "functools") return name == "partial";
  return contains(kDangerousModules, root_of(module));
}

// What the reader makes values of; everything else stays as it is.
bool is_understood(std::string_view module, std::string_view name) {
  constexpr std::array<std::string_view, 9> kModules{"torch",
                                                     "torch._utils",
                                                     "torch.storage",
                                                     "torch.nn",
                                                     "torch.nn.parameter",
                                                     "torch._tensor",
                                                     "collections",
                                                     "_codecs",
                                                     "torch.serialization"};
  constexpr std::array<std::string_view, 5> kBuiltins{
      "set", "frozenset", "bytearray", "int", "getattr"};
  if (module == "builtins" || module == "__builtin__") {
    return contains(kBuiltins, name);
  }
  return contains(kModules, module) || name == "ZeroStageEnum" ||
         name == "fragment_address";
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

std::string_view prefix_of(bool bf16) { return bf16 ? "bf16_" : ""; }

// DeepSpeed before 0.6.2 knew no prefix.
bool knows_prefix(std::string_view version) {
  for (const std::string_view old :
       {"0.3.", "0.4.", "0.5.", "0.6.0", "0.6.1"}) {
    if (version.starts_with(old)) return false;
  }
  return !version.empty();
}

// How optimizer shards are named by the run that saved these, if its
// ds_config tells.
std::optional<std::string_view> configured_prefix(const ShardSet& shards) {
  const ShardFile* model = shards.leading_model();
  if (model == nullptr || !model->model->config_bf16 ||
      !knows_prefix(model->model->ds_version)) {
    return std::nullopt;
  }
  return prefix_of(*model->model->config_bf16);
}

// An optimizer shard that a run which looks for `prefix` does not find.
const ShardFile* other_prefix(const ShardSet& shards, std::string_view prefix) {
  const auto it = std::find_if(
      shards.files.begin(), shards.files.end(), [&](const ShardFile& file) {
        return file.name.kind == ShardKind::Optim && file.name.prefix != prefix;
      });
  return it == shards.files.end() ? nullptr : &*it;
}

}  // namespace

std::vector<Finding> check_placeholders(const ShardSet& shards) {
  std::vector<Finding> findings;
  for (const char* name : {"adapter_model.safetensors", "model.safetensors"}) {
    const fs::path path = fs::path(shards.where.folder) / name;
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored) || !holds_nothing(path)) continue;
    findings.push_back(
        {.code = "placeholder-weight",
         .severity = Severity::Warning,
         .message =
             "it holds no values (saved without gathering them); do not use "
             "it: the trained values are in the shards of " +
             escape(shards.where.tag) +
             (std::string_view(name).starts_with("adapter")
                  ? ". zckpt export-hf PATH --base DIR -o OUT writes the "
                    "merged "
                    "model out of them, extract-lora PATH -o OUT the adapter"
                  : ". zckpt merge PATH -o OUT gets them"),
         .file = name});
  }
  return findings;
}

std::vector<Finding> check_framework(const ShardSet& shards,
                                     Framework framework) {
  return FrameworkChecker(shards, framework).run();
}

namespace {

// What a resume unpickles: shards, the scheduler, random states.
struct Unpickled {
  std::string file;
  std::optional<uint32_t> rank;
  std::shared_ptr<const std::vector<std::string>> globals;
};

std::vector<Unpickled> unpickled_files(const ShardSet& shards) {
  std::vector<Unpickled> files;
  for (const ShardFile& file : shards.files) {
    if (!file.globals) continue;
    files.push_back({shards.sources->list()[file.source].name, file.name.rank,
                     file.globals});
  }
  for (const fs::path& path : side_files(shards.where)) {
    try {
      const FileSource source(path.string());
      const TorchFile file = TorchFile::open(source);
      files.push_back({relative_name(path.string(), shards.where.folder),
                       std::nullopt,
                       std::make_shared<const std::vector<std::string>>(
                           imported_names(file.pickle()))});
    } catch (const Error&) {
      continue;  // check_framework says whether it opens
    }
  }
  return files;
}

}  // namespace

std::vector<Finding> check_classes(const ShardSet& shards) {
  std::vector<Finding> findings;
  std::set<std::string> foreign;
  std::set<std::string> known;
  std::set<std::string> opaque;
  bool seen = false;
  for (const Unpickled& file : unpickled_files(shards)) {
    std::set<std::string> dangerous;
    for (const std::string& global : *file.globals) {
      const std::string_view text = global;
      const size_t space = text.find(' ');
      const std::string_view module = text.substr(0, space);
      const std::string_view name = text.substr(space + 1);
      const std::string dotted = escape(module) + "." + escape(name);
      if (is_dangerous(module, name)) {
        dangerous.insert(dotted);
        continue;
      }
      if (!contains(kKnownRoots, root_of(module))) {
        foreign.insert(dotted);
        continue;
      }
      if (!is_understood(module, name)) opaque.insert(dotted);
      if (root_of(module) == "deepspeed" || module.starts_with("numpy")) {
        known.insert(dotted);
      }
    }
    if (!dangerous.empty()) {
      findings.push_back(
          {.code = "pickle-dangerous",
           .severity = Severity::Error,
           .message = "unpickling this file would call " + join(dangerous) +
                      ", which runs code of its author; do not load it with "
                      "torch.load (zckpt itself calls nothing)",
           .file = file.file,
           .rank = file.rank});
    }
    seen = true;
  }
  if (!foreign.empty()) {
    findings.push_back(
        {.code = "class-needed",
         .severity = Severity::Warning,
         .message = "a resume imports these classes, so their packages must "
                    "be installed: " +
                    join(foreign)});
  }
  if (!known.empty() && seen) {
    const bool new_numpy = std::any_of(
        known.begin(), known.end(),
        [](const auto& name) { return name.starts_with("numpy._core"); });
    findings.push_back(
        {.code = "class-needed",
         .severity = Severity::Note,
         .message =
             "torch 2.6 and newer refuse these classes by default "
             "(weights_only), so DeepSpeed before 0.16 cannot load "
             "the files there" +
             std::string(new_numpy ? "; numpy._core needs numpy 2" : "") +
             ": " + join(known)});
  }
  if (!opaque.empty()) {
    findings.push_back(
        {.code = "pickle-opaque",
         .severity = Severity::Note,
         .message =
             "objects of these classes were not looked into: " + join(opaque)});
  }
  return findings;
}

std::vector<Finding> check_requested(const ShardSet& shards,
                                     const VerifyOptions& options) {
  std::vector<Finding> findings;
  const uint32_t saved = world_size(shards);
  const auto report = [&](std::string code, std::string message) {
    findings.push_back({.code = std::move(code),
                        .severity = Severity::Error,
                        .message = std::move(message)});
  };
  const bool any_optim =
      std::any_of(shards.files.begin(), shards.files.end(),
                  [](const ShardFile& file) { return file.optim.has_value(); });
  if (options.world_size && any_optim && *options.world_size != saved) {
    report("world-size-conflict",
           "saved by " + count_of(saved, "data-parallel rank") +
               ", the run has " + std::to_string(*options.world_size) +
               ": DeepSpeed loads weights but no optimizer states for another "
               "number of ranks");
  }
  const CheckpointFacts facts = facts_of(shards);
  if (options.stage && facts.stage && any_optim &&
      (*options.stage == 3) != (*facts.stage == 3)) {
    report("stage-conflict",
           "saved under ZeRO-" + std::to_string(*facts.stage) +
               ", the run uses ZeRO-" + std::to_string(*options.stage) +
               ": their shards have nothing in common");
  }
  std::optional<std::string_view> wanted = configured_prefix(shards);
  if (options.dtype) wanted = prefix_of(*options.dtype == DType::BF16);
  if (!wanted) return findings;
  if (const ShardFile* other = other_prefix(shards, *wanted)) {
    report("prefix-mixed",
           (options.dtype
                ? "a run in " + std::string(short_name(*options.dtype))
                : std::string("the run that saved these (see its ds_config)")) +
               " looks for optimizer shards named " + std::string(*wanted) +
               "zero_pp_rank_*; these are named " +
               std::string(other->name.prefix) + "zero_pp_rank_*");
  }
  return findings;
}

}  // namespace zckpt
