// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/nonfinite.h"

#include <cstring>

namespace zckpt {
namespace {

template <typename Bits>
Bits element(const std::byte* at, size_t i) {
  Bits bits;
  std::memcpy(&bits, at + i * sizeof(Bits), sizeof(Bits));
  return bits;
}

// `kExponent`: the bits that are all set in NaN and infinities alone.
template <typename Bits, Bits kExponent>
inline __attribute__((always_inline)) bool has_any_inlined(const std::byte* at,
                                                           size_t numel) {
  Bits any = 0;  // no early exit, so that the loop becomes vector code
  for (size_t i = 0; i < numel; ++i) {
    any |= static_cast<Bits>((element<Bits>(at, i) & kExponent) == kExponent);
  }
  return any != 0;
}

template <typename Bits, Bits kExponent>
bool has_any_portable(const std::byte* at, size_t numel) {
  return has_any_inlined<Bits, kExponent>(at, numel);
}

#ifdef __x86_64__
template <typename Bits, Bits kExponent>
__attribute__((target("avx2"))) bool has_any_avx2(const std::byte* at,
                                                  size_t numel) {
  return has_any_inlined<Bits, kExponent>(at, numel);
}
#endif

template <typename Bits, Bits kExponent>
bool has_any(const std::byte* at, size_t numel) {
#ifdef __x86_64__
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return has_any_avx2<Bits, kExponent>(at, numel);
#endif
  return has_any_portable<Bits, kExponent>(at, numel);
}

template <typename Bits, Bits kExponent>
NonFinite count(std::span<const std::byte> bytes) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  const size_t numel = bytes.size() / sizeof(Bits);
  NonFinite found;
  if (!has_any<Bits, kExponent>(bytes.data(), numel)) return found;
  for (size_t i = 0; i < numel; ++i) {
    const Bits magnitude = element<Bits>(bytes.data(), i) & kMagnitude;
    if (magnitude < kExponent) continue;
    ++(magnitude == kExponent ? found.inf : found.nan);
    if (!found.first) found.first = i;
  }
  return found;
}

}  // namespace

NonFinite count_nonfinite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::F64: return count<uint64_t, 0x7ff0000000000000U>(bytes);
    case DType::F32: return count<uint32_t, 0x7f800000U>(bytes);
    case DType::BF16: return count<uint16_t, 0x7f80U>(bytes);
    case DType::F16: return count<uint16_t, 0x7c00U>(bytes);
    default: return {};
  }
}

}  // namespace zckpt
