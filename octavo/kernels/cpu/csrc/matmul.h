// Panels of weights times a tile of tokens. One routine for one token and for sixteen: whatever the tile, each
// output is the same sum in the same order, so the bits of a row do not depend on what runs beside it.
#pragma once
#include "format.h"

namespace octavo {

#ifndef OCTAVO_AHEAD
#define OCTAVO_AHEAD 6144  // bytes that a product asks memory for in advance
#endif

#define OCTAVO_INLINE inline __attribute__((always_inline))
#ifndef OCTAVO_UNROLL
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")
#endif

// ggml's kvalues_iq4nl plus 128.
alignas(16) static const uint8_t kLevels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                129, 141, 153, 166, 181, 197, 217, 241};

struct MatmulArgs {
  const Matrix* matrix;
  const Acts* acts;
  int tile;
  int panel_begin;
  int panel_end;
  float* out;         // the first token's first row of panel_begin
  size_t ld;          // floats from one token to the next
  const float* bias;  // of the matrix's first row, or null
  void* scratch;      // scratch_bytes(groups)
  bool fresh;         // whether the panels come from memory: no tile met them just now
};

static inline size_t matmul_scratch_bytes(int groups) { return (size_t)groups * 2 * kTile * 4; }

template <class V, int L>
struct Codes {
  using W = typename V::W;
  static constexpr bool kByte = L == kB8 || L == kL4;
  static constexpr bool kZeroInit = L == kB4M || L == kB5M || (kByte && V::kSigned);

  static OCTAVO_INLINE void nibbles(const uint8_t* p, W* w) {
    for (int n = 0; n < 4; ++n) {
      W both = V::wload(p + 64 * n);
      w[n] = V::low4(both);
      w[n + 4] = V::high4(both);
    }
  }
  static OCTAVO_INLINE void unpack(const uint8_t* p, W* w) {
    if constexpr (L == kB8) {
      for (int n = 0; n < 8; ++n) w[n] = V::byte_codes(V::wload(p + 64 * n));
      return;
    } else {
      nibbles(p, w);
    }
    if constexpr (L == kB5 || L == kB5M) {
      W plane = V::wload(p + 256);
      w[0] = V::template add_bit<0>(w[0], plane);
      w[1] = V::template add_bit<1>(w[1], plane);
      w[2] = V::template add_bit<2>(w[2], plane);
      w[3] = V::template add_bit<3>(w[3], plane);
      w[4] = V::template add_bit<4>(w[4], plane);
      w[5] = V::template add_bit<5>(w[5], plane);
      w[6] = V::template add_bit<6>(w[6], plane);
      w[7] = V::template add_bit<7>(w[7], plane);
    }
    if constexpr (L == kB6) {
      W first = V::wload(p + 256), second = V::wload(p + 320);
      w[0] = V::template add_two<0>(w[0], first);
      w[1] = V::template add_two<1>(w[1], first);
      w[2] = V::template add_two<2>(w[2], first);
      w[3] = V::template add_two<3>(w[3], first);
      w[4] = V::template add_two<0>(w[4], second);
      w[5] = V::template add_two<1>(w[5], second);
      w[6] = V::template add_two<2>(w[6], second);
      w[7] = V::template add_two<3>(w[7], second);
    }
    if constexpr (L == kL4) {
      for (int n = 0; n < 8; ++n) w[n] = V::level(w[n], kLevels);
    }
  }
  static OCTAVO_INLINE typename V::I dot(typename V::I acc, W w, const int8_t* a4) {
    if constexpr (kByte) return V::dot_byte(acc, w, a4);
    return V::dot(acc, w, a4);
  }
};

// What each group's sums start from: -zero * sum of the codes (int32), or scale * sum (fp32) where there is a minimum.
template <class V, int L>
static void prepare(const Acts& acts, int tile, int width, int32_t* start) {
  using C = Codes<V, L>;
  const int groups = acts.groups;
  const size_t at = (size_t)tile * kTile * groups;
  const int32_t* sum = acts.sum + 2 * at;
  const float* scale = acts.scale + at;
  if constexpr (L == kB4M || L == kB5M) {
    float* offset = (float*)start;
    for (int g = 0; g < groups; ++g) {
      for (int t = 0; t < width; ++t) {
        offset[g * width + t] = scale[g * width + t] * (float)(sum[2 * g * width + t] + sum[(2 * g + 1) * width + t]);
      }
    }
  } else if constexpr (L == kB6) {
    for (int i = 0; i < 2 * groups * width; ++i) start[i] = -32 * sum[i];
  } else if constexpr (!C::kZeroInit) {
    const int zero = L == kB4 ? 8 : L == kB5 ? 16 : 128;
    for (int g = 0; g < groups; ++g) {
      for (int t = 0; t < width; ++t) {
        start[g * width + t] = -zero * (sum[2 * g * width + t] + sum[(2 * g + 1) * width + t]);
      }
    }
  }
}

// B tokens from t on meet one unpacked group. Their sums are independent, which hides the latency of each. With two
// planes of activations (P) both meet the same codes, and their sums are joined as whole numbers.
template <class V, int L, int T, int B, int P>
static OCTAVO_INLINE void dot_tokens(const typename V::W* w, const uint16_t* d, typename V::F d0, const int8_t* q,
                                     const float* scale, const int32_t* start, typename V::F* acc, int t) {
  using C = Codes<V, L>;
  using F = typename V::F;
  using I = typename V::I;
  I low[B], high[B], fine[B], fine_high[B];
  OCTAVO_UNROLL for (int b = 0; b < B; ++b) {
    I begin = V::iset1(C::kZeroInit ? 0 : start[t + b]), zero = V::iset1(0);
    low[b] = P == 1 ? begin : zero;
    if constexpr (P == 2) fine[b] = begin;
    if constexpr (L == kB6) {
      begin = V::iset1(start[T + t + b]);
      high[b] = P == 1 ? begin : zero;
      if constexpr (P == 2) fine_high[b] = begin;
    }
  }
  OCTAVO_UNROLL for (int s = 0; s < 8; ++s) {
    OCTAVO_UNROLL for (int b = 0; b < B; ++b) {
      const int8_t* codes = q + (t + b) * P * kGroup + 4 * s;
      I& to = L == kB6 && s >= 4 ? high[b] : low[b];
      to = C::dot(to, w[s], codes);
      if constexpr (P == 2) {
        I& rest = L == kB6 && s >= 4 ? fine_high[b] : fine[b];
        rest = C::dot(rest, w[s], codes + kGroup);
      }
    }
  }
  if constexpr (P == 2) {
    OCTAVO_UNROLL for (int b = 0; b < B; ++b) {
      low[b] = V::join(low[b], fine[b]);
      if constexpr (L == kB6) high[b] = V::join(high[b], fine_high[b]);
    }
  }
  OCTAVO_UNROLL for (int b = 0; b < B; ++b) {
    F s = V::set1(scale[t + b]);
    if constexpr (L == kB6) {
      F sum = V::mul(V::to_float(low[b]), d0);
      sum = V::fma(V::to_float(high[b]), V::load_half(d + 16), sum);
      acc[t + b] = V::fma(sum, s, acc[t + b]);
    } else {
      acc[t + b] = V::fma(V::mul(V::to_float(low[b]), s), d0, acc[t + b]);
      if constexpr (L == kB4M || L == kB5M) {
        acc[t + b] = V::fma(V::load_half(d + 16), V::set1(((const float*)start)[t + b]), acc[t + b]);
      }
    }
  }
}

template <class V, int L, int T, int P>
static OCTAVO_INLINE void quant_group(const uint8_t* codes, const uint16_t* d, const int8_t* q, const float* scale,
                                      const int32_t* start, typename V::F* acc) {
  constexpr int B = T % 4 == 0 ? 4 : T % 3 == 0 ? 3 : T % 2 == 0 ? 2 : 1;
  typename V::W w[8];
  Codes<V, L>::unpack(codes, w);
  typename V::F d0 = V::load_half(d);
  if constexpr (V::kWide) {
    OCTAVO_UNROLL for (int t = 0; t < T; t += B) dot_tokens<V, L, T, B, P>(w, d, d0, q, scale, start, acc, t);
  } else {
    _Pragma("GCC unroll 1") for (int t = 0; t < T; t += B) dot_tokens<V, L, T, B, P>(w, d, d0, q, scale, start, acc, t);
  }
}

template <class V, int L, int T>
static OCTAVO_INLINE void float_group(const uint8_t* codes, const float* x, typename V::F* acc) {
  for (int k = 0; k < kGroup; ++k) {
    typename V::F w;
    if constexpr (L == kF32) w = V::load((const float*)codes + 16 * k);
    if constexpr (L == kF16) w = V::load_half((const uint16_t*)codes + 16 * k);
    if constexpr (L == kBF16) w = V::load_bf16((const uint16_t*)codes + 16 * k);
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) acc[t] = V::fma(w, V::set1(x[k * T + t]), acc[t]);
  }
}

template <class V>
static OCTAVO_INLINE void put(typename V::F v, float* to, int rows) {
  if (rows >= 16) return V::store(to, v);
  float part[16];
  V::store(part, v);
  for (int i = 0; i < rows; ++i) to[i] = part[i];
}

// Asks memory for codes some groups on, over the end of the panel if need be, and for the next panel's scales. Those lie
// behind its codes, where the processor's own prefetching does not look: each panel would begin with a wait.
static OCTAVO_INLINE void prefetch(const Matrix& m, const LayoutInfo& info, const uint8_t* panel, int group) {
  const size_t codes = (size_t)m.groups * info.code_bytes;
  size_t ahead = (size_t)group * info.code_bytes + OCTAVO_AHEAD;
  if (ahead >= codes) ahead += m.stride - codes;
  for (int line = 0; line < info.code_bytes; line += 64) __builtin_prefetch(panel + ahead + line, 0, 2);
  if (info.scale_bytes) __builtin_prefetch(panel + m.stride + codes + (size_t)group * info.scale_bytes, 0, 2);
}

template <class V, int L, int T, int P>
static void matmul_tile(const MatmulArgs& args) {
  using F = typename V::F;
  const Matrix& m = *args.matrix;
  const Acts& acts = *args.acts;
  const int groups = m.groups, tokens = acts.tokens - args.tile * kTile < T ? acts.tokens - args.tile * kTile : T;
  const LayoutInfo info = layout_info(L);
  const size_t at = (size_t)args.tile * kTile * groups;
  int32_t* start = (int32_t*)args.scratch;
  if constexpr (L < kF32) prepare<V, L>(acts, args.tile, T, start);
  const F unit = V::set1(m.unit);
  for (int panel = args.panel_begin; panel < args.panel_end; ++panel) {
    const uint8_t* codes = m.data + panel * m.stride;
    const uint8_t* scales = codes + (size_t)groups * info.code_bytes;
    F acc[T];
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) acc[t] = V::zero();
    for (int g = 0; g < groups; ++g) {
      if (T < kTile || args.fresh) prefetch(m, info, codes, g);
      if constexpr (L < kF32) {
        constexpr int starts = L == kB6 ? 2 : 1;
        quant_group<V, L, T, P>(codes + (size_t)g * info.code_bytes, (const uint16_t*)(scales + (size_t)g * info.scale_bytes),
                             acts.q + (at + (size_t)g * T) * kGroup * P, acts.scale + at + (size_t)g * T,
                             start + (size_t)g * T * starts, acc);
      } else {
        float_group<V, L, T>(codes + (size_t)g * info.code_bytes, acts.x + (at + (size_t)g * T) * kGroup, acc);
      }
    }
    const int row = panel * kRows, rows = m.rows - row;
    F bias = V::zero();
    if (args.bias) {
      float part[16] = {};
      for (int i = 0; i < 16 && i < rows; ++i) part[i] = args.bias[row + i];
      bias = V::load(part);
    }
    for (int t = 0; t < tokens; ++t) put<V>(V::fma(acc[t], unit, bias), args.out + t * args.ld + row - args.panel_begin * kRows, rows);
  }
}

template <class V, int L, int P>
static void matmul_layout(const MatmulArgs& args) {
  switch (act_width(*args.acts, args.tile)) {
    case 1: return matmul_tile<V, L, 1, P>(args);
    case 6: return matmul_tile<V, L, 6, P>(args);
#ifndef OCTAVO_FEW_TILES
    case 2: return matmul_tile<V, L, 2, P>(args);
    case 3: return matmul_tile<V, L, 3, P>(args);
    case 4: return matmul_tile<V, L, 4, P>(args);
    case 8: return matmul_tile<V, L, 8, P>(args);
    case 12: return matmul_tile<V, L, 12, P>(args);
#endif
    default: return matmul_tile<V, L, 16, P>(args);
  }
}

template <class V, int L>
static void matmul_planes(const MatmulArgs& args) {
  if constexpr (L < kF32) {
    if (args.acts->planes == 2) return matmul_layout<V, L, 2>(args);
  }
  return matmul_layout<V, L, 1>(args);
}

template <class V>
static void matmul(const MatmulArgs& args) {
  switch (args.matrix->layout) {
    case kB4: return matmul_planes<V, kB4>(args);
    case kB4M: return matmul_planes<V, kB4M>(args);
    case kB5: return matmul_planes<V, kB5>(args);
    case kB5M: return matmul_planes<V, kB5M>(args);
    case kB6: return matmul_planes<V, kB6>(args);
    case kB8: return matmul_planes<V, kB8>(args);
    case kL4: return matmul_planes<V, kL4>(args);
    case kF32: return matmul_planes<V, kF32>(args);
    case kF16: return matmul_planes<V, kF16>(args);
    default: return matmul_planes<V, kBF16>(args);
  }
}

}  // namespace octavo
