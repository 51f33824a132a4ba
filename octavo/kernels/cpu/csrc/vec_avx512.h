// Sixteen lanes in one AVX-512 register; needs F, BW, VL, VNNI.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace octavo {

struct Avx512 {
  using F = __m512;   // sixteen fp32
  using I = __m512i;  // sixteen int32
  using W = __m512i;  // 64 weight codes: sixteen rows of four

  static constexpr bool kSigned = false;  // codes meet `dot` as unsigned bytes
  static constexpr bool kWide = true;     // registers for sixteen sums at once

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float v) { return _mm512_set1_ps(v); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  static void store_half(uint16_t* p, F v) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static F load_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
  }
  static F load_bytes(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // a * 2^n for whole n in [-126, 127].
  static F scale2(F a, F n) { return _mm512_scalef_ps(a, n); }
  // Lanes `from` <= i < `to` of a, others `other`.
  static F keep(F a, int from, int to, float other) {
    __mmask16 m = (__mmask16)((to >= 16 ? 0xFFFFu : (1u << to) - 1u) & ~((1u << from) - 1u));
    return _mm512_mask_mov_ps(_mm512_set1_ps(other), m, a);
  }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I to_int(F a) { return _mm512_cvtps_epi32(a); }
  static I iset1(int32_t v) { return _mm512_set1_epi32(v); }
  static void store_bytes(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(a)); }

  static W wload(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static W low4(W a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
  static W high4(W a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
  // Codes with bit S of each plane byte added as bit 4.
  template <int S>
  static W add_bit(W code, W plane) {
    W moved = S < 4 ? _mm512_slli_epi16(plane, 4 - (S < 4 ? S : 4)) : _mm512_srli_epi16(plane, S < 4 ? 0 : S - 4);
    return _mm512_ternarylogic_epi32(code, moved, _mm512_set1_epi8(16), 0xF8);
  }
  // Codes with bits 2S, 2S+1 of each plane byte added as bits 4, 5.
  template <int S>
  static W add_two(W code, W plane) {
    W moved = S < 2 ? _mm512_slli_epi16(plane, 4 - (S < 2 ? 2 * S : 4)) : _mm512_srli_epi16(plane, S < 2 ? 0 : 2 * S - 4);
    return _mm512_ternarylogic_epi32(code, moved, _mm512_set1_epi8(48), 0xF8);
  }
  static W level(W code, const uint8_t* table) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), code);
  }
  static W byte_codes(W a) { return a; }
  // In assembly because GCC 12 puts four codes into a register of their own first.
  static I dot(I acc, W w, const int8_t* a4) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t*)a4));
    return acc;
  }
  static I dot_byte(I acc, W w, const int8_t* a4) { return dot(acc, w, a4); }
  static I join(I first, I second) { return _mm512_add_epi32(_mm512_slli_epi32(first, 7), second); }
  // Halves, quarters, pairs: the order that every instruction set keeps to.
  static float hsum(F v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static float hmax(F v) {
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
  static int32_t hsum_int(I v) {
    __m256i a = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti32x8_epi32(v, 1));
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
  }
};

}  // namespace octavo
