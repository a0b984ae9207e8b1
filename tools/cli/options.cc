// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <unistd.h>

#include <filesystem>

#include "base/text.h"

namespace zckpt::cli {
namespace {

bool ends_with_any(const std::string& name,
                   std::initializer_list<const char*> endings) {
  for (const char* ending : endings) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

}  // namespace

CLI::Option* add_size(CLI::App& verb, const std::string& name, uint64_t& value,
                      const std::string& help) {
  // CLI11's own size type has other units than the Hugging Face libraries.
  return verb
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            const auto size = parse_size(text);
            if (!size) {
              throw CLI::ValidationError(
                  name, "expected a size such as 5GB, 512MiB or 4096, found " +
                            escape(text));
            }
            value = *size;
          },
          help)
      ->type_name("SIZE");
}

bool use_color(const std::string& when) {
  return when == "always" || (when == "auto" && ::isatty(STDERR_FILENO) == 1);
}

void CommonOptions::add_to(CLI::App& verb) {
  verb.add_option("PATH", path,
                  "A checkpoint: run folder, checkpoint-N, tag folder, ...")
      ->required();
  verb.add_option("--tag", open.tag, "Tag folder to take, e.g. global_step500")
      ->type_name("T");
  verb.add_option("--also", open.also,
                  "Folder with more shards of the same save (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  verb.add_option("--threads", open.threads,
                  "Threads to use (default: one per core, at most 4)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  add_size(verb, "--memory", memory_bytes, "Budget for buffers");
  verb.add_flag("--json", json, "Print one JSON document on standard output");
  verb.add_flag("-q,--quiet", quiet, "Show results and errors only");
  verb.add_flag("-v,--verbose", verbose, "Show more");
  verb.add_flag("--no-progress", no_progress, "Show no progress");
  verb.add_option("--color", color, "auto, always or never")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "always", "never"}));
}

TerminalOptions CommonOptions::terminal() const {
  const bool tty = ::isatty(STDERR_FILENO) == 1;
  return {.quiet = quiet,
          .verbose = verbose,
          .progress = !no_progress,
          .color = use_color(color),
          .tty = tty};
}

void CommonOptions::apply(const Context& context, MergeOptions& options) const {
  options.open = open;
  options.open.stop = context.stop;
  if (memory_bytes != 0) options.memory_bytes = memory_bytes;
}

void WriterOptions::add_to(CLI::App& verb) {
  verb.add_option("-o,--output", output,
                  sharded && !folder
                      ? "Folder to write, or NAME.safetensors (NAME.bin with "
                        "--format bin) for one file"
                      : "Folder to write")
      ->type_name("OUT");
  verb.add_flag("--force", force, "Replace an output that is not empty");
  verb.add_flag("--no-sync", no_sync, "Do not wait until data is on the disk");
  verb.add_flag("--dry-run", dry_run, "Show what would be written");
  std::vector<std::string> dtypes{"keep", "fp32", "bf16", "fp16"};
  if (auto_dtype) dtypes.insert(dtypes.begin(), "auto");
  verb.add_option("--dtype", dtype,
                  auto_dtype ? "auto (what config.json says), keep, fp32, bf16 "
                               "or fp16"
                             : "keep, fp32, bf16 or fp16")
      ->type_name("D")
      ->capture_default_str()
      ->check(CLI::IsMember(dtypes));
  if (sharded) {
    verb.add_option("--format", format, "safetensors, or bin for torch.load")
        ->type_name("F")
        ->capture_default_str()
        ->check(CLI::IsMember({"safetensors", "bin"}));
    add_size(verb, "--max-shard-size", max_shard_bytes,
             "Largest weight file (default: 5GB)");
  }
  verb.add_option("--check", check,
                  "Compare with other evidence before writing: full, sample "
                  "or none")
      ->type_name("HOW")
      ->capture_default_str()
      ->check(CLI::IsMember({"full", "sample", "none"}));
}

void WriterOptions::apply(MergeOptions& options) const {
  if (output.empty() && !dry_run) {
    throw UsageError("--output is required (-o OUT)");
  }
  const std::string name = std::filesystem::path(output).filename().string();
  const std::string extension = "." + format;
  options.single_file = name.ends_with(extension);
  const bool one_file = sharded && !folder;
  const bool weight_file =
      ends_with_any(name, {".pt", ".pth", ".ckpt", ".bin"}) ||
      (one_file && name.ends_with(".safetensors"));
  if (weight_file && !(one_file && options.single_file)) {
    throw UsageError(
        "the output " + escape(output) +
        " looks like a weight file that is not written here; give "
        "a folder" +
        (one_file ? ", or NAME" + extension + " for one file" : ""));
  }
  options.output = output;
  options.format =
      format == "bin" ? WeightFormat::Bin : WeightFormat::Safetensors;
  options.force = force;
  options.sync = !no_sync;
  options.dry_run = dry_run;
  options.max_shard_bytes = max_shard_bytes;
  options.dtype = dtype == "fp32"   ? std::optional(DType::F32)
                  : dtype == "bf16" ? std::optional(DType::BF16)
                  : dtype == "fp16" ? std::optional(DType::F16)
                                    : std::nullopt;
  options.check = check == "full"   ? Check::Full
                  : check == "none" ? Check::None
                                    : Check::Sample;
}

}  // namespace zckpt::cli
