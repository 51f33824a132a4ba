// Sixteen lanes as plain loops: for machines without a faster form, and as the truth that others are tested against.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo {

struct Plain {
  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };
  struct W {
    uint8_t v[64];
  };

  static constexpr bool kSigned = false;
  static constexpr bool kWide = false;

  template <class Fn>
  static F each(Fn fn) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
    return r;
  }
  static float bits(uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
  static float half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, part = h & 1023;
    if (exponent == 31) return bits(sign | 0x7F800000 | part << 13);
    if (exponent) return bits(sign | (exponent + 112) << 23 | part << 13);
    float f = (float)part * 5.9604644775390625e-08f;  // 2^-24
    return sign ? -f : f;
  }
  static uint16_t to_half(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    uint32_t a = u & 0x7FFFFFFF;
    if (a > 0x7F800000) return sign | 0x7E00;
    if (a >= 0x47800000) return sign | 0x7C00;  // 65536 and more
    if (a < 0x38800000) {                       // below the least normal half
      return sign | (uint16_t)std::nearbyint(bits(a) * 16777216.0f);
    }
    uint32_t r = a - 0x38000000;
    r += 0xFFF + (r >> 13 & 1);
    return sign | (uint16_t)(r >> 13);
  }

  static F zero() { return set1(0); }
  static F set1(float v) {
    return each([&](int) { return v; });
  }
  static F load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, F a) { std::memcpy(p, a.v, 64); }
  static F load_half(const uint16_t* p) {
    return each([&](int i) { return half(p[i]); });
  }
  static void store_half(uint16_t* p, F a) {
    for (int i = 0; i < 16; ++i) p[i] = to_half(a.v[i]);
  }
  static F load_bf16(const uint16_t* p) {
    return each([&](int i) { return bits((uint32_t)p[i] << 16); });
  }
  static F load_bytes(const int8_t* p) {
    return each([&](int i) { return (float)p[i]; });
  }
  static F add(F a, F b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F max(F a, F b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F abs(F a) {
    return each([&](int i) { return std::fabs(a.v[i]); });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static F round(F a) {
    return each([&](int i) { return std::nearbyint(a.v[i]); });
  }
  static F scale2(F a, F n) {
    return each([&](int i) { return a.v[i] * bits((uint32_t)((int32_t)n.v[i] + 127) << 23); });
  }
  static F keep(F a, int from, int to, float other) {
    return each([&](int i) { return i >= from && i < to ? a.v[i] : other; });
  }
  static F to_float(I a) {
    return each([&](int i) { return (float)a.v[i]; });
  }
  static I to_int(F a) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = (int32_t)std::nearbyint(a.v[i]);
    return r;
  }
  static I iset1(int32_t v) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = v;
    return r;
  }
  static void store_bytes(int8_t* p, I a) {
    for (int i = 0; i < 16; ++i) p[i] = (int8_t)(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
  }

  template <class Fn>
  static W bytes(Fn fn) {
    W r;
    for (int i = 0; i < 64; ++i) r.v[i] = (uint8_t)fn(i);
    return r;
  }
  static W wload(const uint8_t* p) {
    return bytes([&](int i) { return p[i]; });
  }
  static W low4(W a) {
    return bytes([&](int i) { return a.v[i] & 15; });
  }
  static W high4(W a) {
    return bytes([&](int i) { return a.v[i] >> 4; });
  }
  template <int S>
  static W add_bit(W code, W plane) {
    return bytes([&](int i) { return code.v[i] | (plane.v[i] >> S & 1) << 4; });
  }
  template <int S>
  static W add_two(W code, W plane) {
    return bytes([&](int i) { return code.v[i] | (plane.v[i] >> 2 * S & 3) << 4; });
  }
  static W level(W code, const uint8_t* table) {
    return bytes([&](int i) { return table[code.v[i]]; });
  }
  static W byte_codes(W a) { return a; }
  static I dot(I acc, const W& w, const int8_t* a4) {
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 4; ++k) acc.v[i] += (int32_t)w.v[4 * i + k] * a4[k];
    }
    return acc;
  }
  static I dot_byte(I acc, const W& w, const int8_t* a4) { return dot(acc, w, a4); }
  // Sums over the two planes of activations: 128 * first + second.
  static I join(I first, I second) {
    for (int i = 0; i < 16; ++i) first.v[i] = 128 * first.v[i] + second.v[i];
    return first;
  }
  // In the order of AVX-512's own reduction: halves, quarters, pairs.
  static float hsum(F a) {
    for (int n = 8; n; n /= 2) {
      for (int i = 0; i < n; ++i) a.v[i] += a.v[i + n];
    }
    return a.v[0];
  }
  static float hmax(F a) {
    for (int i = 1; i < 16; ++i) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
    return a.v[0];
  }
  static int32_t hsum_int(I a) {
    for (int i = 1; i < 16; ++i) a.v[0] += a.v[i];
    return a.v[0];
  }
};

}  // namespace octavo
