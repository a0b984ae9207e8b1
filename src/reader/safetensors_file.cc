// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/safetensors_file.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/arithmetic.h"
#include "base/text.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

using Json = nlohmann::json;

// The reference reader's own cap.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";

// Iterates over the header and leaves behind how far the parser has come:
// nlohmann tells a position only of syntax errors.
class TrackedChars {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedChars(const char* at, const char** seen) : at_(at), seen_(seen) {}
  reference operator*() const { return *(*seen_ = at_); }
  TrackedChars& operator++() {
    ++at_;
    return *this;
  }
  bool operator==(const TrackedChars& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** seen_;
};

// HeaderParser accepts exactly the shape of a safetensors header:
// {name: {"dtype": string, "shape": [n...], "data_offsets": [begin, end]},
//  "__metadata__": {string: string}}. What does not fit is thrown as it comes,
// so that nothing is built of it. Offsets in `entries` are of the data.
class HeaderParser : public nlohmann::json_sax<Json> {
 public:
  HeaderParser(const ByteSource& source, std::string_view header)
      : source_(source), header_(header), seen_(header.data()) {}

  void parse(SafetensorsFile& file) {
    file_ = &file;
    Json::sax_parse(TrackedChars(header_.data(), &seen_),
                    TrackedChars(header_.data() + header_.size(), &seen_),
                    this);
  }

  bool null() override { return unexpected(); }
  bool boolean(bool) override { return unexpected(); }
  bool number_integer(int64_t) override { return unexpected(); }
  bool number_float(double, const std::string&) override {
    return unexpected();
  }
  bool binary(binary_t&) override { return unexpected(); }

  bool number_unsigned(uint64_t value) override {
    if (state_ == State::Shape) {
      file_->entries.back().shape.push_back(value);
    } else if (state_ == State::Offsets && offset_count_ < 2) {
      offsets_[offset_count_++] = value;
    } else {
      return unexpected();
    }
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::Metadata) {
      file_->metadata.emplace_back(key_, value);
      return true;
    }
    if (state_ != State::Entry || field_ != kDtype) return unexpected();
    const std::optional<DType> dtype = dtype_from_safetensors(value);
    if (!dtype) fail(ErrorCode::Unsupported, "dtype " + escape(value));
    file_->entries.back().dtype = *dtype;
    field_ = 0;
    return true;
  }

  bool start_object(size_t) override {
    switch (state_) {
      case State::Start: state_ = State::Top; return true;
      case State::Top:
        if (key_ == kMetadata) {
          state_ = State::Metadata;
        } else {
          state_ = State::Entry;
          fields_seen_ = 0;
          file_->entries.emplace_back().name = key_;
        }
        return true;
      default: return unexpected();
    }
  }

  bool end_object() override {
    if (state_ == State::Entry) {
      if (fields_seen_ != (kDtype | kShape | kOffsets)) {
        fail(ErrorCode::Corrupt, "expected dtype, shape and data_offsets");
      }
      state_ = State::Top;
    } else if (state_ == State::Metadata) {
      state_ = State::Top;
    } else {
      state_ = State::Start;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (state_ != State::Entry) return unexpected();
    if (field_ == kShape) {
      state_ = State::Shape;
    } else if (field_ == kOffsets) {
      state_ = State::Offsets;
      offset_count_ = 0;
    } else {
      return unexpected();
    }
    field_ = 0;
    return true;
  }

  bool end_array() override {
    if (state_ == State::Offsets) set_offsets();
    state_ = State::Entry;
    return true;
  }

  bool key(std::string& value) override {
    if (state_ == State::Entry) return field_key(value);
    key_ = value;
    std::set<std::string>& names =
        state_ == State::Metadata ? metadata_names_ : names_;
    if (!names.insert(value).second) {
      fail(ErrorCode::Corrupt, "the header has this name twice");
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const Json::exception&) override {
    // `position` counts characters read, the offending one among them.
    throw Error(ErrorCode::Corrupt, "the header is no valid JSON",
                {.file = source_.name(),
                 .offset = kLengthBytes + (position > 0 ? position - 1 : 0)});
  }

 private:
  enum class State { Start, Top, Metadata, Entry, Shape, Offsets };
  static constexpr uint32_t kDtype = 1;
  static constexpr uint32_t kShape = 2;
  static constexpr uint32_t kOffsets = 4;

  [[noreturn]] void fail(ErrorCode code, const std::string& message) const {
    throw Error(code, message,
                {.file = source_.name(),
                 .tensor = key_,
                 .offset = kLengthBytes +
                           static_cast<uint64_t>(seen_ - header_.data())});
  }

  [[noreturn]] bool unexpected() const {
    fail(ErrorCode::Corrupt, "a value that does not belong into the header");
  }

  bool field_key(const std::string& name) {
    field_ = name == "dtype"          ? kDtype
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : 0;
    if (field_ == 0) {
      fail(ErrorCode::Unsupported, "unknown field " + escape(name));
    }
    if ((fields_seen_ & field_) != 0) {
      fail(ErrorCode::Corrupt, "the field " + name + " occurs twice");
    }
    fields_seen_ |= field_;
    return true;
  }

  void set_offsets() {
    if (offset_count_ != 2 || offsets_[0] > offsets_[1]) {
      fail(ErrorCode::Corrupt, "expected two ascending data_offsets");
    }
    SafetensorsEntry& entry = file_->entries.back();
    entry.offset = offsets_[0];
    entry.size_bytes = offsets_[1] - offsets_[0];
  }

  const ByteSource& source_;
  std::string_view header_;
  const char* seen_;
  SafetensorsFile* file_ = nullptr;
  State state_ = State::Start;
  std::string key_;  // of the tensor or of the metadata
  uint32_t field_ = 0;
  uint32_t fields_seen_ = 0;
  uint64_t offsets_[2] = {};
  size_t offset_count_ = 0;
  std::set<std::string> names_;
  std::set<std::string> metadata_names_;
};

std::string read_header(const ByteSource& source) {
  const auto fail = [&](ErrorCode code, uint64_t offset,
                        const std::string& message) {
    throw Error(code, message, {.file = source.name(), .offset = offset});
  };
  if (source.size() < kLengthBytes) {
    fail(ErrorCode::Corrupt, 0,
         "expected the length of a header, found a file of " +
             std::to_string(source.size()) + " bytes");
  }
  uint64_t size = 0;
  source.read_at(0, std::as_writable_bytes(std::span(&size, 1)));
  if (size > source.size() - kLengthBytes) {
    fail(ErrorCode::Corrupt, 0,
         "a header of " + std::to_string(size) +
             " bytes reaches past the end of the file at " +
             std::to_string(source.size()));
  }
  if (size > kMaxHeaderBytes) {
    fail(ErrorCode::Limit, 0,
         "a header of " + format_bytes(size) + " exceeds the limit of " +
             format_bytes(kMaxHeaderBytes));
  }
  std::string header(static_cast<size_t>(size), '\0');
  source.read_at(kLengthBytes, std::as_writable_bytes(std::span(header)));
  if (!header.starts_with('{')) {
    fail(ErrorCode::Corrupt, kLengthBytes, "expected '{'");
  }
  return header;
}

uint64_t bytes_of(const SafetensorsEntry& entry) {
  uint64_t bytes = size_of(entry.dtype);
  for (const uint64_t n : entry.shape) {
    bytes = checked_mul(bytes, n, "the tensor's size");
  }
  return bytes;
}

// Every byte after the header belongs to exactly one tensor. Turns offsets
// into those of the file.
void check_layout(const ByteSource& source, SafetensorsFile& file) {
  std::sort(file.entries.begin(), file.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              // Empty tensors come before the one whose offset they share.
              if (a.offset != b.offset) return a.offset < b.offset;
              if (a.size_bytes != b.size_bytes) {
                return a.size_bytes < b.size_bytes;
              }
              return a.name < b.name;
            });
  const uint64_t data_bytes = source.size() - file.header_bytes;
  uint64_t expected = 0;
  for (SafetensorsEntry& entry : file.entries) {
    const auto fail = [&](uint64_t offset, const std::string& message) {
      throw Error(
          ErrorCode::Corrupt, message,
          {.file = source.name(), .tensor = entry.name, .offset = offset});
    };
    if (entry.offset != expected) {
      fail(file.header_bytes + expected,
           std::string(entry.offset > expected ? "a gap" : "an overlap") +
               " before the tensor: expected it to begin at " +
               std::to_string(expected) + " of the data, found " +
               std::to_string(entry.offset));
    }
    if (entry.size_bytes > data_bytes - expected) {
      fail(source.size(),
           "the tensor reaches past the end of the file: it "
           "is truncated, or the header is wrong");
    }
    uint64_t bytes = 0;
    try {
      bytes = bytes_of(entry);
    } catch (const Error& e) {
      fail(file.header_bytes + expected, e.message());
    }
    if (bytes != entry.size_bytes) {
      fail(file.header_bytes + expected, "expected " + std::to_string(bytes) +
                                             " bytes by shape and dtype, "
                                             "found " +
                                             std::to_string(entry.size_bytes));
    }
    expected += entry.size_bytes;
    entry.offset += file.header_bytes;
  }
  if (expected != data_bytes) {
    throw Error(
        ErrorCode::Corrupt,
        std::to_string(data_bytes - expected) + " bytes after the last tensor",
        {.file = source.name(), .offset = file.header_bytes + expected});
  }
}

}  // namespace

SafetensorsFile read_safetensors_header(const ByteSource& source) {
  const std::string header = read_header(source);
  SafetensorsFile file;
  file.header_bytes = kLengthBytes + header.size();
  HeaderParser(source, header).parse(file);
  check_layout(source, file);
  return file;
}

}  // namespace zckpt
