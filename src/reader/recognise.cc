// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/recognise.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "format/zip.h"
#include "reader/legacy_file.h"
#include "reader/zip_directory.h"

namespace zckpt {
namespace {

constexpr uint64_t kHeadBytes = 512;
constexpr uint64_t kTarMagicOffset = 257;
// Where a JSON header is searched for what gives its writer away: its first
// and its last bytes.
constexpr uint64_t kHeaderSample = 64 << 10;

std::string read_some(const ByteSource& source, uint64_t offset,
                      uint64_t count) {
  count = std::min(count, source.size() - offset);
  std::string bytes(static_cast<size_t>(count), '\0');
  source.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Both begin with the length of a JSON header. DataStates writes torch's names
// of dtypes and describes one object that is no tensor.
bool is_datastates(const ByteSource& source, uint64_t header_size) {
  header_size = std::min(header_size, source.size() - 8);
  const auto gives_away = [](std::string_view text) {
    return text.find("\"datastates_metadata\"") != std::string_view::npos ||
           text.find("\"torch.") != std::string_view::npos;
  };
  if (gives_away(read_some(source, 8, std::min(header_size, kHeaderSample)))) {
    return true;
  }
  if (header_size <= kHeaderSample) return false;
  return gives_away(
      read_some(source, 8 + header_size - kHeaderSample, kHeaderSample));
}

}  // namespace

FileForm recognise(const ByteSource& source) {
  if (source.size() == 0) return FileForm::Empty;
  const std::string head = read_some(source, 0, kHeadBytes);
  const std::string_view text(head);
  if (text.starts_with("PK\x03\x04")) {
    return has_zip_end(source) ? FileForm::TorchZip : FileForm::TorchZipTorn;
  }
  // A handful of bytes of the signature is a torn archive, too.
  if (std::string_view("PK\x03\x04").starts_with(text)) {
    return FileForm::TorchZipTorn;
  }
  if (is_legacy_file(source)) return FileForm::TorchLegacy;
  if (text.size() > kTarMagicOffset &&
      text.substr(kTarMagicOffset).starts_with("ustar")) {
    return FileForm::TorchTar;
  }
  if (text.size() > 8 && text[8] == '{') {
    const uint64_t header =
        zip::load<uint64_t>(std::as_bytes(std::span(text)), 0);
    // No header of text has a length that is text itself.
    if (header < uint64_t{1} << 40) {
      return is_datastates(source, header) ? FileForm::DataStates
                                           : FileForm::Safetensors;
    }
  }
  if (text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5) {
    return FileForm::Pickle;
  }
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos &&
      (text[first] == '{' || text[first] == '[')) {
    return FileForm::Json;
  }
  return FileForm::Unknown;
}

const char* describe(FileForm form) {
  switch (form) {
    case FileForm::Empty: return "an empty file";
    case FileForm::TorchZip: return "a torch zip archive";
    case FileForm::TorchZipTorn: return "a truncated torch zip archive";
    case FileForm::TorchLegacy: return "a torch file in the legacy format";
    case FileForm::TorchTar: return "a tar archive of torch before 0.1.10";
    case FileForm::Safetensors: return "a safetensors file";
    case FileForm::DataStates:
      return "a DataStates checkpoint, which torch.load cannot read either";
    case FileForm::Pickle: return "a bare pickle";
    case FileForm::Json: return "a JSON file";
    case FileForm::Unknown: return "a file of unknown form";
  }
  return "a file of unknown form";
}

}  // namespace zckpt
