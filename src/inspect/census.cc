// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "inspect/census.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "reader/tensor_view.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

constexpr const char* kPadding = "padding";
constexpr const char* kOther = "other_state";

// A run of one storage that a tensor occupies.
struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t content = 0;
};

// Walks the tree of one shard and tells what each storage's bytes are for.
class ShardCensus {
 public:
  ShardCensus(const ShardFile& shard, const TorchFile& file)
      : shard_(shard), file_(file) {}

  // Bytes per content; padding inside vectors still counts as content.
  std::map<std::string, uint64_t> run() {
    if (shard_.name.kind == ShardKind::Optim) {
      name_optimizer_tensors();
    } else {
      name_model_tensors();
    }
    const Pickle& pickle = file_.pickle();
    for (NodeId id = 0; id < pickle.node_count(); ++id) {
      if (pickle.node(id).kind == NodeKind::Call) claim(Value(pickle, id));
    }
    add_up();
    bytes_["pickle"] += file_.pickle_bytes();
    // What the directory, local headers, descriptors, alignment and torch's
    // own small records take. ZipDirectory has checked that nothing else lies
    // between them.
    uint64_t storages = 0;
    for (const StorageRecord& record : file_.storages()) {
      storages += record.size_bytes;
    }
    bytes_["container"] += file_.file_bytes() - file_.pickle_bytes() - storages;
    return std::move(bytes_);
  }

 private:
  uint32_t content_index(const std::string& content) {
    const auto it = std::find(contents_.begin(), contents_.end(), content);
    if (it != contents_.end()) {
      return static_cast<uint32_t>(it - contents_.begin());
    }
    contents_.push_back(content);
    return static_cast<uint32_t>(contents_.size() - 1);
  }

  void name_tensor(const Value& value, const std::string& content) {
    if (value.is_call()) named_.try_emplace(value.id(), content_index(content));
  }

  void name_list(const std::optional<Value>& list, const std::string& content) {
    if (!list || !list->is_sequence()) return;
    for (size_t i = 0; i < list->size(); ++i) {
      if (list->item(i).is_sequence()) {
        name_list(list->item(i), content);
      } else {
        name_tensor(list->item(i), content);
      }
    }
  }

  // {0: {"step": .., "exp_avg": ..}, ...} or a list of such dicts.
  void name_states(const std::optional<Value>& state) {
    if (!state) return;
    const auto name_group = [&](const Value& group) {
      for (size_t i = 0; i < (group.is_mapping() ? group.size() : 0); ++i) {
        const auto name = group.key(i).string();
        if (name && *name != "step") {
          name_tensor(group.value(i), std::string(*name));
        }
      }
    };
    for (size_t i = 0; i < state->size(); ++i) {
      name_group(state->is_mapping() ? state->value(i) : state->item(i));
    }
  }

  void name_torch_optimizer(const std::optional<Value>& optimizer) {
    if (!optimizer) return;
    if (optimizer->is_mapping()) {
      name_states(optimizer->find("state"));
    } else {
      name_states(*optimizer);
    }
  }

  void name_optimizer_tensors() {
    const auto inner = file_.root().find("optimizer_state_dict");
    if (!inner) return;
    for (const char* masters :
         {"fp32_flat_groups", "single_partition_of_fp32_groups",
          "local_sub_partitions_of_fp32_groups"}) {
      name_list(inner->find(masters), "masters");
    }
    name_torch_optimizer(inner->find("optimizer_state_dict"));
    name_torch_optimizer(inner->find("base_optimizer_state"));
  }

  void name_model_tensors() {
    const Value root = file_.root();
    const auto fragments = root.find("frozen_param_fragments");
    for (size_t i = 0; fragments && i < fragments->size(); ++i) {
      name_tensor(fragments->value(i), "frozen");
    }
    std::set<std::string_view> trained;
    const auto shapes = root.find("param_shapes");
    const bool known = shapes && !shapes->is_none();
    const auto add_names = [&](const Value& group) {
      for (size_t i = 0; i < (group.is_mapping() ? group.size() : 0); ++i) {
        if (const auto name = group.key(i).string()) trained.insert(*name);
      }
    };
    if (known && shapes->is_mapping()) add_names(*shapes);
    for (size_t g = 0; known && shapes->is_sequence() && g < shapes->size();
         ++g) {
      add_names(shapes->item(g));
    }
    std::set<std::string_view> buffers;
    const auto names = root.find("buffer_names");
    for (size_t i = 0; names && names->is_sequence() && i < names->size();
         ++i) {
      if (const auto name = names->item(i).string()) buffers.insert(*name);
    }
    const auto module = root.find("module");
    for (size_t i = 0; module && i < module->size(); ++i) {
      const auto name = module->key(i).string();
      if (!name) continue;
      const char* content = buffers.contains(*name)             ? "buffers"
                            : !known || trained.contains(*name) ? "model"
                                                                : "frozen";
      name_tensor(module->value(i), content);
    }
    if (const auto optimizer = root.find("optimizer")) {
      name_list(optimizer->find("fp32_groups_flat"), "masters");
      name_list(optimizer->find("fp32_groups"), "masters");
      const auto state = optimizer->find("optimizer_state_dict");
      name_torch_optimizer(state ? state : optimizer);
    }
  }

  void claim(const Value& value) {
    const auto named = named_.find(value.id());
    std::optional<TensorView> view;
    try {
      view = view_of(file_, value);
    } catch (const Error&) {
      return;  // no plain tensor: its storage counts as other state
    }
    if (!view || view->numel == 0) return;
    uint64_t last = 0;  // element
    for (size_t d = 0; d < view->shape.size(); ++d) {
      last += (view->shape[d] - 1) * view->stride[d];
    }
    spans_[view->storage_offset].push_back(
        {.begin = view->offset,
         .end = view->offset + (last + 1) * size_of(view->dtype),
         .content =
             named == named_.end() ? content_index(kOther) : named->second});
  }

  // Each byte of a storage counts once: for the named tensor that begins
  // first, else for the unnamed ones, else as padding. A storage that no
  // tensor refers to belongs to something that was not interpreted.
  void add_up() {
    const uint32_t other = content_index(kOther);
    for (const StorageRecord& record : file_.storages()) {
      if (record.size_bytes == 0) continue;
      const auto it = spans_.find(record.offset);
      if (it == spans_.end()) {
        bytes_[kOther] += record.size_bytes;
        continue;
      }
      auto& spans = it->second;
      std::sort(spans.begin(), spans.end(), [&](const Span& a, const Span& b) {
        return std::tuple(a.begin, a.content == other, a.end) <
               std::tuple(b.begin, b.content == other, b.end);
      });
      uint64_t at = record.offset;
      for (const Span& span : spans) {
        if (span.end <= at) continue;
        if (span.begin > at) bytes_[kPadding] += span.begin - at;
        bytes_[contents_[span.content]] += span.end - std::max(at, span.begin);
        at = span.end;
      }
      bytes_[kPadding] += record.offset + record.size_bytes - at;
    }
  }

  const ShardFile& shard_;
  const TorchFile& file_;
  std::vector<std::string> contents_;
  std::unordered_map<NodeId, uint32_t> named_;
  std::unordered_map<uint64_t, std::vector<Span>> spans_;  // by storage
  std::map<std::string, uint64_t> bytes_;
};

bool is_vector_content(const std::string& content) {
  static const std::set<std::string> kOthers{"model",  "buffers", kOther,
                                             kPadding, "pickle",  "container"};
  return !kOthers.contains(content);
}

}  // namespace

std::string content_of(const Tensor& tensor) {
  switch (tensor.role) {
    case Role::Master: return "masters";
    case Role::Frozen: return "frozen";
    case Role::Buffer: return "buffers";
    case Role::Model: return "model";
    case Role::State: return tensor.state;
  }
  return kOther;
}

UsefulBytes::UsefulBytes(const Checkpoint& checkpoint) {
  const size_t sources = checkpoint.sources().size();
  for (const Tensor& tensor : checkpoint.tensors()) {
    auto& by_source = bytes_[content_of(tensor)];
    by_source.resize(sources);
    checkpoint.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
      by_source[extent.source] +=
          extent.count * extent.numel * size_of(tensor.dtype);
    });
  }
}

std::optional<uint64_t> UsefulBytes::of(uint32_t source,
                                        const std::string& content) const {
  const auto it = bytes_.find(content);
  if (it == bytes_.end()) return std::nullopt;
  return it->second[source];
}

FileBytes account_shard(const ShardFile& shard, const std::string& name,
                        const UsefulBytes* useful) {
  FileBytes result{
      .file = name, .rank = shard.name.rank, .bytes = shard.size_bytes};
  const FileSource source(shard.path);
  const TorchFile file = TorchFile::open(source);
  std::map<std::string, uint64_t> bytes = ShardCensus(shard, file).run();
  // Vectors hold padding inside: partition ends, alignment.
  for (auto& [content, count] : bytes) {
    if (useful == nullptr || !is_vector_content(content)) continue;
    const auto part = useful->of(shard.source, content);
    if (!part || *part > count) continue;
    bytes[kPadding] += count - *part;
    count = *part;
  }
  uint64_t sum = 0;
  for (const auto& [content, count] : bytes) {
    sum += count;
    if (count != 0) result.contents.push_back({content, count});
  }
  if (sum != shard.size_bytes) {
    throw Error(ErrorCode::Internal,
                "accounted for " + std::to_string(sum) + " of " +
                    std::to_string(shard.size_bytes) + " bytes",
                {.file = name});
  }
  return result;
}

std::vector<std::string> content_order(const std::vector<FileBytes>& files) {
  static const std::vector<std::string> kFirst{"masters"};
  static const std::vector<std::string> kLast{
      "model",   "frozen", "buffers",   "weights", "other_state",
      "padding", "pickle", "container", "unread",  "side_files"};
  std::set<std::string> present;
  for (const FileBytes& file : files) {
    for (const ContentBytes& content : file.contents) {
      present.insert(content.content);
    }
  }
  std::vector<std::string> order;
  const auto take = [&](const std::string& content) {
    if (present.erase(content) != 0) order.push_back(content);
  };
  for (const std::string& content : kFirst) take(content);
  std::set<std::string> states = present;
  for (const std::string& content : kLast) states.erase(content);
  for (const std::string& content : states) take(content);
  for (const std::string& content : kLast) take(content);
  return order;
}

}  // namespace zckpt
