// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "zckpt/checkpoint.h"

#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "bindings.h"
#include "call.h"
#include "convert.h"
#include "zckpt/load.h"

namespace zckpt::python {
namespace {

// Below this a thread costs more than the read, and Ctrl-C can wait for it.
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;

struct Opened {
  Checkpoint checkpoint;
  std::vector<Finding> findings;

  const Tensor& tensor(size_t index) const {
    const auto tensors = checkpoint.tensors();
    if (index >= tensors.size()) throw py::index_error("no such tensor");
    return tensors[index];
  }
  size_t index_of(const Tensor* tensor) const {
    return static_cast<size_t>(tensor - checkpoint.tensors().data());
  }
};
using OpenedPtr = std::shared_ptr<Opened>;

OpenedPtr open(const py::object& path, const py::dict& values) {
  OpenOptions open_options;
  Options options(values);
  take_open_options(options, open_options);
  options.finish();
  Watch watch;
  open_options.stop = &watch.stop();
  const std::string text = text_of(path);
  std::vector<Finding> findings;
  Checkpoint checkpoint = watched(
      watch, [&] { return open_for_load(text, open_options, &findings); });
  return std::make_shared<Opened>(
      Opened{std::move(checkpoint), std::move(findings)});
}

py::list tensors(const Opened& opened) {
  py::list list;
  for (const Tensor& tensor : opened.checkpoint.tensors()) {
    list.append(py::make_tuple(
        to_python(tensor.name), to_python(to_string(tensor.role)),
        to_python(tensor.state), to_python(safetensors_name(tensor.dtype)),
        py::tuple(py::cast(tensor.shape))));
  }
  return list;
}

std::vector<size_t> weights(const Opened& opened) {
  std::vector<size_t> indices;
  for (const Tensor* tensor : weights_of(opened.checkpoint)) {
    indices.push_back(opened.index_of(tensor));
  }
  return indices;
}

Check check_named(const std::string& word) {
  if (word == "sample") return Check::Sample;
  if (word == "full") return Check::Full;
  if (word == "none") return Check::None;
  throw py::value_error("check must be full, sample or none, not " + word);
}

LoadOptions load_options(const py::dict& values, Watch& watch) {
  LoadOptions load;
  Options options(values);
  load.check = check_named(options.word("check", "sample"));
  options.take("threads", load.threads);
  options.take("memory", load.memory_bytes);
  options.finish();
  load.stop = &watch.stop();
  load.observer = &watch;
  return load;
}

// The memory that a Python object lends, all of it, for writing.
class Lent {
 public:
  explicit Lent(const py::buffer& buffer) : info_(buffer.request(true)) {}
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(info_.ptr),
            static_cast<size_t>(info_.size * info_.itemsize)};
  }

 private:
  py::buffer_info info_;
};

py::dict run_load(const Opened& opened, const std::vector<LoadTarget>& targets,
                  const py::dict& values, const py::object& progress) {
  Watch watch(progress);
  LoadOptions options = load_options(values, watch);
  uint64_t bytes = 0;
  for (const LoadTarget& target : targets) bytes += target.out.size();
  LoadResult result;
  if (bytes < kSmallBytes) {
    const py::gil_scoped_release released;
    options.threads = 1;
    result = load(opened.checkpoint, targets, options);
  } else {
    result = watched(watch,
                     [&] { return load(opened.checkpoint, targets, options); });
  }
  py::dict dict;
  dict["overflowed"] = result.overflowed;
  dict["checked_records"] = result.checked_records;
  dict["unchecked_records"] = result.unchecked_records;
  dict["bytes_read"] = result.bytes_read;
  return dict;
}

py::dict load_whole(const Opened& opened, const std::vector<size_t>& indices,
                    const std::vector<std::string>& dtypes,
                    const std::vector<py::buffer>& buffers,
                    const py::dict& values, const py::object& progress) {
  if (dtypes.size() != indices.size() || buffers.size() != indices.size()) {
    throw py::value_error("one dtype and one buffer for each tensor");
  }
  std::vector<Lent> lent;
  lent.reserve(buffers.size());
  std::vector<LoadTarget> targets;
  targets.reserve(buffers.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const Tensor& tensor = opened.tensor(indices[i]);
    lent.emplace_back(buffers[i]);
    targets.push_back({.tensor = &tensor,
                       .numel = tensor.numel,
                       .dtype = dtype_named(dtypes[i]),
                       .out = lent.back().bytes()});
  }
  return run_load(opened, targets, values, progress);
}

// Runs of `numel` elements that begin at each of `firsts`, one after the other
// into `out`.
py::dict load_runs(const Opened& opened, size_t index, const py::buffer& firsts,
                   uint64_t numel, const std::string& dtype_name,
                   const py::buffer& out, const py::dict& values) {
  const Tensor& tensor = opened.tensor(index);
  const DType dtype = dtype_named(dtype_name);
  const py::buffer_info starts = firsts.request();
  if (starts.ndim != 1 || !starts.item_type_is_equivalent_to<uint64_t>()) {
    throw py::value_error("firsts must be a vector of uint64");
  }
  const Lent lent(out);
  const auto count = static_cast<size_t>(starts.size);
  const size_t size = lent.bytes().size();
  const uint64_t run_bytes = numel * size_of(dtype);
  if (numel == 0 || numel > tensor.numel || size / run_bytes != count ||
      size % run_bytes != 0) {
    throw py::value_error("the buffer is not as long as the runs");
  }
  std::vector<LoadTarget> targets;
  targets.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    targets.push_back({.tensor = &tensor,
                       .first = static_cast<const uint64_t*>(starts.ptr)[i],
                       .numel = numel,
                       .dtype = dtype,
                       .out = lent.bytes().subspan(i * run_bytes, run_bytes)});
  }
  return run_load(opened, targets, values, py::none());
}

// TensorStream, with what it points to.
class Stream {
 public:
  Stream(OpenedPtr opened, const std::vector<size_t>& indices,
         const std::optional<std::string>& dtype, const std::string& order,
         uint64_t buffer_bytes, const py::dict& values)
      : opened_(std::move(opened)),
        wanted_(opened_->checkpoint.tensors().size()) {
    for (const size_t index : indices) {
      opened_->tensor(index);
      wanted_[index] = true;
    }
    StreamOptions options;
    options.wanted = [this](const Tensor& tensor) {
      return wanted_[opened_->index_of(&tensor)];
    };
    if (dtype) options.dtype = dtype_named(*dtype);
    options.order = order == "name" ? StreamOrder::Name : StreamOrder::File;
    options.buffer_bytes = buffer_bytes;
    options.load = load_options(values, watch_);
    stream_.emplace(opened_->checkpoint, std::move(options));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // None behind the last; else (tensor, first, bytes), the bytes only until
  // the next call.
  py::object next() {
    // A thread only where there is something to read.
    const auto piece = stream_->is_buffered()
                           ? stream_->next()
                           : watched(watch_, [&] { return stream_->next(); });
    if (!piece) return py::none();
    return py::make_tuple(
        opened_->index_of(piece->tensor), piece->first,
        py::memoryview::from_memory(piece->bytes.data(),
                                    static_cast<ssize_t>(piece->bytes.size())));
  }

 private:
  OpenedPtr opened_;
  std::vector<bool> wanted_;
  Watch watch_;
  std::optional<TensorStream> stream_;
};

}  // namespace

void bind_checkpoint(py::module_& module) {
  using py::arg;
  module.def("open", &open, arg("path"), arg("options"));
  py::class_<Opened, OpenedPtr>(module, "Opened")
      .def(
          "facts",
          [](const Opened& self) { return to_python(self.checkpoint.facts()); })
      .def("findings",
           [](const Opened& self) { return to_python(self.findings); })
      .def("tensors", &tensors)
      .def("weights", &weights)
      .def("load", &load_whole, arg("indices"), arg("dtypes"), arg("buffers"),
           arg("options"), arg("progress"))
      .def("load_runs", &load_runs, arg("index"), arg("firsts"), arg("numel"),
           arg("dtype"), arg("out"), arg("options"));
  py::class_<Stream>(module, "Stream")
      .def(py::init<OpenedPtr, const std::vector<size_t>&,
                    const std::optional<std::string>&, const std::string&,
                    uint64_t, const py::dict&>(),
           arg("opened"), arg("indices"), arg("dtype"), arg("order"),
           arg("buffer_bytes"), arg("options"))
      .def("next", &Stream::next);
}

}  // namespace zckpt::python
