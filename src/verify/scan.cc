// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/scan.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/page_buffer.h"
#include "base/parallel.h"
#include "base/text.h"
#include "reader/checkpoint_data.h"
#include "verify/record_crcs.h"
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

// A run of elements of one tensor in one file.
struct Segment {
  uint64_t offset = 0;
  uint64_t numel = 0;
  uint64_t first = 0;  // element of the tensor
  ValueChecks::Id tensor;
  DType dtype = DType::F32;
};

struct ScanFile {
  std::string name;  // as findings call it
  std::string path;
  std::optional<uint32_t> rank;
  bool sidecar = false;
  std::optional<uint32_t> source;  // of the checkpoint or the sidecar
};

// What one file told; apart for each file, so that findings come in the order
// of the files however many threads read.
struct FileReport {
  std::vector<Finding> findings;
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
  void add_file(const fs::path& path) {
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return;
    files_.push_back({.name = path.lexically_relative(where_.folder).string(),
                      .path = path.string()});
  }

  void list_files() {
    if (checked_.shards != nullptr) {
      add_sources(*checked_.shards->sources, false);
      for (const ShardFile& file : checked_.shards->files) {
        files_[file.source].rank = file.name.rank;
      }
      for (const std::string& name : checked_.shards->other_files) {
        add_file(fs::path(where_.tag_folder) / name);
      }
    } else if (checked_.checkpoint) {
      add_sources(*checked_.checkpoint->data().sources, false);
    }
    std::vector<fs::path> beside;
    std::error_code error;
    for (fs::directory_iterator it(where_.folder, error);
         !error && it != fs::directory_iterator(); it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name == "scheduler.pt" || name == "scheduler.bin" ||
          name == "scaler.pt" || name.starts_with("rng_state") ||
          name.starts_with("random_states")) {
        beside.push_back(it->path());
      }
    }
    std::sort(beside.begin(), beside.end());
    for (const fs::path& path : beside) add_file(path);
  }

  void add_sources(const SourceSet& sources, bool sidecar) {
    for (uint32_t i = 0; i < sources.list().size(); ++i) {
      files_.push_back({.name = sources.list()[i].name,
                        .path = sources.path(i),
                        .rank = std::nullopt,
                        .sidecar = sidecar,
                        .source = i});
    }
  }

  // Weights that the run gathered beside its shards, if there are any.
  void open_sidecar() {
    if (checked_.shards == nullptr) return;
    try {
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
           .file = fs::path(error.file())
                       .lexically_relative(where_.folder)
                       .string()});
      return;
    }
    add_sources(*sidecar_->data().sources, true);
  }

  void run_files(size_t begin, size_t end) {
    std::vector<std::vector<Segment>> segments(end - begin);
    collect(begin, end, segments);
    parallel_for(
        end - begin, threads_, options_.open.stop, [&](size_t i, int worker) {
          scan_file(files_[begin + i], segments[i], reports_[begin + i],
                    buffers_[static_cast<size_t>(worker)]);
        });
  }

  void collect(size_t begin, size_t end,
               std::vector<std::vector<Segment>>& segments) const {
    if (!values_) return;
    for (const bool sidecar : {false, true}) {
      if (sidecar && !sidecar_) break;
      const Checkpoint& home = sidecar ? *sidecar_ : *checked_.checkpoint;
      // Slots of the sources that are read now, one more than the index.
      std::vector<size_t> slots(home.sources().size());
      bool any = false;
      for (size_t i = begin; i < end; ++i) {
        if (!files_[i].source || files_[i].sidecar != sidecar) continue;
        slots[*files_[i].source] = i - begin + 1;
        any = true;
      }
      if (!any) continue;
      for (uint32_t t = 0; t < home.tensors().size(); ++t) {
        if (!is_plain(home, home.tensors()[t])) continue;
        collect_tensor(home, {sidecar, t}, slots, segments);
      }
    }
    for (auto& list : segments) {
      std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
        return a.offset < b.offset;
      });
    }
  }

  static void collect_tensor(const Checkpoint& home, ValueChecks::Id id,
                             const std::vector<size_t>& slots,
                             std::vector<std::vector<Segment>>& segments) {
    const Tensor& tensor = home.tensors()[id.index];
    uint64_t first = 0;
    home.extents(tensor, 0, tensor.numel, [&](const Extent& extent) {
      if (const size_t slot = slots[extent.source]; slot != 0) {
        segments[slot - 1].push_back({.offset = extent.offset,
                                      .numel = extent.numel,
                                      .first = first,
                                      .tensor = id,
                                      .dtype = tensor.dtype});
      }
      first += extent.numel;
    });
  }

  // Views with a stride (a transposed weight) are few, and do not lie in a row:
  // they are read once more, element by element in their own order.
  void look_at_strided(const Checkpoint& home, bool sidecar) {
    std::vector<std::byte> bytes;
    for (uint32_t t = 0; t < home.tensors().size(); ++t) {
      const Tensor& tensor = home.tensors()[t];
      if (is_plain(home, tensor)) continue;
      const ValueChecks::Id id{sidecar, t};
      for (uint64_t first = 0; first < tensor.numel;) {
        const uint64_t length = values_->piece_length(id, first);
        bytes.resize(static_cast<size_t>(length * size_of(tensor.dtype)));
        home.read(tensor, first, length, bytes);
        values_->look(id, first, bytes, buffers_.front().scratch);
        first += length;
      }
    }
  }

  void scan_file(const ScanFile& file, const std::vector<Segment>& segments,
                 FileReport& report, Buffers& buffers) {
    try {
      const FileSource source(file.path);
      std::optional<RecordCrcs> records = open_records(file, source, report);
      read_file(source, segments, records, report, buffers);
      if (records) judge(file, *records, segments, report);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::Interrupted) throw;
      report.findings.push_back(finding(file, "file-unreadable",
                                        "reading it failed: " + error.message(),
                                        error.offset()));
    }
  }

  std::optional<RecordCrcs> open_records(const ScanFile& file,
                                         const FileSource& source,
                                         FileReport& report) const {
    try {
      std::optional<RecordCrcs> records(std::in_place, source);
      for (const Error& fault : records->faults()) {
        report.findings.push_back(finding(file, "container-damaged",
                                          fault.message(), fault.offset()));
      }
      return records;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::Io) throw;
      if (!is_known(file)) {
        report.findings.push_back(finding(file, "container-damaged",
                                          error.message(), error.offset()));
      }
      return std::nullopt;
    }
  }

  // Whether something has been said of this file already.
  bool is_known(const ScanFile& file) const {
    return std::any_of(
        checked_.findings.begin(), checked_.findings.end(),
        [&](const Finding& known) { return known.file == file.name; });
  }

  static Finding finding(const ScanFile& file, std::string code,
                         std::string message, std::optional<uint64_t> offset) {
    Finding made{.code = std::move(code),
                 .severity = Severity::Error,
                 .message = std::move(message),
                 .file = file.name,
                 .rank = file.rank,
                 .tensor = "",
                 .offset = offset};
    if (file.sidecar) {  // nobody resumes from it
      made.code = "sidecar-disagree";
      made.severity = Severity::Warning;
    }
    return made;
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
      if (options_.open.stop != nullptr &&
          options_.open.stop->stop_requested()) {
        throw Error(ErrorCode::Interrupted, "interrupted");
      }
      // What a piece that the window cuts has of it is put before the next.
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
          look(piece, front + (piece.rest.offset - begin), buffers.scratch);
        }
      }
      std::erase_if(open, [](const Open& o) { return o.rest.numel == 0; });
    }
  }

  void begin_piece(Open& open) const {
    if (open.rest.numel == 0) return;
    open.length =
        std::min(open.rest.numel,
                 values_->piece_length(open.rest.tensor, open.rest.first));
  }

  void look(Open& open, const std::byte* bytes,
            std::vector<std::byte>& scratch) {
    Segment& rest = open.rest;
    const uint64_t size = open.length * size_of(rest.dtype);
    values_->look(rest.tensor, rest.first,
                  std::span(bytes, static_cast<size_t>(size)), scratch);
    rest.offset += size;
    rest.first += open.length;
    rest.numel -= open.length;
    begin_piece(open);
  }

  void judge(const ScanFile& file, const RecordCrcs& records,
             const std::vector<Segment>& segments, FileReport& report) const {
    for (const RecordCrcs::Record& record : records.records()) {
      if (record.crc == 0) {
        ++report.unchecked;
        continue;
      }
      ++report.checked;
      if (record.crc != record.found) {
        report.findings.push_back(damaged(file, record, segments));
      }
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
    Finding found =
        finding(file, "crc-mismatch",
                "record " + escape(record.name) + " is damaged: expected CRC " +
                    hex(record.crc) + ", found " + hex(record.found),
                record.begin);
    uint64_t tensors = 0;
    bool needed = !values_;
    for (const Segment& segment : segments) {
      if (segment.offset < record.begin || segment.offset >= record.end) {
        continue;
      }
      const Checkpoint& home = file.sidecar ? *sidecar_ : *checked_.checkpoint;
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

  static std::string hex(uint32_t value) {
    char text[16];
    std::snprintf(text, sizeof(text), "%08x", value);
    return text;
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
    try {
      look_at_strided(*checked_.checkpoint, false);
      if (sidecar_) look_at_strided(*sidecar_, true);
      std::vector<Finding> more = values_->findings();
      std::move(more.begin(), more.end(), std::back_inserter(result_.findings));
    } catch (const Error& error) {
      // Of a file that could not be read before either, as a rule.
      result_.findings.push_back({.code = "file-unreadable",
                                  .severity = Severity::Error,
                                  .message = error.message(),
                                  .file = error.file(),
                                  .offset = error.offset()});
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
