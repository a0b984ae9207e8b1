// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/crc32.h"

#include <cstdio>

#ifdef ZCKPT_HAVE_ISAL
#include <isa-l/crc.h>
#else
#include <libdeflate.h>
#endif

namespace zckpt {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320U;  // zip's, bit-reflected

// a * b modulo the polynomial, both as reflected polynomials over GF(2) whose
// highest bit is the coefficient of x^0.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1U) != 0 ? kPolynomial : 0U);
  }
  return product;
}

// x^(8 * length) modulo the polynomial.
uint32_t power_of_x(uint64_t length) {
  uint32_t result = uint32_t{1} << 31;  // x^0
  uint32_t square = uint32_t{1} << 23;  // x^8
  for (; length != 0; length >>= 1) {
    if ((length & 1U) != 0) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

}  // namespace

uint32_t crc32_update(uint32_t crc, std::span<const std::byte> bytes) {
#ifdef ZCKPT_HAVE_ISAL
  return crc32_gzip_refl(
      crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
#else
  return libdeflate_crc32(crc, bytes.data(), bytes.size());
#endif
}

uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  return multiply(power_of_x(length_b), crc_a) ^ crc_b;
}

std::string crc32_difference(uint32_t expected, uint32_t found) {
  char text[64];
  std::snprintf(text, sizeof(text), "expected CRC %08x, found %08x", expected,
                found);
  return text;
}

}  // namespace zckpt
