// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace zckpt {

// CRC-32 with zip's polynomial, as torch stores for each record. `crc` is the
// value of what came before; 0 to start.
uint32_t crc32_update(uint32_t crc, std::span<const std::byte> bytes);

// The CRC-32 of A followed by B, from those of A and B and the length of B:
// what lets chunks be checked by many threads in any order.
uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

// "expected CRC 0badcafe, found 12345678", for messages.
std::string crc32_difference(uint32_t expected, uint32_t found);

}  // namespace zckpt
