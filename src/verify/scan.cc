// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/scan.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "base/crc32.h"
#include "base/page_buffer.h"
#include "base/parallel.h"
#include "base/text.h"
#include "reader/checkpoint_data.h"
#include "reader/layout.h"
#include "verify/record_crcs.h"
#include "verify/segments.h"
#include "verify/values.h"

namespace zckpt {
namespace {

namespace fs = std::filesystem;

// What was read is looked at more than once: it should still be in the core's
// own cache, and reading less at a time costs more calls than it gains.
constexpr uint64_t kWindowBytes = uint64_t{1} << 19;
constexpr uint64_t kLeastWindow = uint64_t{1} << 16;
// What a piece can be long, so that one that a window cuts can be kept.
constexpr uint64_t kCarryBytes = ValueChecks::kPiece * 8;
// Files whose segments are known at a time. Finding them means walking over
// the extents of all tensors, so this many files share one walk.
constexpr size_t kFilesAtATime = 32;

struct ScanFile {
  std::string name;  // as findings call it
  std::string path;
  std::optional<uint32_t> rank;
  SegmentSource source;
  std::optional<uint64_t> size;  // when the index was made
  // What damage to it means for merging; a resume sees to it by itself.
  Severity severity = Severity::Error;
};

// What one file told: findings come in the order of the files.
struct FileReport {
  std::vector<Finding> findings;
  std::optional<uint64_t> padding;  // offset of the first that is not zero
  uint64_t bytes = 0;
  uint64_t checked = 0;
  uint64_t unchecked = 0;
};

struct Buffers {
  PageBuffer window;  // kCarryBytes, then what is read
  std::vector<std::byte> scratch;
};

class Scanner {
 public:
  Scanner(const CheckpointPath& where, const CheckedCheckpoint& checked,
          const VerifyOptions& options)
      : where_(where),
        checked_(checked),
        options_(options),
        threads_(resolve_threads(options.open.threads)) {}

  ScanResult run() {
    list_files();
    open_sidecar();
    if (checked_.checkpoint) {
      values_.emplace(*checked_.checkpoint, sidecar_ ? &*sidecar_ : nullptr);
    }
    const uint64_t share =
        options_.memory_bytes / static_cast<uint64_t>(threads_);
    window_bytes_ =
        std::clamp(share / 2 / PageBuffer::kPage * PageBuffer::kPage,
                   kLeastWindow, kWindowBytes);
    buffers_.resize(static_cast<size_t>(threads_));
    for (Buffers& buffers : buffers_) {
      buffers.window.reserve(kCarryBytes + window_bytes_);
    }
    for (const ScanFile& file : files_) {
      std::error_code ignored;
      const auto size = fs::file_size(file.path, ignored);
      if (!ignored) total_ += size;
    }
    reports_.resize(files_.size());
    for (size_t first = 0; first < files_.size(); first += kFilesAtATime) {
      run_files(first, std::min(files_.size(), first + kFilesAtATime));
    }
    finish();
    return std::move(result_);
  }

 private:
  // A side file: what only a resume reads is no error for merging.
  void add_file(const fs::path& path, Severity severity) {
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return;
    files_.push_back({.name = relative_name(path.string(), where_.folder),
                      .path = path.string(),
                      .severity = severity});
  }

  void list_files() {
    if (checked_.shards != nullptr) {
      add_sources(*checked_.shards->sources, false);
      const auto severities = file_severities(*checked_.shards);
      for (size_t i = 0; i < severities.size(); ++i) {
        files_[i].severity = severities[i];
      }
      for (const ShardFile& file : checked_.shards->files) {
        files_[file.source].rank = file.name.rank;
        files_[file.source].source.shard = &file;
      }
      for (const OtherFile& file : checked_.shards->others) {
        add_file(file.path, Severity::Error);
      }
    } else if (checked_.checkpoint) {
      add_sources(*checked_.checkpoint->data().sources, false);
    }
    for (const fs::path& path : side_files(where_)) {
      add_file(path, Severity::Warning);
    }
  }

  static bool is_random_state(const std::string& name) {
    return name.starts_with("rng_state") || name.starts_with("random_states");
  }

  void add_sources(const SourceSet& sources, bool sidecar) {
    for (uint32_t i = 0; i < sources.list().size(); ++i) {
      files_.push_back({.name = sources.list()[i].name,
                        .path = sources.path(i),
                        .rank = std::nullopt,
                        .source = {.sidecar = sidecar, .number = i},
                        .size = sources.list()[i].size_bytes});
    }
  }

  // Weights that the run gathered beside its shards, if there are any.
  void open_sidecar() {
    if (checked_.shards == nullptr) return;
    // Of several tags in one folder they belong to the one saved last.
    try {
      const auto latest = read_latest(where_.folder);
      if (latest && *latest != where_.tag) {
        if (has_weights(where_.folder)) {
          result_.notes.push_back(
              "the gathered weights in this folder are those of " +
              escape(*latest) + " and were not compared");
        }
        return;
      }
      auto data = open_weights_beside(where_.folder);
      if (data == nullptr) return;
      sidecar_.emplace(std::move(data));
    } catch (const Error& error) {
      result_.findings.push_back(
          {.code = "sidecar-disagree",
           .severity = Severity::Warning,
           .message = "the gathered weights beside the shards cannot be read, "
                      "so they could not be compared: " +
                      error.message(),
           .file = error.file().find('/') == std::string::npos
                       ? error.file()
                       : relative_name(error.file(), where_.folder)});
      return;
    }
    add_sources(*sidecar_->data().sources, true);
  }

  void run_files(size_t begin, size_t end) {
    std::vector<std::vector<Segment>> segments(end - begin);
    if (values_) {
      std::vector<SegmentSource> sources;
      for (size_t i = begin; i < end; ++i) sources.push_back(files_[i].source);
      segments =
          find_segments(*checked_.checkpoint, sidecar_ ? &*sidecar_ : nullptr,
                        *values_, sources);
    }
    parallel_for(
        end - begin, threads_, options_.open.stop, [&](size_t i, int worker) {
          scan_file(files_[begin + i], segments[i], reports_[begin + i],
                    buffers_[static_cast<size_t>(worker)]);
        });
  }

  void scan_file(const ScanFile& file, const std::vector<Segment>& segments,
                 FileReport& report, Buffers& buffers) {
    try {
      const FileSource source(file.path);
      if (file.size && source.size() != *file.size) {
        throw Error(ErrorCode::Conflict, "the file changed while it was read");
      }
      std::optional<RecordCrcs> records = open_records(file, source, report);
      read_file(source, segments, records, report, buffers);
      if (records) judge(file, *records, segments, report);
      if (report.padding) report_padding(file, *report.padding, report);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::Interrupted) throw;
      if (is_known(file)) return;
      report.findings.push_back(finding(file, "file-unreadable",
                                        "reading it failed: " + error.message(),
                                        error.offset()));
    }
  }

  std::optional<RecordCrcs> open_records(const ScanFile& file,
                                         const FileSource& source,
                                         FileReport& report) const {
    std::optional<RecordCrcs> records;
    try {
      records.emplace(source);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::Io) throw;
      tell(file, "container-damaged", error, report);
      return std::nullopt;
    }
    for (const Error& fault : records->faults()) {
      tell(file, "container-damaged", fault, report);
    }
    if (records->form() == FileForm::TorchZipTorn ||
        records->form() == FileForm::Empty) {
      tell(file, "file-truncated",
           Error(ErrorCode::Corrupt, "its end is missing"), report);
      return std::nullopt;
    }
    return records;
  }

  // Unless it is known. Of side files another check says whether they open.
  void tell(const ScanFile& file, const char* code, const Error& error,
            FileReport& report) const {
    if (is_known(file) || !file.source.number) return;
    report.findings.push_back(
        finding(file, code, error.message(), error.offset()));
  }

  bool is_known(const ScanFile& file) const {
    return std::any_of(checked_.findings.begin(), checked_.findings.end(),
                       [&](const Finding& known) {
                         return known.file == file.name &&
                                known.severity == Severity::Error;
                       });
  }

  static Finding finding(const ScanFile& file, std::string code,
                         std::string message, std::optional<uint64_t> offset) {
    Finding made{.code = std::move(code),
                 .severity = file.severity,
                 .message = std::move(message),
                 .file = file.name,
                 .rank = file.rank,
                 .tensor = "",
                 .offset = offset};
    if (file.source.sidecar) {  // nobody resumes from it
      made.code = "sidecar-disagree";
      made.severity = Severity::Warning;
    }
    return made;
  }

  static void report_padding(const ScanFile& file, uint64_t offset,
                             FileReport& report) {
    report.findings.push_back(finding(
        file, "padding-nonzero",
        "expected zeros behind the parameters of a partition, found values: "
        "the shard is of another model, or damaged",
        offset));
  }

  // A segment that has been begun.
  struct Open {
    Segment rest;
    uint64_t end() const { return rest.offset + length * size_of(rest.dtype); }
    uint64_t length = 0;  // of the next piece, in elements
  };

  void read_file(const FileSource& source, const std::vector<Segment>& segments,
                 std::optional<RecordCrcs>& records, FileReport& report,
                 Buffers& buffers) {
    std::byte* const window = buffers.window.data() + kCarryBytes;
    const std::byte* front = window;  // what is at hand begins here
    uint64_t begin = 0;               // ... and here in the file
    uint64_t end = 0;
    std::vector<Open> open;
    auto next = segments.begin();
    while (end < source.size()) {
      throw_if_stopped(options_.open.stop);
      // What a cut piece has of this window is put before the next.
      uint64_t keep = end;
      for (const Open& piece : open) keep = std::min(keep, piece.rest.offset);
      const auto kept = static_cast<size_t>(end - keep);
      std::memmove(window - kept, front + (keep - begin), kept);
      front = window - kept;
      begin = keep;
      const std::span<std::byte> room(
          window,
          static_cast<size_t>(std::min(window_bytes_, source.size() - end)));
      source.read_at(end, room);
      end += room.size();
      if (records) records->add(room);
      report.bytes += room.size();
      progress(room.size());
      for (; next != segments.end() && next->offset < end; ++next) {
        open.push_back({.rest = *next});
        begin_piece(open.back());
      }
      for (Open& piece : open) {
        while (piece.rest.numel != 0 && piece.end() <= end) {
          look(piece, front + (piece.rest.offset - begin), report, buffers);
        }
      }
      std::erase_if(open, [](const Open& o) { return o.rest.numel == 0; });
    }
    if (next != segments.end() || !open.empty()) {
      throw Error(ErrorCode::Corrupt, "it ends before its tensors do");
    }
  }

  void begin_piece(Open& open) const {
    const Segment& rest = open.rest;
    if (rest.numel == 0) return;
    open.length = std::min(rest.numel,
                           rest.content == Content::Elements
                               ? values_->piece_length(rest.tensor, rest.first)
                               : ValueChecks::kPiece);
  }

  void look(Open& open, const std::byte* at, FileReport& report,
            Buffers& buffers) {
    Segment& rest = open.rest;
    const std::span<const std::byte> bytes(
        at, static_cast<size_t>(open.length * size_of(rest.dtype)));
    switch (rest.content) {
      case Content::Elements:
        values_->look(rest.tensor, rest.first, bytes, buffers.scratch);
        break;
      case Content::Behind:
        values_->look_behind(rest.tensor, rest.first, bytes);
        break;
      case Content::Padding:
        if (!report.padding && !all_zero(bytes)) report.padding = rest.offset;
        break;
    }
    rest.offset += bytes.size();
    rest.first += open.length;
    rest.numel -= open.length;
    begin_piece(open);
  }

  void judge(const ScanFile& file, const RecordCrcs& records,
             const std::vector<Segment>& segments, FileReport& report) const {
    size_t wrong = 0;
    for (const RecordCrcs::Record& record : records.records()) {
      if (record.crc == 0) {
        ++report.unchecked;
        continue;
      }
      ++report.checked;
      if (record.crc == record.found) continue;
      ++wrong;
      report.findings.push_back(damaged(file, record, segments));
    }
    if (wrong > 1 && wrong == report.checked) {
      report.findings.back().message +=
          "; so is every record of this file: its writer may not have computed "
          "them";
    }
    if (report.checked == 0 || report.unchecked != 0) {
      Finding note = finding(
          file, "crc-unchecked",
          report.checked + report.unchecked == 0
              ? "a file of this form holds no checksums: damage to values "
                "that stay plausible cannot be seen in it"
              : count_of(report.unchecked, "record") + " of " +
                    std::to_string(report.unchecked + report.checked) +
                    " came without a checksum: damage there cannot be seen",
          std::nullopt);
      note.code = "crc-unchecked";
      note.severity = Severity::Note;
      report.findings.push_back(std::move(note));
    }
  }

  Finding damaged(const ScanFile& file, const RecordCrcs::Record& record,
                  const std::vector<Segment>& segments) const {
    Finding found = finding(file, "crc-mismatch",
                            "record " + escape(record.name) + " is damaged: " +
                                crc32_difference(record.crc, record.found),
                            record.begin);
    if (!file.source.number) {
      const std::string name = fs::path(file.path).filename().string();
      if (is_random_state(name)) {
        found.code = "rng-damaged";
        found.severity = where_.framework == Framework::Accelerate
                             ? Severity::Warning
                             : Severity::Error;
      }
      return found;
    }
    uint64_t tensors = 0;
    bool needed = !values_;
    for (const Segment& segment : segments) {
      if (segment.content == Content::Padding || segment.offset >= record.end ||
          segment.offset + segment.numel * size_of(segment.dtype) <=
              record.begin) {
        continue;
      }
      const Checkpoint& home =
          file.source.sidecar ? *sidecar_ : *checked_.checkpoint;
      const Tensor& tensor = home.tensors()[segment.tensor.index];
      if (tensors++ == 0) found.tensor = tensor.name;
      needed = needed || home.find(tensor.name) == &tensor;
    }
    if (tensors > 1) {
      found.message +=
          "; it holds " + count_of(tensors, "tensor") + " or parts of them";
      found.tensor.clear();
    }
    if (!needed) found.severity = Severity::Warning;
    return found;
  }

  void progress(uint64_t bytes) {
    const uint64_t done = done_.fetch_add(bytes) + bytes;
    if (options_.observer != nullptr) {
      options_.observer->progress(done, std::max(done, total_));
    }
  }

  void finish() {
    for (FileReport& report : reports_) {
      result_.facts.bytes += report.bytes;
      result_.facts.checked_records += report.checked;
      result_.facts.unchecked_records += report.unchecked;
      std::move(report.findings.begin(), report.findings.end(),
                std::back_inserter(result_.findings));
    }
    if (!values_) return;
    std::vector<Finding> more = values_->findings();
    std::move(more.begin(), more.end(), std::back_inserter(result_.findings));
    if (values_->not_compared() != 0) {
      result_.notes.push_back(
          count_of(values_->not_compared(), "tensor") +
          " could not be compared with a copy: a view that is not contiguous");
    }
    result_.facts.compared_tensors = values_->compared();
    result_.facts.compared_with_sidecar = values_->compared_with_sidecar();
    if (sidecar_ && values_->compared_with_sidecar() == 0) {
      result_.notes.push_back(
          "the gathered weights beside the shards name none of their tensors "
          "and were not compared with them");
    }
  }

  const CheckpointPath& where_;
  const CheckedCheckpoint& checked_;
  const VerifyOptions& options_;
  int threads_;
  uint64_t window_bytes_ = 0;
  std::vector<ScanFile> files_;  // the sources first, by their number
  std::vector<FileReport> reports_;
  std::optional<Checkpoint> sidecar_;
  std::optional<ValueChecks> values_;
  std::vector<Buffers> buffers_;
  std::atomic<uint64_t> done_{0};
  uint64_t total_ = 0;
  ScanResult result_;
};

}  // namespace

ScanResult scan(const CheckpointPath& where, const CheckedCheckpoint& checked,
                const VerifyOptions& options) {
  return Scanner(where, checked, options).run();
}

}  // namespace zckpt
