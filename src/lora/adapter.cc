// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "lora/adapter.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "lora/config_checks.h"
#include "lora/values.h"
#include "reader/checkpoint_data.h"
#include "reader/discovery.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

bool has_shards(const std::string& folder) {
  try {
    const auto found = find_checkpoints(folder, {});
    return std::any_of(found.begin(), found.end(), [](const auto& where) {
      return where.framework != Framework::Weights && where.problem.empty();
    });
  } catch (const Error&) {
    return false;
  }
}

// What to do about an adapter that was saved without its values.
std::string way_out(const std::string& folder, const std::string& base) {
  const std::string end =
      " --base " + (base.empty() ? "DIR" : escape(base)) + " -o OUT";
  if (has_shards(folder)) {
    return ": it was saved ungathered under ZeRO-3, and the trained values are "
           "in the shards beside it. Give the checkpoint instead: zckpt "
           "export-hf " +
           escape(folder) + end;
  }
  return ": it was saved ungathered under ZeRO-3; the trained values are in "
         "the shards of a checkpoint (global_step*) of the same run: zckpt "
         "export-hf CHECKPOINT" +
         end;
}

void refuse_unknown(const AdapterConfig& config, const std::string& file) {
  if (config.unknown.empty()) return;
  std::string keys;
  for (const std::string& key : config.unknown) {
    keys += (keys.empty() ? "" : ", ") + escape(key);
  }
  throw Error(ErrorCode::Unsupported,
              "the config sets what cannot be merged yet: " + keys,
              {.file = file});
}

class FolderReader {
 public:
  FolderReader(const std::string& folder, const std::string& base)
      : folder_(folder), base_(base) {}

  Adapter read() {
    const std::string file = (fs::path(folder_) / kAdapterConfigName).string();
    AdapterConfig config = read_config(file);
    const auto data = open_adapter_weights(folder_);
    if (data == nullptr) {
      throw Error(ErrorCode::Invalid,
                  "there is no adapter_model.safetensors and no "
                  "adapter_model.bin here",
                  {.file = folder_});
    }
    Adapter adapter{.label = folder_,
                    .checkpoint = Checkpoint(data),
                    .config = std::move(config),
                    .config_file = file};
    refuse_empty(adapter.checkpoint);
    collect(adapter);
    check_copies(adapter);
    check(adapter);
    return adapter;
  }

 private:
  AdapterConfig read_config(const std::string& file) const {
    std::error_code ignored;
    if (!fs::exists(file, ignored)) {
      throw Error(
          ErrorCode::Invalid,
          std::string("this is no adapter: there is no ") + kAdapterConfigName,
          {.file = folder_});
    }
    AdapterConfig config =
        parse_adapter_config(read_text_file(file, kAdapterConfigCap), file);
    refuse_unknown(config, file);
    return config;
  }

  std::string weights_file(const Checkpoint& checkpoint) const {
    return (fs::path(folder_) / checkpoint.sources().front().name).string();
  }

  void refuse_empty(const Checkpoint& checkpoint) const {
    const auto tensors = checkpoint.tensors();
    const auto empty =
        std::count_if(tensors.begin(), tensors.end(),
                      [](const Tensor& tensor) { return tensor.numel == 0; });
    if (!tensors.empty() && empty == 0) return;
    throw Error(ErrorCode::Corrupt,
                (tensors.empty()
                     ? "the adapter holds no tensors"
                     : std::to_string(empty) + " of its " +
                           count_of(tensors.size(), "tensor") + " are empty") +
                    way_out(folder_, base_),
                {.file = weights_file(checkpoint)});
  }

  void collect(Adapter& adapter) {
    const auto tensors = adapter.checkpoint.tensors();
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      const auto name = parse_file_name(tensors[i].name);
      if (!name) {
        throw Error(ErrorCode::Corrupt,
                    "this is no name of an adapter's tensor: expected "
                    "base_model.model.…",
                    {.file = weights_file(adapter.checkpoint),
                     .tensor = tensors[i].name});
      }
      if (name->part == AdapterPart::Ignored) continue;
      AdapterTensor tensor{.part = name->part,
                           .is_embedding = name->is_embedding,
                           .target = name->target,
                           .tensor = i};
      if (tensor.part == AdapterPart::Replacement) {
        tensor.of_base = !name->is_saved_module &&
                         !is_saved(adapter.config, tensor.target) &&
                         !tensor.target.ends_with(".bias");
      }
      adapter.tensors.push_back(std::move(tensor));
    }
  }

  static bool is_saved(const AdapterConfig& config, const std::string& weight) {
    const std::string module = weight.substr(0, weight.rfind('.'));
    return std::any_of(config.modules_to_save.begin(),
                       config.modules_to_save.end(),
                       [&](const std::string& name) {
                         return module == name || module.ends_with("." + name);
                       });
  }

  // A grown vocabulary is saved twice, as X.weight and as
  // X.modules_to_save.weight. Equal ones count once.
  void check_copies(Adapter& adapter) const {
    std::map<std::string, uint32_t> seen;
    std::erase_if(adapter.tensors, [&](const AdapterTensor& tensor) {
      if (tensor.part != AdapterPart::Replacement) return false;
      const auto [known, fresh] = seen.emplace(tensor.target, tensor.tensor);
      if (fresh) return false;
      if (!same(adapter.checkpoint, known->second, tensor.tensor)) {
        throw Error(ErrorCode::Corrupt,
                    "two tensors would replace " + escape(tensor.target) +
                        ", and they differ",
                    {.file = weights_file(adapter.checkpoint),
                     .tensor = adapter.stored(tensor).name});
      }
      return true;
    });
  }

  static bool same(const Checkpoint& checkpoint, uint32_t first,
                   uint32_t second) {
    constexpr uint64_t kChunk = uint64_t{1} << 18;
    const Tensor& a = checkpoint.tensors()[first];
    const Tensor& b = checkpoint.tensors()[second];
    if (a.shape != b.shape || a.dtype != b.dtype) return false;
    for (uint64_t at = 0; at < a.numel; at += kChunk) {
      const uint64_t count = std::min(kChunk, a.numel - at);
      std::vector<std::byte> left(
          static_cast<size_t>(count * size_of(a.dtype)));
      std::vector<std::byte> right(left.size());
      checkpoint.read(a, at, count, left);
      checkpoint.read(b, at, count, right);
      if (left != right) return false;
    }
    return true;
  }

  void check(Adapter& adapter) const {
    AdapterTensors facts;
    for (const AdapterTensor& tensor : adapter.tensors) {
      const Tensor& stored = adapter.stored(tensor);
      switch (tensor.part) {
        case AdapterPart::A:
          facts.ranks[tensor.target] =
              stored.shape.empty() ? 0 : stored.shape[0];
          break;
        case AdapterPart::Magnitude: facts.magnitudes = true; break;
        case AdapterPart::BiasOfB: facts.biases_of_b = true; break;
        case AdapterPart::Tokens:
          facts.token_rows[tensor.target] =
              stored.shape.empty() ? 0 : stored.shape[0];
          break;
        default: break;
      }
    }
    try {
      check_adapter_config(adapter.config, adapter.config_file, facts,
                           adapter.notes);
    } catch (Error& error) {
      throw error.in_file(adapter.config_file);
    }
  }

  const std::string& folder_;
  const std::string& base_;
};

}  // namespace

Adapter open_adapter(const std::string& folder,
                     const std::string& base_folder) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) {
    throw Error(ErrorCode::Io, "no such folder", {.file = folder});
  }
  return FolderReader(folder, base_folder).read();
}

Adapter live_adapter(const Checkpoint& checkpoint,
                     const LiveAdapterOptions& options) {
  LiveAdapter found = find_live_adapter(checkpoint, options);
  refuse_unknown(found.config, found.config_from);
  Adapter adapter{.label = found.name,
                  .checkpoint = checkpoint,
                  .config = std::move(found.config),
                  .config_file = found.config_from,
                  .is_live = true,
                  .notes = std::move(found.notes)};
  for (const LivePart& part : found.parts) {
    AdapterTensor tensor{.part = part.live.part,
                         .is_embedding = part.live.is_embedding,
                         .target = part.live.module,
                         .tensor = static_cast<uint32_t>(
                             part.tensor - checkpoint.tensors().data())};
    if (tensor.part == AdapterPart::SavedModule) {
      tensor.part = AdapterPart::Replacement;
      tensor.target =
          part.live.file_name.substr(kPeftPrefix.size());  // X.weight
    }
    adapter.tensors.push_back(std::move(tensor));
  }
  return adapter;
}

void check_values(Adapter& adapter, const StopToken* stop) {
  bool any_effect = false;
  for (const AdapterTensor& tensor : adapter.tensors) {
    const Tensor& stored = adapter.stored(tensor);
    const ValueCensus census = take_census(adapter.checkpoint, stored, stop);
    any_effect =
        any_effect ||
        (census.any && !begins_random(tensor.part, tensor.is_embedding));
    const uint64_t bad = census.bad.nan + census.bad.inf;
    if (bad == 0) continue;
    throw Error(ErrorCode::Corrupt,
                std::to_string(bad) + " of " +
                    count_of(stored.numel, "element") + " of the adapter " +
                    (bad == 1 ? "is" : "are") +
                    " NaN or infinite, the first is element " +
                    std::to_string(*census.bad.first),
                {.file = adapter.label, .tensor = stored.name});
  }
  if (!any_effect) {
    adapter.notes.push_back(
        "the adapter " + escape(adapter.label) +
        " has no effect: every factor that begins as zero still is (nothing "
        "was trained)");
  }
}

}  // namespace zckpt
