// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/discovery.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "reader/file_names.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLatestCap = 4096;
constexpr uint64_t kTrainerStateCap = uint64_t{1} << 28;

// The names in one folder.
struct Listing {
  std::set<std::string> files;
  std::set<std::string> folders;

  bool has_shards() const {
    return std::any_of(files.begin(), files.end(), [](const auto& name) {
      return classify(name).kind != ShardKind::Other;
    });
  }
  bool has_weights() const {
    return files.contains("model.safetensors") ||
           files.contains("model.safetensors.index.json") ||
           files.contains("pytorch_model.bin") ||
           files.contains("pytorch_model.bin.index.json");
  }
};

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

Listing list(const std::string& folder) {
  Listing listing;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;  // a dangling link is neither
    const std::string name = it->path().filename().string();
    if (it->is_directory(ignored)) {
      listing.folders.insert(name);
    } else {
      listing.files.insert(name);
    }
  }
  if (error) {
    throw Error(ErrorCode::Io, "cannot list: " + error.message(),
                {.file = folder});
  }
  return listing;
}

std::string join(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

// The number at the end of a tag such as global_step500.
std::optional<uint64_t> tag_number(const std::string& tag) {
  size_t digits = tag.size();
  while (digits > 0 &&
         std::isdigit(static_cast<unsigned char>(tag[digits - 1])) != 0) {
    --digits;
  }
  return parse_uint(std::string_view(tag).substr(digits));
}

std::optional<uint64_t> trainer_step(const std::string& folder) {
  try {
    const auto state = nlohmann::json::parse(
        read_text_file(join(folder, "trainer_state.json"), kTrainerStateCap),
        nullptr, /*allow_exceptions=*/false);
    if (!state.is_object()) return std::nullopt;
    const auto step = state.find("global_step");
    if (step == state.end() || !step->is_number_unsigned()) return std::nullopt;
    return step->get<uint64_t>();
  } catch (const Error&) {
    return std::nullopt;  // the step is a hint; verify looks at the file itself
  }
}

Framework guess_framework(const std::string& folder, const std::string& tag,
                          const Listing& listing) {
  fs::path path(folder);
  if (!path.has_filename()) path = path.parent_path();  // "checkpoint-5/"
  const std::string name = path.filename().string();
  if (listing.files.contains("trainer_state.json") ||
      number_after(name, "checkpoint-")) {
    return Framework::HfTrainer;
  }
  if (tag == "pytorch_model" || tag.starts_with("pytorch_model_") ||
      listing.files.contains("random_states_0.pkl")) {
    return Framework::Accelerate;
  }
  if (tag == "checkpoint" || name.ends_with(".ckpt")) {
    return Framework::Lightning;
  }
  return Framework::DeepSpeed;
}

// A tag is one folder name: "latest" is somebody else's text and must not lead
// out of its folder.
bool is_plain_name(const std::string& tag) {
  return !tag.empty() && tag != "." && tag != ".." &&
         tag.find('/') == std::string::npos &&
         tag.find('\0') == std::string::npos;
}

Finding folder_finding(std::string code, Severity severity,
                       std::string message) {
  return {.code = std::move(code),
          .severity = severity,
          .message = std::move(message),
          .file = "latest"};
}

// Says what a folder without a checkpoint looks like.
std::string describe_folder(const Listing& listing) {
  if (listing.files.contains("adapter_config.json")) {
    return "this is a PEFT adapter alone, not a checkpoint; its base model "
           "is needed to make weights of it";
  }
  if (listing.files.contains("latest_universal") ||
      listing.folders.contains("zero")) {
    return "this is a DeepSpeed universal checkpoint, which is not read yet";
  }
  for (const std::string& name : listing.files) {
    if (name.ends_with(".distcp")) {
      return "this is a torch distributed checkpoint (FSDP, .distcp), not one "
             "of DeepSpeed";
    }
  }
  for (const std::string& name : listing.folders) {
    if (number_after(name, "iter_")) {
      return "this looks like a Megatron-LM checkpoint (iter_N), not one of "
             "DeepSpeed";
    }
  }
  return "expected DeepSpeed shards (*_model_states.pt, *_optim_states.pt), a "
         "folder that holds them, or model*.safetensors; found none";
}

void require_folder(const std::string& also) {
  if (is_folder(also)) return;
  throw Error(ErrorCode::Io, "no such folder (--also)", {.file = also});
}

// The folder with shards of `tag` that --also DIR means, if there is one.
std::optional<std::string> find_also(const std::string& directory,
                                     const std::string& tag) {
  if (list(directory).has_shards()) return directory;
  std::string inner = join(directory, tag);
  if (is_folder(inner)) return inner;
  return std::nullopt;
}

class Finder {
 public:
  explicit Finder(const OpenOptions& options) : options_(options) {}

  std::vector<CheckpointPath> find(const std::string& path) {
    for (const std::string& also : options_.also) require_folder(also);
    const Listing listing = list(path);
    if (listing.has_shards()) {
      add_tag_folder(path);
    } else {
      add_all(path, listing);
    }
    for (size_t i = 0; i < options_.also.size(); ++i) {
      if (also_used_.contains(i) || found_.empty()) continue;
      resolve_also(options_.also[i], found_.front().tag);  // says what is wrong
    }
    std::stable_sort(found_.begin(), found_.end(),
                     [](const auto& a, const auto& b) {
                       return a.step.value_or(0) > b.step.value_or(0);
                     });
    return std::move(found_);
  }

 private:
  void add_all(const std::string& path, const Listing& listing) {
    std::optional<Error> problem;
    try {
      add_root(path, listing);
    } catch (const Error& error) {
      if (!options_.tag.empty()) throw;
      problem = error;
    }
    if (options_.tag.empty()) add_run(path, listing);
    if (!problem) return;
    // What is wrong with the run folder itself must not hide its checkpoints.
    const auto sound =
        std::find_if(found_.begin(), found_.end(),
                     [](const auto& found) { return found.problem.empty(); });
    if (sound == found_.end()) throw *problem;
    sound->notes.push_back("the folder above it makes no sense: " +
                           problem->message());
  }

  // PATH is itself the tag folder.
  void add_tag_folder(const std::string& path) {
    std::error_code error;
    const fs::path absolute = fs::absolute(path, error).lexically_normal();
    if (error) throw Error(ErrorCode::Io, error.message(), {.file = path});
    // "tag/" has an empty file name.
    const fs::path tag_path =
        absolute.has_filename() ? absolute : absolute.parent_path();
    const std::string tag = tag_path.filename().string();
    if (!options_.tag.empty() && options_.tag != tag) {
      throw Error(ErrorCode::Invalid,
                  "--tag " + escape(options_.tag) +
                      " was given, but the path is itself the tag folder " +
                      escape(tag),
                  {.file = path});
    }
    const std::string folder = tag_path.parent_path().string();
    add(folder, tag, list(folder));
  }

  // A folder that cannot be listed is not this checkpoint's business, unless
  // it turns out to be the one that `latest` names.
  static bool holds_shards(const std::string& folder) {
    try {
      return list(folder).has_shards();
    } catch (const Error&) {
      return false;
    }
  }

  // Tag folders directly inside `folder`, or weights.
  void add_root(const std::string& folder, const Listing& listing) {
    std::vector<std::string> tags;
    for (const std::string& name : listing.folders) {
      if (holds_shards(join(folder, name))) tags.push_back(name);
    }
    if (!options_.tag.empty()) {
      if (!is_plain_name(options_.tag) ||
          !listing.folders.contains(options_.tag)) {
        throw Error(ErrorCode::Invalid,
                    "there is no folder " + escape(options_.tag) + " here" +
                        name_tags(tags),
                    {.file = folder});
      }
      add(folder, options_.tag, listing);
      return;
    }
    const auto latest =
        listing.files.contains("latest") ? read_latest(folder) : std::nullopt;
    if (!tags.empty()) {
      add_tags(folder, listing, tags, latest);
    } else if (listing.has_weights()) {
      CheckpointPath weights;
      weights.folder = folder;
      weights.framework = Framework::Weights;
      weights.step = trainer_step(folder);
      found_.push_back(std::move(weights));
    } else if (latest) {
      throw Error(ErrorCode::Invalid,
                  "latest names the tag folder \"" + escape(*latest) +
                      "\", which is not here, and no other folder holds "
                      "shards",
                  {.file = folder});
    }
  }

  void add_tags(const std::string& folder, const Listing& listing,
                const std::vector<std::string>& tags,
                const std::optional<std::string>& latest) {
    const size_t first = found_.size();
    const bool latest_is_here =
        latest && std::find(tags.begin(), tags.end(), *latest) != tags.end();
    const bool numbered =
        std::all_of(tags.begin(), tags.end(),
                    [](const auto& tag) { return tag_number(tag); });
    if (tags.size() > 1 && !numbered && !latest_is_here) {
      Error error(ErrorCode::Invalid,
                  "several tag folders without a step number" +
                      name_tags(tags) + "; choose one with --tag",
                  {.file = folder});
      error.with_findings({{.code = "tag-ambiguous",
                            .severity = Severity::Error,
                            .message = error.message()}});
      throw error;
    }
    for (const std::string& tag : tags) {
      if (tags.size() > 1 && !numbered && tag != *latest) continue;
      add(folder, tag, listing);
    }
    std::sort(found_.begin() + static_cast<ptrdiff_t>(first), found_.end(),
              [](const auto& a, const auto& b) {
                return tag_number(a.tag).value_or(0) >
                       tag_number(b.tag).value_or(0);
              });
    describe_latest(found_[first], latest, latest_is_here);
  }

  static void describe_latest(CheckpointPath& taken,
                              const std::optional<std::string>& latest,
                              bool latest_is_here) {
    if (!latest) {
      taken.findings.push_back(folder_finding(
          "latest-missing", Severity::Warning,
          "expected this file to name the tag folder, found none; took " +
              escape(taken.tag) + ", the only or highest one"));
    } else if (!latest_is_here) {
      taken.findings.push_back(
          folder_finding("latest-dangling", Severity::Warning,
                         "it names \"" + escape(*latest) +
                             "\", which is not here or holds no shards; took " +
                             escape(taken.tag)));
    } else if (*latest != taken.tag) {
      taken.notes.push_back("took " + escape(taken.tag) +
                            ", the highest step; latest names " +
                            escape(*latest) + " (--tag chooses it)");
    }
  }

  // checkpoint-N and checkpoint_N folders and *.ckpt folders of a run.
  void add_run(const std::string& path, const Listing& listing) {
    for (const std::string& name : listing.folders) {
      std::optional<uint64_t> step = number_after(name, "checkpoint-");
      if (!step) step = number_after(name, "checkpoint_");
      if (!step && !name.ends_with(".ckpt")) continue;
      const std::string folder = join(path, name);
      const size_t before = found_.size();
      std::string problem;
      try {
        const Listing inner = list(folder);
        if (inner.has_shards()) continue;  // a tag folder of `path` itself
        add_root(folder, inner);
        if (found_.size() == before && step) problem = describe_folder(inner);
      } catch (const Error& error) {
        problem = error.message();
      }
      // The Trainer resumes from the highest checkpoint-N, whole or not, so
      // one that is cut short must be seen here too.
      if (!problem.empty()) {
        CheckpointPath broken;
        broken.folder = folder;
        broken.framework = Framework::HfTrainer;
        broken.problem = problem;
        found_.push_back(std::move(broken));
      }
      for (size_t i = before; i < found_.size(); ++i) {
        if (step) found_[i].step = step;
      }
    }
  }

  void add(const std::string& folder, const std::string& tag,
           const Listing& listing) {
    CheckpointPath path;
    path.folder = folder;
    path.tag = tag;
    path.tag_folder = join(folder, tag);
    path.framework = guess_framework(folder, tag, listing);
    path.step = trainer_step(folder);
    if (!path.step) path.step = tag_number(tag);
    for (size_t i = 0; i < options_.also.size(); ++i) {
      // Another disk need not hold every tag of a save_dir.
      const auto also = find_also(options_.also[i], tag);
      if (!also) continue;
      path.also.push_back(*also);
      also_used_.insert(i);
    }
    found_.push_back(std::move(path));
  }

  static std::string name_tags(const std::vector<std::string>& tags) {
    if (tags.empty()) return "";
    std::string text = "; there are:";
    for (const std::string& tag : tags) text += " " + escape(tag);
    return text;
  }

  const OpenOptions& options_;
  std::vector<CheckpointPath> found_;
  std::set<size_t> also_used_;  // indices into options_.also
};

}  // namespace

std::string_view to_string(Framework framework) {
  switch (framework) {
    case Framework::DeepSpeed: return "deepspeed";
    case Framework::HfTrainer: return "hf";
    case Framework::Accelerate: return "accelerate";
    case Framework::Lightning: return "lightning";
    case Framework::Weights: return "weights";
  }
  return "deepspeed";
}

std::optional<std::string> read_latest(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_regular_file(join(folder, "latest"), ignored)) {
    return std::nullopt;
  }
  std::string tag = read_text_file(join(folder, "latest"), kLatestCap);
  const auto is_space = [](char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0;
  };
  while (!tag.empty() && is_space(tag.back())) tag.pop_back();
  tag.erase(tag.begin(), std::find_if_not(tag.begin(), tag.end(), is_space));
  return tag;
}

std::vector<CheckpointPath> find_checkpoints(const std::string& path,
                                             const OpenOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw Error(ErrorCode::Io, "no such file or folder", {.file = path});
  }
  if (!fs::is_directory(status)) {
    throw Error(ErrorCode::Invalid,
                "this is a file; give the folder of the checkpoint",
                {.file = path});
  }
  std::vector<CheckpointPath> found = Finder(options).find(path);
  if (found.empty()) {
    throw Error(ErrorCode::Invalid, describe_folder(list(path)),
                {.file = path});
  }
  return found;
}

std::string resolve_also(const std::string& directory, const std::string& tag) {
  require_folder(directory);
  if (auto found = find_also(directory, tag)) return *std::move(found);
  throw Error(ErrorCode::Invalid,
              "--also expects a tag folder or the folder above it; there are "
              "no shards here and no folder " +
                  escape(tag),
              {.file = directory});
}

}  // namespace zckpt
