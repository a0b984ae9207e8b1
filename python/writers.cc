// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "call.h"
#include "convert.h"
#include "zckpt/export.h"
#include "zckpt/lora.h"
#include "zckpt/merge.h"

namespace zckpt::python {
namespace {

// The number of `word` in `words`.
size_t choice(const std::string& key, const std::string& word,
              const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  std::string text = key + " must be one of";
  for (const std::string& one : words) text += " " + one;
  throw py::value_error(text + ", not " + word);
}

// What all writers take. `dtype` is a safetensors name, or none to keep.
void take_write_options(Options& options, Watch& watch, MergeOptions& write) {
  take_open_options(options, write.open);
  std::optional<std::string> dtype;
  options.take("dtype", dtype);
  write.dtype.reset();
  if (dtype) write.dtype = dtype_named(*dtype);
  write.format = choice("format", options.word("format", "safetensors"),
                        {"safetensors", "bin"}) == 0
                     ? WeightFormat::Safetensors
                     : WeightFormat::Bin;
  options.take("max_shard_bytes", write.max_shard_bytes);
  constexpr Check kChecks[] = {Check::Full, Check::Sample, Check::None};
  write.check = kChecks[choice("check", options.word("check", "sample"),
                               {"full", "sample", "none"})];
  options.take("output", write.output);
  options.take("single_file", write.single_file);
  options.take("force", write.force);
  options.take("sync", write.sync);
  options.take("dry_run", write.dry_run);
  options.take("memory", write.memory_bytes);
  write.open.stop = &watch.stop();
  write.observer = &watch;
}

py::list files_of(const Plan& plan) {
  py::list files;
  for (const PlannedFile& file : plan.files) {
    py::list names;
    for (const PlannedTensor& tensor : file.tensors) {
      names.append(to_python(tensor.name));
    }
    files.append(py::make_tuple(to_python(file.name), file.size_bytes,
                                py::tuple(names)));
  }
  return files;
}

py::dict merge_dict(const MergeResult& result, const Watch& watch) {
  py::dict aliases;
  for (const auto& [alias, kept] : result.plan.aliases) {
    aliases[to_python(alias)] = to_python(kept);
  }
  py::list notes = to_python(watch.notes());
  for (const std::string& note : result.plan.notes) {
    notes.append(to_python(note));
  }
  py::dict dict;
  dict["facts"] = to_python(result.checkpoint);
  dict["files"] = files_of(result.plan);
  dict["tensors"] = result.plan.tensor_count;
  dict["parameters"] = result.plan.parameter_count;
  dict["aliases"] = aliases;
  dict["dtype"] = result.plan.dtype
                      ? py::object(to_python(short_name(*result.plan.dtype)))
                      : py::object(py::none());
  dict["notes"] = py::tuple(notes);
  dict["findings"] = to_python(result.findings);
  dict["overflowed"] = result.overflowed;
  dict["checked_records"] = result.checked_records;
  dict["unchecked_records"] = result.unchecked_records;
  dict["checked_elements"] = result.checked_elements;
  dict["reads"] = result.reads;
  dict["bytes_read"] = result.bytes_read;
  return dict;
}

py::dict run_merge(const py::object& path, const py::dict& values,
                   const py::object& progress) {
  Watch watch(progress);
  MergeOptions merging;
  Options options(values);
  take_write_options(options, watch, merging);
  options.take("include", merging.include);
  options.take("exclude", merging.exclude);
  options.take("strip_prefix", merging.strip_prefix);
  merging.aliases =
      choice("aliases", options.word("aliases", "drop"), {"drop", "copy"}) == 0
          ? Aliases::Drop
          : Aliases::Copy;
  merging.order = choice("order", options.word("order", "module"),
                         {"module", "param_shapes"}) == 0
                      ? TensorOrder::Module
                      : TensorOrder::ParamShapes;
  options.take("exclude_frozen", merging.exclude_frozen);
  options.finish();
  const std::string text = text_of(path);
  const MergeResult result =
      watched(watch, [&] { return merge(text, merging); });
  return merge_dict(result, watch);
}

py::list adapters_of(const ExportResult& result) {
  py::list list;
  for (const MergedAdapter& adapter : result.adapters) {
    list.append(py::make_tuple(to_python(adapter.label), adapter.weight,
                               adapter.tensors));
  }
  return list;
}

py::list lora_of(const ExportResult& result) {
  py::list list;
  for (const LoraReport& report : result.lora) {
    list.append(py::make_tuple(to_python(report.name), report.rank,
                               report.max_delta, report.mean_delta,
                               report.overflowed, report.nonfinite));
  }
  return list;
}

py::dict export_dict(const ExportResult& result, const Watch& watch) {
  py::list side_files;
  for (const SideFile& file : result.side_files) {
    side_files.append(
        py::make_tuple(to_python(file.name), to_python(file.from)));
  }
  py::list changes;
  for (const ConfigChange& change : result.config_changes) {
    changes.append(py::make_tuple(to_python(change.key), or_none(change.before),
                                  to_python(change.after)));
  }
  py::dict dict;
  dict["written"] = merge_dict(result.written, watch);
  dict["base"] = or_none(result.base);
  dict["config_from"] = to_python(result.config_from);
  dict["side_files"] = side_files;
  dict["config_changes"] = changes;
  dict["adapters"] = adapters_of(result);
  dict["lora"] = lora_of(result);
  dict["notes"] = py::tuple(to_python(result.notes));
  return dict;
}

py::dict run_export(const py::object& path, const py::dict& values,
                    const py::object& progress) {
  Watch watch(progress);
  ExportOptions exporting;
  Options options(values);
  take_write_options(options, watch, exporting.write);
  options.take("base", exporting.base);
  std::vector<std::pair<py::object, double>> adapters;
  options.take("adapters", adapters);
  for (const auto& [folder, weight] : adapters) {
    exporting.adapters.push_back({.path = text_of(folder), .weight = weight});
  }
  options.take("adapter_name", exporting.adapter_name);
  options.take("adapter_config", exporting.adapter_config);
  options.take("lora_alpha", exporting.lora_alpha);
  exporting.math = choice("lora_math", options.word("lora_math", "exact"),
                          {"exact", "peft"}) == 0
                       ? LoraMath::Exact
                       : LoraMath::Peft;
  options.take("auto_dtype", exporting.auto_dtype);
  options.finish();
  const std::string text = text_of(path);
  const ExportResult result =
      watched(watch, [&] { return export_hf(text, exporting); });
  return export_dict(result, watch);
}

py::dict run_extract(const py::object& path, const py::dict& values,
                     const py::object& progress) {
  Watch watch(progress);
  ExtractOptions extracting;
  Options options(values);
  take_write_options(options, watch, extracting.write);
  options.take("adapter_name", extracting.adapter_name);
  options.take("adapter_config", extracting.adapter_config);
  options.take("lora_alpha", extracting.lora_alpha);
  options.finish();
  const std::string text = text_of(path);
  const ExtractResult result =
      watched(watch, [&] { return extract_lora(text, extracting); });
  py::dict dict;
  dict["written"] = merge_dict(result.written, watch);
  dict["adapter_name"] = to_python(result.adapter_name);
  dict["config_from"] = or_none(result.config_from);
  dict["modules"] = result.modules;
  dict["notes"] = py::tuple(to_python(result.notes));
  return dict;
}

}  // namespace

void bind_writers(py::module_& module) {
  using py::arg;
  module.def("merge", &run_merge, arg("path"), arg("options"), arg("progress"));
  module.def("export_hf", &run_export, arg("path"), arg("options"),
             arg("progress"));
  module.def("extract_lora", &run_extract, arg("path"), arg("options"),
             arg("progress"));
}

}  // namespace zckpt::python
