// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "support/caught.h"
#include "support/checkpoint_tools.h"
#include "support/zero_partitions.h"
#include "verify/scan.h"

// Tiny checkpoints, cut at every length and with every byte flipped: an Error,
// a finding, or the same tensors; never a crash, never other values in
// silence. Payload bytes are what --full is for: there their CRC tells.

namespace zckpt::test {
namespace {

namespace fs = std::filesystem;

using Values = std::map<std::string, std::string>;

Values read_all(const Checkpoint& checkpoint) {
  Values values;
  for (const Tensor& tensor : checkpoint.tensors()) {
    std::string text = std::string(safetensors_name(tensor.dtype)) + ":";
    for (const uint64_t size : tensor.shape) text += std::to_string(size) + ",";
    values[tensor.name + "|" + std::string(to_string(tensor.role)) + "|" +
           tensor.state] = text + read_tensor(checkpoint, tensor);
  }
  return values;
}

// What there is to say about the folder: its values, or nothing where there
// was an error or anything at all was found.
std::optional<Values> judge(const std::string& folder) {
  try {
    OpenOptions options;
    options.threads = 1;
    const CheckedCheckpoint checked = check_folder(folder, options);
    if (!checked.findings.empty() || !checked.checkpoint) return std::nullopt;
    return read_all(*checked.checkpoint);
  } catch (const Error&) {
    return std::nullopt;
  }
}

struct SweepCase {
  std::string name;
  Writer writer;
  bool legacy;
  friend void PrintTo(const SweepCase& tested, std::ostream* out) {
    *out << tested.name;
  }
};

class Sweep : public testing::TestWithParam<SweepCase> {
 protected:
  void SetUp() override {
    ZeroRun run;
    run.writer = GetParam().writer;
    run.legacy_container = GetParam().legacy;
    run.ranks = 2;
    run.groups = {{{"w", {3, 3}}, {"b", {1}}}};
    run.frozen = {{"f", {3}}};
    run.buffers = {{"n", DType::I64, {1}, std::string(8, '\x01')}};
    run.aliases = {{"tied", "w"}};
    run.states = {"exp_avg"};
    ZeroCheckpoint made(run);
    made.write(folder_.path());
    intact_ = judge(folder_.path().string()).value();
    for (const auto& entry : fs::directory_iterator(folder_ / run.tag)) {
      files_.push_back(entry.path());
    }
  }

  // The values that differ from the intact ones, where nothing was found.
  std::vector<std::string> silent_changes() const {
    const auto now = judge(folder_.path().string());
    std::vector<std::string> changed;
    if (!now) return changed;
    for (const auto& [name, value] : intact_) {
      const auto it = now->find(name);
      if (it == now->end() || it->second != value) changed.push_back(name);
    }
    if (now->size() > intact_.size()) changed.emplace_back("(more tensors)");
    return changed;
  }

  // The codes of what reading every byte finds.
  std::set<std::string> codes_of_scan() const {
    VerifyOptions options;
    options.open.threads = 1;
    const std::string folder = folder_.path().string();
    const ScanResult scanned =
        scan(find_checkpoints(folder, options.open).front(),
             check_folder(folder, options.open), options);
    std::set<std::string> codes;
    for (const Finding& finding : scanned.findings) codes.insert(finding.code);
    return codes;
  }

  // Whether a byte of an intact file belongs to a storage.
  static std::function<bool(size_t)> payloads(const fs::path& file) {
    const FileSource source(file.string());
    const auto records = TorchFile::open(source).storages();
    return [records](size_t at) {
      return std::any_of(records.begin(), records.end(),
                         [&](const StorageRecord& record) {
                           return at >= record.offset &&
                                  at - record.offset < record.size_bytes;
                         });
    };
  }

  // A prime, so that every kind of field is hit; ZCKPT_SWEEP_ALL hits all.
  const size_t kStride = std::getenv("ZCKPT_SWEEP_ALL") != nullptr ? 1 : 3;

  TempFolder folder_;
  std::vector<fs::path> files_;
  Values intact_;
};

TEST_P(Sweep, CutAnywhere) {
  for (const fs::path& file : files_) {
    const std::string bytes = read_bytes(file);
    for (size_t size = 0; size < bytes.size(); size += kStride) {
      write_bytes(file, bytes.substr(0, size));
      EXPECT_FALSE(judge(folder_.path().string())) << file << " " << size;
    }
    write_bytes(file, bytes);
  }
}

TEST_P(Sweep, AnyByteFlipped) {
  size_t turn = 0;
  for (const fs::path& file : files_) {
    std::string bytes = read_bytes(file);
    const auto payload = payloads(file);
    for (size_t at = 0; at < bytes.size(); at += kStride) {
      const char kept = bytes[at];
      bytes[at] = static_cast<char>(kept ^ (turn++ % 2 == 0 ? 0x01 : 0x80));
      write_bytes(file, bytes);
      const auto changed = silent_changes();
      // The legacy container has no checksums at all: there only crashes and
      // hangs can be told.
      if (!payload(at) && !GetParam().legacy) {
        EXPECT_THAT(changed, testing::IsEmpty())
            << file.filename() << " @" << at;
      }
      if (payload(at) && !GetParam().legacy) {
        EXPECT_THAT(codes_of_scan(), testing::Contains("crc-mismatch"))
            << file.filename() << " @" << at;
      }
      bytes[at] = kept;
    }
    write_bytes(file, bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    TinyCheckpoints, Sweep,
    testing::Values(SweepCase{"Stage2", Writer::Stage2, false},
                    SweepCase{"Stage3", Writer::Stage3, false},
                    SweepCase{"Stage2Legacy", Writer::Stage2, true},
                    SweepCase{"Stage3Legacy", Writer::Stage3, true},
                    SweepCase{"Stage0Legacy", Writer::Stage0, true}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace zckpt::test
