// GGUF blocks apart: codes, and for each sixteen of them a scale and an offset, value = d * code + m.
// Layouts: ggml-common.h; formulas: ggml-quants.c.
#pragma once
#include <cstdint>
#include <cstring>

#include "vec_plain.h"

namespace octavo {

enum QType : int32_t {
  kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ2_K = 10, kQ3_K = 11, kQ4_K = 12,
  kQ5_K = 13, kQ6_K = 14, kIQ4_NL = 20, kIQ4_XS = 23,
};

struct BlockInfo {
  int values;
  int bytes;
};

static inline BlockInfo block_info(int qtype) {
  switch (qtype) {
    case kQ4_0: case kIQ4_NL: return {32, 18};
    case kQ4_1: return {32, 20};
    case kQ5_0: return {32, 22};
    case kQ5_1: return {32, 24};
    case kQ8_0: return {32, 34};
    case kQ2_K: return {256, 84};
    case kQ3_K: return {256, 110};
    case kQ4_K: return {256, 144};
    case kQ5_K: return {256, 176};
    case kQ6_K: return {256, 210};
    case kIQ4_XS: return {256, 136};
    default: return {0, 0};
  }
}

static inline float half_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return Plain::half(h);
}

// Six-bit scale and minimum j of a Q4_K or Q5_K block.
static inline void k_scale(const uint8_t* packed, int j, int* scale, int* least) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *least = packed[j + 4] & 63;
  } else {
    *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
    *least = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
  }
}

// Six-bit signed scale j of a Q3_K block.
static inline int q3_scale(const uint8_t* packed, int j) {
  int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
  int high = packed[8 + j % 4] >> 2 * (j / 4) & 3;
  return (low | high << 4) - 32;
}

// d and m of each sixteen values of one block.
static inline void block_scales(int qtype, const uint8_t* b, float* d, float* m) {
  const int runs = block_info(qtype).values / 16;
  for (int j = 0; j < runs; ++j) {
    int s = 0, l = 0;
    switch (qtype) {
      case kQ4_0: d[j] = half_at(b); m[j] = -8 * d[j]; break;
      case kQ5_0: d[j] = half_at(b); m[j] = -16 * d[j]; break;
      case kQ8_0: case kIQ4_NL: d[j] = half_at(b); m[j] = -128 * d[j]; break;
      case kQ4_1: case kQ5_1: d[j] = half_at(b); m[j] = half_at(b + 2); break;
      case kQ2_K: d[j] = half_at(b + 80) * (b[j] & 15); m[j] = -half_at(b + 82) * (b[j] >> 4); break;
      case kQ3_K: d[j] = half_at(b + 108) * q3_scale(b + 96, j); m[j] = -4 * d[j]; break;
      case kQ4_K: case kQ5_K:
        k_scale(b + 4, j / 2, &s, &l);
        d[j] = half_at(b) * s;
        m[j] = -half_at(b + 2) * l;
        break;
      case kQ6_K: d[j] = half_at(b + 208) * (int8_t)b[192 + j]; m[j] = -32 * d[j]; break;
      case kIQ4_XS: {
        const int g = j / 2;
        const int low = b[4 + g / 2] >> 4 * (g % 2) & 15, high = (b[2] | b[3] << 8) >> 2 * g & 3;
        d[j] = half_at(b) * ((low | high << 4) - 32);
        m[j] = -128 * d[j];
        break;
      }
      default: d[j] = m[j] = 0;
    }
  }
}

static inline void low_high(const uint8_t* packed, int n, uint8_t* code) {
  for (int i = 0; i < n; ++i) {
    code[i] = packed[i] & 15;
    code[n + i] = packed[i] >> 4;
  }
}

static inline void fifth(const uint8_t* bits, uint8_t* code) {
  uint32_t word;
  std::memcpy(&word, bits, 4);
  for (int i = 0; i < 32; ++i) code[i] |= (word >> i & 1) << 4;
}

// Unsigned codes of one block; IQ4 codes are indexes into the levels.
static inline void block_codes(int qtype, const uint8_t* b, uint8_t* code) {
  switch (qtype) {
    case kQ4_0: case kIQ4_NL: return low_high(b + 2, 16, code);
    case kQ4_1: return low_high(b + 4, 16, code);
    case kQ5_0: low_high(b + 6, 16, code); return fifth(b + 2, code);
    case kQ5_1: low_high(b + 8, 16, code); return fifth(b + 4, code);
    case kQ8_0:
      for (int i = 0; i < 32; ++i) code[i] = b[2 + i] ^ 0x80;
      return;
    case kQ2_K:
      for (int i = 0; i < 256; ++i) code[i] = b[16 + i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
      return;
    case kQ3_K:
      for (int i = 0; i < 256; ++i) {
        code[i] = (b[32 + i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3) | (b[i % 32] >> i / 32 & 1) << 2;
      }
      return;
    case kQ4_K:
      for (int n = 0; n < 4; ++n) low_high(b + 16 + 32 * n, 32, code + 64 * n);
      return;
    case kQ5_K:
      for (int n = 0; n < 4; ++n) low_high(b + 48 + 32 * n, 32, code + 64 * n);
      for (int g = 0; g < 8; ++g) {
        for (int i = 0; i < 32; ++i) code[32 * g + i] |= (b[16 + i] >> g & 1) << 4;
      }
      return;
    case kQ6_K:
      for (int n = 0; n < 2; ++n) {
        low_high(b + 64 * n, 64, code + 128 * n);
        for (int g = 0; g < 4; ++g) {
          for (int i = 0; i < 32; ++i) code[128 * n + 32 * g + i] |= (b[128 + 32 * n + i] >> 2 * g & 3) << 4;
        }
      }
      return;
    case kIQ4_XS:
      for (int g = 0; g < 8; ++g) low_high(b + 8 + 16 * g, 16, code + 32 * g);
      return;
    default: return;
  }
}

}  // namespace octavo
