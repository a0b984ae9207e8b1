// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "writer/exchange.h"
#include "writer/output_calls.h"
#include "writer/output_lock.h"
#include "writer/output_place.h"
#include "zckpt/error.h"

namespace zckpt {

struct Output::State {
  State(const std::string& path, OutputOptions given_options,
        const OutputCalls& given_calls);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { discard(); }

  void prepare();
  void prepare_inside();
  std::string staging() const;
  void publish();
  void sync_made_folders() const;
  void discard() noexcept;

  const OutputPlace place;
  const OutputOptions options;
  const OutputCalls& calls;
  Exchange exchange;
  bool inside = false;
  std::optional<Claim> staged;
  std::vector<std::string> made_folders;  // above the output
  std::vector<std::unique_ptr<File>> files;
};

Output::State::State(const std::string& path, OutputOptions given_options,
                     const OutputCalls& given_calls)
    : place(resolve_output(path)),
      options(std::move(given_options)),
      calls(given_calls),
      exchange(place, options, calls) {
  refuse_above_inputs(place, options);
  if (options.single_file || !is_half_replaced(place)) {
    refuse_output(place, options);
  }
  try {
    prepare();
    // Once more, now that nothing half-way is left and nobody else is at it.
    refuse_output(place, options);
  } catch (...) {
    discard();
    throw;
  }
}

void Output::State::prepare() {
  const bool there = !options.single_file && is_folder(place.path);
  if (there && (is_mount_point(place.path) || is_working_folder(place.path))) {
    return prepare_inside();
  }
  made_folders = make_folders(place.parent, calls);
  staged = claim_fresh(place, place.staging(), options.single_file, calls);
  if (staged.has_value()) {
    if (!options.single_file) exchange.recover(false);
    return;
  }
  if (!there) throw_errno("cannot create " + place.staging(), place.given);
  prepare_inside();
}

void Output::State::prepare_inside() {
  exchange.hold_output();
  inside = true;
  exchange.recover(true);
  staged = claim_fresh(place, place.inner_staging(), false, calls);
  if (!staged.has_value()) {
    throw_errno("cannot create " + place.inner_staging(), place.given);
  }
}

std::string Output::State::staging() const {
  return inside ? place.inner_staging() : place.staging();
}

void Output::State::publish() {
  if (options.single_file) return exchange.publish_file();
  if (options.sync) sync_folder(staging(), calls);
  if (inside) return exchange.publish_inside();
  exchange.publish_beside();
}

void Output::State::sync_made_folders() const {
  if (!options.sync) return;
  for (const std::string& folder : made_folders) {
    sync_folder(std::filesystem::path(folder).parent_path().string(), calls);
  }
}

void Output::State::discard() noexcept {
  if (exchange.decided()) return;
  try {
    // The commit may have moved it inside before it failed.
    if (staged.has_value()) exchange.discard_inside();
    if (staged.has_value() && !inside) calls.remove_all(staging());
    staged.reset();
    std::ranges::reverse(made_folders);
    for (const std::string& folder : made_folders) ::rmdir(folder.c_str());
    made_folders.clear();
  } catch (...) {
    // What stays is named so that the next run removes it.
  }
}

Output::Output(const std::string& path, OutputOptions options)
    : Output(path, std::move(options), system_calls()) {}

Output::Output(const std::string& path, OutputOptions options,
               const OutputCalls& calls)
    : state_(std::make_unique<State>(path, std::move(options), calls)) {}

Output::~Output() = default;

Output::File& Output::create(std::string_view name, uint64_t size) {
  State& state = *state_;
  std::string path = state.staging();
  if (state.options.single_file) {
    if (!state.files.empty()) {
      throw Error(ErrorCode::Internal, "a second file in a single-file output");
    }
  } else {
    if (name.empty() || name == "." || name == ".." || is_own_name(name) ||
        name.find('/') != std::string_view::npos) {
      throw Error(ErrorCode::Internal, "not a plain file name",
                  {.file = std::string(name)});
    }
    path += '/' + std::string(name);
    if (path_exists(path)) {
      throw Error(ErrorCode::Internal, "two files of one name in one output",
                  {.file = std::string(name)});
    }
  }
  state.files.push_back(std::make_unique<File>(
      std::move(path), size, state.options.sync, state.calls));
  return *state.files.back();
}

void Output::commit() {
  State& state = *state_;
  if (state.exchange.decided()) {
    throw Error(ErrorCode::Internal, "an output is committed once");
  }
  for (const std::unique_ptr<File>& file : state.files) {
    if (file->written_ != file->size_) {
      throw Error(ErrorCode::Internal,
                  "expected " + std::to_string(file->size_) +
                      " bytes to be written, found " +
                      std::to_string(file->written_),
                  {.file = file->path_});
    }
  }
  state.publish();
  state.sync_made_folders();
}

}  // namespace zckpt
