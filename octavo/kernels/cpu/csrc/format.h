// How weights and activations lie in memory. Every instruction set reads the same form.
//
// A weight matrix is cut into panels of sixteen rows, a panel into groups of 32 columns. In a group, step s of eight
// holds columns 4s to 4s + 3 of all sixteen rows, byte 4 * row + column: what one vpdpbusd takes. Codes are unsigned;
// a group's value is d * (code - zero) or d * code + m, with d and m in fp16, one a row, scaled by `Matrix::unit`,
// a power of two for the whole matrix that keeps them clear of fp16's ends.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

enum Layout : int32_t {
  kB4 = 0,   // nibbles, zero 8
  kB4M = 1,  // nibbles and a minimum
  kB5 = 2,   // nibbles and a plane of fifth bits, zero 16
  kB5M = 3,
  kB6 = 4,  // nibbles and a plane of two bits, zero 32; a scale for each sixteen columns
  kB8 = 5,  // bytes, zero 128
  kL4 = 6,  // nibbles that index the sixteen IQ4 levels
  kF32 = 7,
  kF16 = 8,
  kBF16 = 9,
  kLayouts = 10,
};

constexpr int kRows = 16;   // of a panel
constexpr int kGroup = 32;  // columns
constexpr int kTile = 16;   // most tokens that meet a panel at once

struct LayoutInfo {
  int code_bytes;   // of a group
  int scale_bytes;  // of a group
  int zero;
};

static inline LayoutInfo layout_info(int layout) {
  switch (layout) {
    case kB4: return {256, 32, 8};
    case kB4M: return {256, 64, 0};
    case kB5: return {320, 32, 16};
    case kB5M: return {320, 64, 0};
    case kB6: return {384, 64, 32};
    case kB8: return {512, 32, 128};
    case kL4: return {256, 32, 128};
    case kF32: return {kGroup * kRows * 4, 0, 0};
    default: return {kGroup * kRows * 2, 0, 0};
  }
}

struct Matrix {
  int32_t layout = 0;
  int32_t rows = 0;     // outputs
  int32_t columns = 0;  // inputs
  int32_t groups = 0;   // of columns, the last one filled up with zeros
  int32_t panels = 0;
  float unit = 1.0f;
  size_t stride = 0;  // bytes of a panel: its codes, then its scales
  uint8_t* data = nullptr;
};

static inline bool is_float(int layout) { return layout >= kF32; }

// Tokens of a tile that a kernel exists for; a tile of fewer is padded up.
static inline int tile_width(int tokens) {
#ifdef OCTAVO_FEW_TILES  // for checks that must compile soon
  return tokens <= 1 ? 1 : tokens <= 6 ? 6 : 16;
#endif
  return tokens <= 4 ? tokens : tokens <= 6 ? 6 : tokens <= 8 ? 8 : tokens <= 12 ? 12 : 16;
}

// Rows of activations, quantized: tile by tile, and in a tile [group][token], so that a kernel reads straight on.
struct Acts {
  int32_t tokens = 0;
  int32_t groups = 0;
  int32_t planes = 1;       // of codes: one of 8 bits, or two that make 15 bits, 128 * first + second
  int8_t* q = nullptr;      // [tile][group][token][plane][32]
  float* scale = nullptr;   // [tile][group][token]
  int32_t* sum = nullptr;   // [tile][group][2][token], of each sixteen codes, planes joined
  float* x = nullptr;       // [tile][group][32][token], the same in fp32, for float weights
};

static inline int act_width(const Acts& a, int tile) {
  int left = a.tokens - tile * kTile;
  return left >= kTile ? kTile : tile_width(left);
}

}  // namespace octavo
