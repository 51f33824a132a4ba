// Sixteen lanes in four NEON registers; needs the dot product instructions (Armv8.2).
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace octavo {

struct Neon {
  struct F {
    float32x4_t v[4];
  };
  struct I {
    int32x4_t v[4];
  };
  struct W {
    uint8x16_t v[4];
  };

  static constexpr bool kSigned = true;  // byte codes meet `dot` as signed: vdotq takes equal signs only
  static constexpr bool kWide = false;

  template <class Fn>
  static F each(Fn fn) {
    return {{fn(0), fn(1), fn(2), fn(3)}};
  }
  template <class Fn>
  static W bytes(Fn fn) {
    return {{fn(0), fn(1), fn(2), fn(3)}};
  }
  static F zero() { return set1(0.0f); }
  static F set1(float x) {
    return each([&](int) { return vdupq_n_f32(x); });
  }
  static F load(const float* p) {
    return each([&](int i) { return vld1q_f32(p + 4 * i); });
  }
  static void store(float* p, F a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
  }
  static F load_half(const uint16_t* p) {
    return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
  }
  static void store_half(uint16_t* p, F a) {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
  }
  static F load_bf16(const uint16_t* p) {
    return each([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
  }
  static F load_bytes(const int8_t* p) {
    int8x16_t b = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_s8(vget_high_s8(b));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  static F add(F a, F b) {
    return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  static F div(F a, F b) {
    return each([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
  }
  static F max(F a, F b) {
    return each([&](int i) { return vmaxq_f32(a.v[i], b.v[i]); });
  }
  static F min(F a, F b) {
    return each([&](int i) { return vminq_f32(a.v[i], b.v[i]); });
  }
  static F abs(F a) {
    return each([&](int i) { return vabsq_f32(a.v[i]); });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  static F round(F a) {
    return each([&](int i) { return vrndnq_f32(a.v[i]); });
  }
  static F scale2(F a, F n) {
    return each([&](int i) {
      int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23);
      return vmulq_f32(a.v[i], vreinterpretq_f32_s32(power));
    });
  }
  static F keep(F a, int from, int to, float other) {
    float part[16];
    store(part, a);
    for (int i = 0; i < 16; ++i) part[i] = i >= from && i < to ? part[i] : other;
    return load(part);
  }
  static F to_float(I a) {
    return each([&](int i) { return vcvtq_f32_s32(a.v[i]); });
  }
  static I to_int(F a) {
    return {{vcvtnq_s32_f32(a.v[0]), vcvtnq_s32_f32(a.v[1]), vcvtnq_s32_f32(a.v[2]), vcvtnq_s32_f32(a.v[3])}};
  }
  static I iset1(int32_t x) { return {{vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)}}; }
  static void store_bytes(int8_t* p, I a) {
    int16x8_t low = vcombine_s16(vqmovn_s32(a.v[0]), vqmovn_s32(a.v[1]));
    int16x8_t high = vcombine_s16(vqmovn_s32(a.v[2]), vqmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
  }

  static W wload(const uint8_t* p) {
    return bytes([&](int i) { return vld1q_u8(p + 16 * i); });
  }
  static W low4(W a) {
    return bytes([&](int i) { return vandq_u8(a.v[i], vdupq_n_u8(15)); });
  }
  static W high4(W a) {
    return bytes([&](int i) { return vshrq_n_u8(a.v[i], 4); });
  }
  // Bits of `mask` in the plane, moved from bit `from` to bit 4.
  static uint8x16_t moved(uint8x16_t plane, int from, uint8_t mask) {
    return vandq_u8(vshlq_u8(plane, vdupq_n_s8((int8_t)(4 - from))), vdupq_n_u8(mask));
  }
  template <int S>
  static W add_bit(W code, W plane) {
    return bytes([&](int i) { return vorrq_u8(code.v[i], moved(plane.v[i], S, 16)); });
  }
  template <int S>
  static W add_two(W code, W plane) {
    return bytes([&](int i) { return vorrq_u8(code.v[i], moved(plane.v[i], 2 * S, 48)); });
  }
  static W level(W code, const uint8_t* table) {
    uint8x16_t levels = vld1q_u8(table);
    return byte_codes(bytes([&](int i) { return vqtbl1q_u8(levels, code.v[i]); }));
  }
  static W byte_codes(W a) {
    return bytes([&](int i) { return veorq_u8(a.v[i], vdupq_n_u8(0x80)); });
  }
  static I dot(I acc, W w, const int8_t* a4) {
    int32_t four;
    __builtin_memcpy(&four, a4, 4);
    int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int i = 0; i < 4; ++i) acc.v[i] = vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), a);
    return acc;
  }
  static I dot_byte(I acc, W w, const int8_t* a4) { return dot(acc, w, a4); }
  static I join(I first, I second) {
    for (int i = 0; i < 4; ++i) first.v[i] = vaddq_s32(vshlq_n_s32(first.v[i], 7), second.v[i]);
    return first;
  }
  // Halves, quarters, pairs: the order that every instruction set keeps to.
  static float hsum(F a) {
    float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  static float hmax(F a) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[2]), vmaxq_f32(a.v[1], a.v[3]))); }
  static int32_t hsum_int(I a) { return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[2]), vaddq_s32(a.v[1], a.v[3]))); }
};

}  // namespace octavo
