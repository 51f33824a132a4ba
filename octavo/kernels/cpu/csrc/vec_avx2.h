// Sixteen lanes in two AVX2 registers; with -mavxvnni the dot product is one instruction.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace octavo {

#ifdef __AVXVNNI__
#define OCTAVO_VEC Avx2Vnni
#else
#define OCTAVO_VEC Avx2
#endif

struct OCTAVO_VEC {
  struct F {
    __m256 lo, hi;
  };
  struct I {
    __m256i lo, hi;
  };
  using W = I;

  static constexpr bool kWide = false;
#ifdef __AVXVNNI__
  static constexpr bool kSigned = false;
#else
  static constexpr bool kSigned = true;  // byte codes meet `dot` as signed: vpmaddubsw would saturate
#endif

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
  }
  static F load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
  }
  static void store_half(uint16_t* p, F v) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static __m256 bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
  }
  static F load_bf16(const uint16_t* p) { return {bf16(p), bf16(p + 8)}; }
  static F load_bytes(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static F abs(F a) {
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
    return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
  }
  static F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
  static F round(F a) {
    return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static __m256 pow2(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  static F scale2(F a, F n) { return {_mm256_mul_ps(a.lo, pow2(n.lo)), _mm256_mul_ps(a.hi, pow2(n.hi))}; }
  static F keep(F a, int from, int to, float other) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i low = _mm256_set1_epi32(from - 1), high = _mm256_set1_epi32(to);
    __m256i lane8 = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
    __m256 m0 = _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane, low), _mm256_cmpgt_epi32(high, lane)));
    __m256 m1 = _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane8, low), _mm256_cmpgt_epi32(high, lane8)));
    __m256 o = _mm256_set1_ps(other);
    return {_mm256_blendv_ps(o, a.lo, m0), _mm256_blendv_ps(o, a.hi, m1)};
  }
  static F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  static I to_int(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
  static I iset1(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
  static void store_bytes(int8_t* p, I a) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }

  static W wload(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
  }
  static W band(W a, int v) {
    __m256i m = _mm256_set1_epi8((char)v);
    return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
  }
  static W bor(W a, W b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
  template <int S>
  static W right(W a) {
    return {_mm256_srli_epi16(a.lo, S), _mm256_srli_epi16(a.hi, S)};
  }
  template <int S>
  static W left(W a) {
    return {_mm256_slli_epi16(a.lo, S), _mm256_slli_epi16(a.hi, S)};
  }
  static W low4(W a) { return band(a, 15); }
  static W high4(W a) { return band(right<4>(a), 15); }
  template <int S>
  static W add_bit(W code, W plane) {
    W moved = S < 4 ? left<S < 4 ? 4 - S : 0>(plane) : right<S < 4 ? 0 : S - 4>(plane);
    return bor(code, band(moved, 16));
  }
  template <int S>
  static W add_two(W code, W plane) {
    W moved = S < 2 ? left<S < 2 ? 4 - 2 * S : 0>(plane) : right<S < 2 ? 0 : 2 * S - 4>(plane);
    return bor(code, band(moved, 48));
  }
  static W level(W code, const uint8_t* table) {
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return byte_codes({_mm256_shuffle_epi8(t, code.lo), _mm256_shuffle_epi8(t, code.hi)});
  }
  // Unsigned byte codes in the form that `dot_byte` takes.
  static W byte_codes(W a) {
    if (!kSigned) return a;
    __m256i m = _mm256_set1_epi8((char)0x80);
    return {_mm256_xor_si256(a.lo, m), _mm256_xor_si256(a.hi, m)};
  }
  static __m256i four(const int8_t* a4) {
    int32_t v;
    __builtin_memcpy(&v, a4, 4);
    return _mm256_set1_epi32(v);
  }
#ifdef __AVXVNNI__
  static I dot(I acc, W w, const int8_t* a4) {
    __m256i a = four(a4);
    return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, a), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, a)};
  }
  static I dot_byte(I acc, W w, const int8_t* a4) { return dot(acc, w, a4); }
#else
  static __m256i madd(__m256i acc, __m256i u, __m256i s) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
  }
  static I dot(I acc, W w, const int8_t* a4) {
    __m256i a = four(a4);
    return {madd(acc.lo, w.lo, a), madd(acc.hi, w.hi, a)};
  }
  // Signed times signed: |w| times the activation with w's sign. 128 * 127 * 2 fits sixteen bits.
  static I dot_byte(I acc, W w, const int8_t* a4) {
    __m256i a = four(a4);
    return {madd(acc.lo, _mm256_abs_epi8(w.lo), _mm256_sign_epi8(a, w.lo)),
            madd(acc.hi, _mm256_abs_epi8(w.hi), _mm256_sign_epi8(a, w.hi))};
  }
#endif
  static I join(I first, I second) {
    return {_mm256_add_epi32(_mm256_slli_epi32(first.lo, 7), second.lo),
            _mm256_add_epi32(_mm256_slli_epi32(first.hi, 7), second.hi)};
  }
  // In the order of AVX-512's own reduction: halves, quarters, pairs.
  static float hsum(F v) {
    __m256 a = _mm256_add_ps(v.lo, v.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static float hmax(F v) {
    __m256 a = _mm256_max_ps(v.lo, v.hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
  static int32_t hsum_int(I v) {
    __m256i a = _mm256_add_epi32(v.lo, v.hi);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
  }
};

}  // namespace octavo
