// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/inspect.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>

#include "base/text.h"
#include "cli/json_report.h"
#include "cli/verbs.h"

namespace zckpt::cli {
namespace {

struct InspectVerb {
  CommonOptions common;
  bool tensors = false;
};

// Up to this many ranks each have a column of their own where they differ.
constexpr size_t kRankColumns = 6;

std::string framework_name(const std::string& framework) {
  if (framework == "hf") return "saved by the Hugging Face Trainer";
  if (framework == "accelerate") return "saved by accelerate";
  if (framework == "lightning") return "saved by Lightning";
  return "";
}

std::string headline(const Inspection& inspection) {
  const CheckpointFacts& facts = inspection.facts;
  std::string text = escape(inspection.path) + ": " + facts.layout;
  if (facts.world_size != 0) text += ", " + count_of(facts.world_size, "rank");
  if (facts.step) text += ", step " + std::to_string(*facts.step);
  if (!facts.deepspeed_version.empty()) {
    text += ", DeepSpeed " + escape(facts.deepspeed_version);
  }
  const std::string framework = framework_name(facts.framework);
  if (!framework.empty()) text += ", " + framework;
  return text;
}

std::string dtype_list(const std::map<DType, uint64_t>& dtypes) {
  std::string text;
  for (const auto& [dtype, numel] : dtypes) {
    text += (text.empty() ? "" : ", ") + std::string(short_name(dtype));
  }
  return text;
}

// "weights: 494,032,768 trainable (fp32 masters), 1,024 frozen (bf16), ..."
std::string weights_line(const Checkpoint& checkpoint) {
  std::map<Role, uint64_t> numel;
  std::map<Role, std::map<DType, uint64_t>> dtypes;
  for (const Tensor& tensor : checkpoint.tensors()) {
    // Of a name with a master and a copy, the master counts.
    if (checkpoint.find(tensor.name) != &tensor) continue;
    numel[tensor.role] += tensor.numel;
    dtypes[tensor.role][tensor.dtype] += tensor.numel;
  }
  std::string text;
  const auto add = [&](Role role, const std::string& what) {
    if (numel[role] == 0) return;
    text += (text.empty() ? "" : ", ") + format_count(numel[role]) + " " +
            what + " (" + dtype_list(dtypes[role]) + ")";
  };
  add(Role::Master, "trainable");
  add(Role::Model, numel[Role::Master] == 0 ? "weights" : "without masters");
  add(Role::Frozen, "frozen");
  add(Role::Buffer, "in buffers");
  const CheckpointFacts& facts = checkpoint.facts();
  if (facts.dtype && numel[Role::Master] != 0) {
    text += "; the model computes in " + std::string(short_name(*facts.dtype));
  }
  return text;
}

class Table {
 public:
  explicit Table(const Inspection& inspection) : inspection_(inspection) {
    for (const FileBytes& file : inspection.files) {
      for (const ContentBytes& part : file.contents) {
        if (file.rank) {
          by_rank_[part.content][*file.rank] += part.bytes;
          ranks_ = std::max<size_t>(ranks_, *file.rank + 1);
        } else {
          shared_[part.content] += part.bytes;
        }
      }
    }
  }

  void print(std::ostream& out) const {
    std::vector<std::vector<std::string>> rows{{"content", "bytes", "share"}};
    const bool columns = ranks_ > 1 && ranks_ <= kRankColumns && any_differs();
    if (ranks_ > 1 && !columns) rows[0].push_back("each rank");
    for (size_t r = 0; columns && r < ranks_; ++r) {
      rows[0].push_back("rank " + std::to_string(r));
    }
    for (const ContentBytes& total : inspection_.totals) {
      std::vector<std::string> row{
          label(total.content), format_bytes(total.bytes), share(total.bytes)};
      if (columns) {
        for (size_t r = 0; r < ranks_; ++r) {
          row.push_back(cell(total.content, r));
        }
      } else if (ranks_ > 1) {
        row.push_back(range(total.content));
      }
      rows.push_back(std::move(row));
    }
    rows.push_back({"total", format_bytes(inspection_.total_bytes), ""});
    print_rows(rows, out);
  }

 private:
  static std::string label(const std::string& content) {
    static const std::map<std::string, std::string> kLabels{
        {"masters", "master weights"}, {"model", "the model's own copies"},
        {"frozen", "frozen weights"},  {"other_state", "other state"},
        {"weights", "weight files"},   {"side_files", "side files"},
        {"unread", "not read"}};
    const auto it = kLabels.find(content);
    return it == kLabels.end() ? escape(content) : it->second;
  }

  std::string share(uint64_t bytes) const {
    std::ostringstream text;
    text << std::fixed << std::setprecision(1)
         << 100.0 * static_cast<double>(bytes) /
                static_cast<double>(
                    std::max<uint64_t>(1, inspection_.total_bytes))
         << "%";
    return text.str();
  }

  uint64_t at(const std::string& content, size_t rank) const {
    const auto it = by_rank_.find(content);
    if (it == by_rank_.end()) return 0;
    const auto value = it->second.find(static_cast<uint32_t>(rank));
    return value == it->second.end() ? 0 : value->second;
  }

  std::string cell(const std::string& content, size_t rank) const {
    return by_rank_.contains(content) ? format_bytes(at(content, rank)) : "";
  }

  bool any_differs() const {
    for (const auto& [content, values] : by_rank_) {
      for (size_t r = 1; r < ranks_; ++r) {
        if (at(content, r) != at(content, 0)) return true;
      }
    }
    return false;
  }

  std::string range(const std::string& content) const {
    if (!by_rank_.contains(content)) return "";
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    for (size_t r = 0; r < ranks_; ++r) {
      least = std::min(least, at(content, r));
      most = std::max(most, at(content, r));
    }
    if (least == most) return format_bytes(most);
    return format_bytes(least) + " to " + format_bytes(most);
  }

  static void print_rows(const std::vector<std::vector<std::string>>& rows,
                         std::ostream& out) {
    std::vector<size_t> widths;
    for (const auto& row : rows) {
      widths.resize(std::max(widths.size(), row.size()));
      for (size_t c = 0; c < row.size(); ++c) {
        widths[c] = std::max(widths[c], row[c].size());
      }
    }
    for (const auto& row : rows) {
      std::string line;
      for (size_t c = 0; c < row.size(); ++c) {
        const std::string pad(widths[c] - row[c].size(), ' ');
        line += c == 0 ? row[c] + pad : "  " + pad + row[c];
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out << "  " << line << '\n';
    }
  }

  const Inspection& inspection_;
  std::map<std::string, std::map<uint32_t, uint64_t>> by_rank_;
  std::map<std::string, uint64_t> shared_;
  size_t ranks_ = 0;
};

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  }
  return text + "]";
}

// One tensor at a time: a checkpoint of many ranks has millions of extents.
void print_tensors(const Checkpoint& checkpoint, std::ostream& out) {
  for (const Tensor& tensor : checkpoint.tensors()) {
    out << escape(tensor.name) << "  " << to_string(tensor.role)
        << (tensor.state.empty() ? "" : ":" + escape(tensor.state)) << "  "
        << short_name(tensor.dtype) << "  " << shape_text(tensor.shape) << '\n';
    checkpoint.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
      out << "    " << escape(checkpoint.sources()[extent.source].name) << "  @"
          << extent.offset << "  " << extent.numel;
      if (extent.count != 1) {
        out << " x " << extent.count << " every " << extent.stride << " bytes";
      }
      out << '\n';
    });
  }
}

void print_text(const InspectVerb& verb, const Inspection& inspection,
                const Context& context, Terminal& terminal) {
  context.out << headline(inspection) << '\n';
  if (inspection.checkpoint) {
    context.out << "weights: " << weights_line(*inspection.checkpoint) << '\n';
    for (const auto& [alias, kept] : inspection.facts.aliases) {
      context.out << "tied: " << escape(alias) << " is " << escape(kept)
                  << '\n';
    }
  }
  context.out << '\n';
  Table(inspection).print(context.out);
  context.out << '\n';
  for (const std::string& note : inspection.notes) {
    context.out << "- " << note << '\n';
  }
  for (const std::string& other : inspection.others) {
    context.out << "- also here: " << escape(other) << '\n';
  }
  for (const FileBytes& file : inspection.files) {
    if (!verb.common.verbose) break;
    context.out << "  " << escape(file.file) << "  " << format_bytes(file.bytes)
                << '\n';
  }
  for (const Finding& finding : inspection.findings) terminal.finding(finding);
  if (verb.tensors && inspection.checkpoint) {
    context.out << '\n';
    print_tensors(*inspection.checkpoint, context.out);
  }
}

Json extents_json(const Checkpoint& checkpoint, const Tensor& tensor) {
  Json extents = Json::array();
  checkpoint.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
    extents.push_back({{"source", checkpoint.sources()[extent.source].name},
                       {"offset", extent.offset},
                       {"count", extent.count},
                       {"numel", extent.numel},
                       {"stride", extent.stride}});
  });
  return extents;
}

Json tensor_json(const Checkpoint& checkpoint, const Tensor& tensor) {
  Json json{{"name", tensor.name},
            {"role", std::string(to_string(tensor.role))}};
  if (!tensor.state.empty()) json["state"] = tensor.state;
  json["shape"] = tensor.shape;
  json["dtype"] = std::string(short_name(tensor.dtype));
  json["extents"] = extents_json(checkpoint, tensor);
  return json;
}

// The document is written piece by piece: with --tensors it can be far larger
// than memory.
void print_json(const InspectVerb& verb, const Inspection& inspection,
                std::ostream& out) {
  Json json = document("inspect");
  json["path"] = verb.common.path;
  json["tag"] = inspection.facts.tag;
  json["checkpoint"] = to_json(inspection.facts);
  Json by_content = Json::object();
  for (const ContentBytes& total : inspection.totals) {
    by_content[total.content] = total.bytes;
  }
  Json by_rank = Json::array();
  for (const FileBytes& file : inspection.files) {
    Json row = Json::object();
    if (file.rank) row["rank"] = *file.rank;
    row["file"] = file.file;
    row["bytes"] = file.bytes;
    for (const ContentBytes& part : file.contents) {
      row["contents"][part.content] = part.bytes;
    }
    by_rank.push_back(std::move(row));
  }
  json["bytes"] = {{"total", inspection.total_bytes},
                   {"by_content", std::move(by_content)},
                   {"by_rank", std::move(by_rank)}};
  json["notes"] = inspection.notes;
  json["others"] = inspection.others;
  json["findings"] = to_json(inspection.findings);
  std::string text = dump(json);
  if (!verb.tensors || !inspection.checkpoint) {
    out << text << '\n';
    return;
  }
  text.resize(text.rfind("\n}"));
  out << text << ",\n  \"tensors\": [";
  bool first = true;
  for (const Tensor& tensor : inspection.checkpoint->tensors()) {
    out << (first ? "\n    " : ",\n    ")
        << tensor_json(*inspection.checkpoint, tensor)
               .dump(-1, ' ', false, Json::error_handler_t::replace);
    first = false;
  }
  out << "\n  ]\n}\n";
}

int run_inspect(const InspectVerb& verb, const Context& context) {
  Terminal terminal(context.err, verb.common.terminal());
  OpenOptions options = verb.common.open;
  options.stop = context.stop;
  const Inspection inspection = inspect(verb.common.path, options);
  if (verb.common.json) {
    print_json(verb, inspection, context.out);
  } else {
    print_text(verb, inspection, context, terminal);
  }
  return 0;
}

}  // namespace

Verb add_inspect(CLI::App& app) {
  const auto verb = std::make_shared<InspectVerb>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Say what a checkpoint is and where its bytes go");
  verb->common.add_to(*command);
  command->add_flag("--tensors", verb->tensors,
                    "List every tensor with the places of its elements");
  return {.name = "inspect",
          .json = &verb->common.json,
          .quiet = &verb->common.quiet,
          .run = [verb](const Context& context) {
            return run_inspect(*verb, context);
          }};
}

}  // namespace zckpt::cli
