// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "base/cast_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/half.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#define ZCKPT_INLINE inline __attribute__((always_inline))

namespace zckpt {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffU;
constexpr uint32_t kInfinity = 0x7f800000U;
constexpr uint32_t kQuietNan = 0x7fc00000U;

// Each conversion is written without branches, so that the compiler turns
// the loop below into vector code for whatever CPU it is compiled for.

struct F32ToBf16 {
  using In = uint32_t;
  using Out = uint16_t;
  static ZCKPT_INLINE Out convert(In bits, uint32_t& overflowed) {
    const uint32_t magnitude = bits & kMagnitude;
    const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    const uint32_t nan = (bits >> 16 & 0x8000U) | 0x7fc0U;
    overflowed += static_cast<uint32_t>((rounded & 0x7fffU) == 0x7f80U) &
                  static_cast<uint32_t>(magnitude < kInfinity);
    return static_cast<Out>(magnitude > kInfinity ? nan : rounded);
  }
};

struct F32ToF16 {
  using In = uint32_t;
  using Out = uint16_t;
  static ZCKPT_INLINE Out convert(In bits, uint32_t& overflowed) {
    const uint16_t half = fp16_from_float_bits(bits);
    overflowed += static_cast<uint32_t>((half & 0x7fffU) == 0x7c00U) &
                  static_cast<uint32_t>((bits & kMagnitude) < kInfinity);
    return half;
  }
};

struct Bf16ToF32 {
  using In = uint16_t;
  using Out = uint32_t;
  static ZCKPT_INLINE Out convert(In value, uint32_t&) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    return (bits & kMagnitude) > kInfinity ? (bits & ~kMagnitude) | kQuietNan
                                           : bits;
  }
};

struct F16ToF32 {
  using In = uint16_t;
  using Out = uint32_t;
  static ZCKPT_INLINE Out convert(In value, uint32_t&) {
    return float_bits_from_fp16(value);
  }
};

struct F64ToF32 {
  using In = uint64_t;
  using Out = uint32_t;
  static ZCKPT_INLINE Out convert(In bits, uint32_t& overflowed) {
    const double wide = std::bit_cast<double>(bits);
    const uint32_t rounded = std::bit_cast<uint32_t>(static_cast<float>(wide));
    const uint64_t magnitude = bits & 0x7fffffffffffffffU;
    constexpr uint64_t kWideInfinity = 0x7ff0000000000000U;
    overflowed += static_cast<uint32_t>((rounded & kMagnitude) == kInfinity) &
                  static_cast<uint32_t>(magnitude < kWideInfinity);
    const uint32_t nan =
        (static_cast<uint32_t>(bits >> 32) & ~kMagnitude) | kQuietNan;
    return magnitude > kWideInfinity ? nan : rounded;
  }
};

struct F64ToF32Odd {
  using In = uint64_t;
  using Out = uint32_t;
  // All in 64 bits, so that the loop has lanes of one width.
  static ZCKPT_INLINE Out convert(In bits, uint32_t&) {
    constexpr uint64_t kWideMagnitude = 0x7fffffffffffffffU;
    const float nearest = static_cast<float>(std::bit_cast<double>(bits));
    const uint64_t rounded = std::bit_cast<uint32_t>(nearest);
    const uint64_t magnitude = bits & kWideMagnitude;
    const uint64_t back =
        std::bit_cast<uint64_t>(static_cast<double>(nearest)) & kWideMagnitude;
    // Cut towards zero, then make the last bit say "and a little more".
    const uint64_t cut = back > magnitude ? rounded - 1 : rounded;
    const uint64_t odd = back == magnitude ? rounded : cut | 1U;
    const uint64_t nan = (bits >> 32 & ~uint64_t{kMagnitude}) | kQuietNan;
    return static_cast<Out>(magnitude > 0x7ff0000000000000U ? nan : odd);
  }
};

// Short enough for the 32-bit counter, which vectorises best.
constexpr size_t kRun = size_t{1} << 24;

template <typename Conversion>
ZCKPT_INLINE uint64_t run(const std::byte* __restrict in,
                          std::byte* __restrict out, size_t count) {
  using In = typename Conversion::In;
  using Out = typename Conversion::Out;
  uint64_t total = 0;
  while (count != 0) {
    const size_t length = std::min(count, kRun);
    uint32_t overflowed = 0;
    for (size_t i = 0; i < length; ++i) {
      In value;
      std::memcpy(&value, in + i * sizeof(In), sizeof(In));
      const Out result = Conversion::convert(value, overflowed);
      std::memcpy(out + i * sizeof(Out), &result, sizeof(Out));
    }
    total += overflowed;
    in += length * sizeof(In);
    out += length * sizeof(Out);
    count -= length;
  }
  return total;
}

template <typename Conversion>
uint64_t run_portable(const std::byte* in, std::byte* out, size_t count) {
  return run<Conversion>(in, out, count);
}

constexpr CastKernels kPortable{
    run_portable<F32ToBf16>, run_portable<F32ToF16>, run_portable<Bf16ToF32>,
    run_portable<F16ToF32>,  run_portable<F64ToF32>, run_portable<F64ToF32Odd>};

#ifdef __x86_64__

// Dispatched by hand: the resolvers behind target_clones run before
// ThreadSanitizer is up, and crash.
#define ZCKPT_AVX2 __attribute__((target("avx2,f16c")))
#define ZCKPT_AVX512 \
  __attribute__((    \
      target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512cd")))

template <typename Conversion>
ZCKPT_AVX2 uint64_t run_avx2(const std::byte* in, std::byte* out,
                             size_t count) {
  return run<Conversion>(in, out, count);
}

template <typename Conversion>
ZCKPT_AVX512 uint64_t run_avx512(const std::byte* in, std::byte* out,
                                 size_t count) {
  return run<Conversion>(in, out, count);
}

// Eight elements a step by F16C; it keeps payloads of NaN, hence the blends.
ZCKPT_AVX2 uint64_t f32_to_f16_f16c(const std::byte* in, std::byte* out,
                                    size_t count) {
  const __m128i half_magnitude = _mm_set1_epi16(0x7fff);
  const __m128i half_infinity = _mm_set1_epi16(0x7c00);
  const __m128i half_nan = _mm_set1_epi16(0x7e00);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i infinity = _mm256_set1_epi32(0x7f800000);
  uint64_t total = 0;
  const size_t whole = count / 8 * 8;
  for (size_t start = 0; start < whole; start += kRun) {
    __m256i overflowed = _mm256_setzero_si256();
    for (size_t i = start; i < std::min(whole, start + kRun); i += 8) {
      const __m256i bits =
          _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(in + i * 4));
      const __m128i half =
          _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT);
      const __m128i absolute = _mm_and_si128(half, half_magnitude);
      const __m128i nan = _mm_cmpgt_epi16(absolute, half_infinity);
      const __m128i quiet =
          _mm_or_si128(_mm_andnot_si128(half_magnitude, half), half_nan);
      _mm_storeu_si128(reinterpret_cast<__m128i_u*>(out + i * 2),
                       _mm_blendv_epi8(half, quiet, nan));
      const __m256i became =
          _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(absolute, half_infinity));
      const __m256i was =
          _mm256_cmpeq_epi32(_mm256_and_si256(bits, magnitude), infinity);
      overflowed =
          _mm256_sub_epi32(overflowed, _mm256_andnot_si256(was, became));
    }
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), overflowed);
    for (const uint32_t lane : lanes) total += lane;
  }
  return total + run<F32ToF16>(in + whole * 4, out + whole * 2, count - whole);
}

ZCKPT_AVX2 uint64_t f16_to_f32_f16c(const std::byte* in, std::byte* out,
                                    size_t count) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i infinity = _mm256_set1_epi32(0x7f800000);
  const __m256i quiet_nan = _mm256_set1_epi32(0x7fc00000);
  const size_t whole = count / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    const __m128i half =
        _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(in + i * 2));
    const __m256i bits = _mm256_castps_si256(_mm256_cvtph_ps(half));
    const __m256i nan =
        _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), infinity);
    const __m256i quiet =
        _mm256_or_si256(_mm256_andnot_si256(magnitude, bits), quiet_nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i * 4),
                        _mm256_blendv_epi8(bits, quiet, nan));
  }
  return run<F16ToF32>(in + whole * 2, out + whole * 4, count - whole);
}

// Cut towards zero by the instruction's own rounding. The forms with a mask,
// since GCC 12 warns of the others.
ZCKPT_AVX512 uint64_t f64_to_f32_odd_avx512(const std::byte* in, std::byte* out,
                                            size_t count) {
  const size_t whole = count / 8 * 8;
  constexpr __mmask8 kAll = 0xff;
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(~kMagnitude));
  const __m256i quiet_nan = _mm256_set1_epi32(static_cast<int>(kQuietNan));
  for (size_t i = 0; i < whole; i += 8) {
    const __m512d wide = _mm512_loadu_pd(in + i * 8);
    const __m256 cut = _mm512_maskz_cvt_roundpd_ps(
        kAll, wide, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask8 inexact =
        _mm512_cmp_pd_mask(_mm512_maskz_cvtps_pd(kAll, cut), wide, _CMP_NEQ_UQ);
    const __mmask8 nan = _mm512_cmp_pd_mask(wide, wide, _CMP_UNORD_Q);
    const __m256i bits = _mm256_castps_si256(cut);
    const __m256i quiet =
        _mm256_or_si256(_mm256_and_si256(bits, sign), quiet_nan);
    const __m256i odd = _mm256_mask_or_epi32(bits, inexact, bits, one);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i * 4),
                        _mm256_mask_mov_epi32(odd, nan, quiet));
  }
  return run<F64ToF32Odd>(in + whole * 8, out + whole * 4, count - whole);
}

constexpr CastKernels kAvx2{run_avx2<F32ToBf16>, f32_to_f16_f16c,
                            run_avx2<Bf16ToF32>, f16_to_f32_f16c,
                            run_avx2<F64ToF32>,  run_avx2<F64ToF32Odd>};
constexpr CastKernels kAvx512{run_avx512<F32ToBf16>, f32_to_f16_f16c,
                              run_avx512<Bf16ToF32>, f16_to_f32_f16c,
                              run_avx512<F64ToF32>,  f64_to_f32_odd_avx512};

bool has_avx2() {
  // Clang 14 does not know "f16c" by name.
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  return __builtin_cpu_supports("avx2") &&
         __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd");
}

#endif

}  // namespace

const CastKernels* cast_kernels(CpuLevel level) {
  if (level == CpuLevel::Portable) return &kPortable;
#ifdef __x86_64__
  if (level == CpuLevel::Avx2) return has_avx2() ? &kAvx2 : nullptr;
  return has_avx512() ? &kAvx512 : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace zckpt
