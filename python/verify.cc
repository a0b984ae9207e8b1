// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/verify.h"

#include <pybind11/stl.h>

#include "bindings.h"
#include "call.h"
#include "convert.h"

namespace zckpt::python {
namespace {

VerifyOptions verify_options(const py::dict& values, Watch& watch) {
  VerifyOptions verifying;
  Options options(values);
  take_open_options(options, verifying.open);
  const std::string question = options.word("question", "resume");
  if (question != "resume" && question != "merge") {
    throw py::value_error("question must be resume or merge, not " + question);
  }
  verifying.question = question == "merge" ? Question::Merge : Question::Resume;
  options.take("strict", verifying.strict);
  options.take("full", verifying.full);
  options.take("newest_only", verifying.newest_only);
  options.take("world_size", verifying.world_size);
  options.take("stage", verifying.stage);
  std::optional<std::string> dtype;
  options.take("dtype", dtype);
  if (dtype) verifying.dtype = dtype_named(*dtype);
  options.take("framework", verifying.framework);
  options.take("memory", verifying.memory_bytes);
  options.finish();
  verifying.open.stop = &watch.stop();
  verifying.observer = &watch;
  return verifying;
}

py::object scan_dict(const std::optional<ScanFacts>& scan) {
  if (!scan) return py::none();
  py::dict dict;
  dict["bytes"] = scan->bytes;
  dict["checked_records"] = scan->checked_records;
  dict["unchecked_records"] = scan->unchecked_records;
  dict["compared_tensors"] = scan->compared_tensors;
  dict["compared_with_sidecar"] = scan->compared_with_sidecar;
  return dict;
}

py::dict verification_dict(const Verification& one) {
  py::dict dict;
  dict["path"] = to_python(one.path);
  dict["tag"] = to_python(one.tag);
  dict["verdict"] = to_python(to_string(one.verdict));
  dict["can_resume"] = one.can_resume;
  dict["can_merge"] = one.can_merge;
  dict["facts"] = to_python(one.facts);
  dict["step"] = one.step;
  dict["findings"] = to_python(one.findings);
  dict["scan"] = scan_dict(one.scan);
  return dict;
}

py::dict run_verify(const py::object& path, const py::dict& values,
                    const py::object& progress) {
  Watch watch(progress);
  const VerifyOptions options = verify_options(values, watch);
  const std::string text = text_of(path);
  const VerifyResult result =
      watched(watch, [&] { return verify(text, options); });
  py::list checkpoints;
  for (const Verification& one : result.checkpoints) {
    checkpoints.append(verification_dict(one));
  }
  py::dict dict;
  dict["is_run"] = result.is_run;
  dict["checkpoints"] = checkpoints;
  dict["newest_resumable"] = result.newest_resumable;
  return dict;
}

}  // namespace

void bind_verify(py::module_& module) {
  module.def("verify", &run_verify, py::arg("path"), py::arg("options"),
             py::arg("progress"));
}

}  // namespace zckpt::python
