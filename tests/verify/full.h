// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/stored_weights.h"
#include "support/zero_partitions.h"
#include "verify/resumable.h"

namespace zckpt::test {

namespace fs = std::filesystem;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// verify with --full, on checkpoints that are spoilt in memory or on the disk.
class Full : public Resumable {
 protected:
  static VerifyOptions full(Question question = Question::Resume) {
    VerifyOptions options;
    options.full = true;
    options.question = question;
    return options;
  }

  // Findings above notes.
  static std::vector<std::string> troubles(const Verification& judged) {
    std::vector<std::string> lines = places(judged);
    std::erase_if(lines, [](const auto& l) { return l.starts_with("note"); });
    return lines;
  }
  static const Finding& finding(const Verification& judged,
                                const std::string& code) {
    for (const Finding& found : judged.findings) {
      if (found.code == code) return found;
    }
    ADD_FAILURE() << "no " << code;
    return judged.findings.at(0);
  }

  struct Place {
    std::string file;  // relative to the folder
    uint64_t offset = 0;
  };
  Place place(const std::string& name, Role role, uint64_t element,
              const std::string& state = "") const {
    const Checkpoint checkpoint = Checkpoint::open(folder().string());
    Place found;
    checkpoint.extents(
        *checkpoint.find(name, role, state), element, 1,
        [&](const Extent& extent) {
          found = {checkpoint.sources()[extent.source].name, extent.offset};
        });
    return found;
  }
  std::string stem(const Place& at) const {
    return fs::path(at.file).filename().string();
  }

  // Changes one element and writes the file again, with true CRCs: what a
  // training run gone wrong would have saved.
  void set(const std::string& name, Role role, uint64_t element, DType dtype,
           float value, const std::string& state = "") {
    const Place at = place(name, role, element, state);
    ZeroCheckpoint::Shard& shard = made_->shards().at(stem(at));
    TorchArchive archive = shard.archive;
    const auto built = archive.set_root(shard.root).build();
    const std::string bytes = encode(dtype, {value});
    for (TorchArchive::Record& record : shard.archive.records()) {
      const uint64_t begin = built.places.at(record.name).payload_offset;
      if (at.offset < begin || at.offset >= begin + record.bytes.size()) {
        continue;
      }
      record.bytes.replace(at.offset - begin, bytes.size(), bytes);
    }
    made_->write(folder());
  }
  // Damage on the disk, behind the back of the CRC.
  void damage(const Place& at) const {
    flip_byte(folder() / at.file, at.offset);
  }

  // The weights as a run that gathers them would write them beside the shards.
  std::map<std::string, StoredTensor> gathered(DType dtype) const {
    std::map<std::string, StoredTensor> tensors;
    for (const Truth& truth : made_->truth()) {
      if (truth.role == Role::Frozen) {
        tensors[truth.name] = {"BF16", truth.shape, truth.bytes};
      }
      if (truth.role != Role::Master) continue;
      std::vector<float> values(truth.bytes.size() / 4);
      std::memcpy(values.data(), truth.bytes.data(), truth.bytes.size());
      tensors[truth.name] = {dtype == DType::F32 ? "F32" : "BF16", truth.shape,
                             encode(dtype, values)};
    }
    return tensors;
  }
  void gather(const std::map<std::string, StoredTensor>& tensors) const {
    write_bytes(folder() / "model.safetensors", stored_file(tensors));
  }
};

}  // namespace zckpt::test
