// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace zckpt::zip {

// The parts of the zip format (APPNOTE 6.3) that torch.save writes. All
// numbers are little-endian; sizes are those of the fixed parts.

inline constexpr uint32_t kLocalHeader = 0x04034b50;
inline constexpr size_t kLocalHeaderSize = 30;
inline constexpr uint32_t kDataDescriptor = 0x08074b50;
inline constexpr size_t kDataDescriptorSize = 16;
inline constexpr size_t kDataDescriptor64Size = 24;
inline constexpr uint32_t kCentralEntry = 0x02014b50;
inline constexpr size_t kCentralEntrySize = 46;
inline constexpr uint32_t kEnd = 0x06054b50;
inline constexpr size_t kEndSize = 22;
inline constexpr size_t kMaxComment = 0xffff;
inline constexpr uint32_t kZip64Locator = 0x07064b50;
inline constexpr size_t kZip64LocatorSize = 20;
inline constexpr uint32_t kZip64End = 0x06064b50;
inline constexpr size_t kZip64EndSize = 56;
// The zip64 end record's own size field does not count itself and what is
// before it.
inline constexpr size_t kZip64EndLead = 12;

inline constexpr uint16_t kZip64Extra = 0x0001;
inline constexpr uint16_t kPaddingExtra = 0x4246;  // "FB": torch's alignment
// A field with this value has its real one in the zip64 records.
inline constexpr uint16_t kSee64In16 = 0xffff;
inline constexpr uint32_t kSee64In32 = 0xffffffff;

inline constexpr uint16_t kFlagEncrypted = 1U << 0;
inline constexpr uint16_t kFlagDescriptor = 1U << 3;
inline constexpr uint16_t kFlagPatch = 1U << 5;
inline constexpr uint16_t kFlagUtf8 = 1U << 11;
inline constexpr uint16_t kFlagMasked = 1U << 13;
inline constexpr uint16_t kStored = 0;

// Records of a torch archive, after its prefix (format.md 7.1).
inline constexpr std::string_view kDataPkl = "data.pkl";
inline constexpr std::string_view kByteOrder = "byteorder";
inline constexpr std::string_view kVersion = "version";
inline constexpr std::string_view kFormatVersion = ".format_version";
inline constexpr std::string_view kStorageAlignment = ".storage_alignment";
inline constexpr std::string_view kSerializationId = ".data/serialization_id";
inline constexpr std::string_view kStorageFolder = "data/";
// Only TorchScript archives have it.
inline constexpr std::string_view kConstantsPkl = "constants.pkl";

// Payloads begin at multiples of this.
inline constexpr uint64_t kStorageAlignmentBytes = 64;

static_assert(std::endian::native == std::endian::little,
              "fields are copied as they are");

// The number at `at`. REQUIRES: it lies within `bytes`.
template <std::unsigned_integral T>
T load(std::span<const std::byte> bytes, size_t at) {
  T value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

}  // namespace zckpt::zip
