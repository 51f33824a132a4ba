// Work on one row of activations: norms, quantization, rotation, gates. All in fp32, sixteen lanes at a time.
#pragma once
#include <cmath>
#include <cstring>

#include "matmul.h"

namespace octavo {

enum Activation : int32_t { kSilu = 0, kGeluTanh = 1, kGelu = 2 };
enum KvType : int32_t { kKvF32 = 0, kKvF16 = 1, kKvBF16 = 2, kKvInt8 = 3 };

// Of one head of a block of int8: codes for `size` tokens, then their scales in fp16. Two bytes a token: as if the head
// had two more dims.
static inline size_t int8_head_bytes(int size, int dim) { return (size_t)size * (dim + 2); }


// e^x to about one unit in the last place, for any x; below -87 it gives about 1e-38.
template <class V>
static OCTAVO_INLINE typename V::F exp_of(typename V::F x) {
  using F = typename V::F;
  x = V::min(V::max(x, V::set1(-87.3f)), V::set1(88.3f));
  F n = V::round(V::mul(x, V::set1(1.44269504f)));
  F r = V::fma(n, V::set1(-0.693359375f), x);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  F p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  p = V::fma(V::mul(p, r), r, V::add(r, V::set1(1.0f)));
  return V::scale2(p, n);
}

template <class V>
static OCTAVO_INLINE typename V::F tanh_of(typename V::F x) {
  using F = typename V::F;
  F one = V::set1(1.0f);
  return V::sub(one, V::div(V::set1(2.0f), V::add(one, exp_of<V>(V::add(x, x)))));
}

template <class V>
static OCTAVO_INLINE typename V::F activate(typename V::F x, int kind) {
  using F = typename V::F;
  F one = V::set1(1.0f);
  if (kind == kSilu) return V::div(x, V::add(one, exp_of<V>(V::sub(V::zero(), x))));
  if (kind == kGeluTanh) {
    F cube = V::mul(V::mul(x, x), x);
    F inner = V::mul(V::set1(0.7978845608f), V::fma(V::set1(0.044715f), cube, x));
    return V::mul(V::mul(V::set1(0.5f), x), V::add(one, tanh_of<V>(inner)));
  }
  float part[16];
  V::store(part, x);
  for (float& v : part) v = 0.5f * v * (1.0f + erff(v * 0.70710678f));
  return V::load(part);
}

// Sum of squares of n floats, in an order fixed by n.
template <class V>
static float square_sum(const float* x, int n) {
  typename V::F sum = V::zero();
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    typename V::F v = V::load(x + i);
    sum = V::fma(v, v, sum);
  }
  float total = V::hsum(sum);
  for (; i < n; ++i) total += x[i] * x[i];
  return total;
}

// RMS norm (Zhang and Sennrich 2019); `out` may be x.
template <class V>
static void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  const float factor = 1.0f / sqrtf(square_sum<V>(x, n) / (float)n + eps);
  typename V::F f = V::set1(factor);
  int i = 0;
  for (; i + 16 <= n; i += 16) V::store(out + i, V::mul(V::mul(V::load(x + i), f), V::load(weight + i)));
  for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

// 32 values to codes in [-127, 127], a scale, and the sums of both halves. With two planes the second holds what the
// first leaves over, in 128ths.
template <class V>
static OCTAVO_INLINE void quantize_group(const float* x, int8_t* q, float* scale, int32_t* sum, int width,
                                         int planes) {
  using F = typename V::F;
  F a = V::load(x), b = V::load(x + 16);
  float top = V::hmax(V::max(V::abs(a), V::abs(b)));
  F inverse = V::set1(top > 1e-30f ? 127.0f / top : 0.0f);
  typename V::I ia = V::to_int(V::mul(a, inverse)), ib = V::to_int(V::mul(b, inverse));
  V::store_bytes(q, ia);
  V::store_bytes(q + 16, ib);
  *scale = top / 127.0f;
  sum[0] = V::hsum_int(ia);
  sum[width] = V::hsum_int(ib);
  if (planes == 1) return;
  const F fine = V::set1(128.0f);
  typename V::I la = V::to_int(V::mul(V::sub(V::mul(a, inverse), V::to_float(ia)), fine));
  typename V::I lb = V::to_int(V::mul(V::sub(V::mul(b, inverse), V::to_float(ib)), fine));
  V::store_bytes(q + kGroup, la);
  V::store_bytes(q + kGroup + 16, lb);
  *scale = top / (127.0f * 128.0f);
  sum[0] = 128 * sum[0] + V::hsum_int(la);
  sum[width] = 128 * sum[width] + V::hsum_int(lb);
}

// One group of one token into its place among the activations.
template <class V>
static OCTAVO_INLINE void put_group(const Acts& acts, int token, int group, const float* x, bool codes, bool floats) {
  const int tile = token / kTile, t = token % kTile, width = act_width(acts, tile);
  const size_t at = (size_t)tile * kTile * acts.groups + (size_t)group * width;
  if (codes) {
    quantize_group<V>(x, acts.q + (at + t) * kGroup * acts.planes, acts.scale + at + t, acts.sum + 2 * at + t, width,
                      acts.planes);
  }
  if (floats) {
    float* to = acts.x + at * kGroup + t;
    for (int k = 0; k < kGroup; ++k) to[(size_t)k * width] = x[k];
  }
}

template <class V>
static void put_one(const Acts& acts, int token, int group, const float* x, bool codes, bool floats) {
  put_group<V>(acts, token, group, x, codes, floats);
}

// n floats of one token; the last group is filled up with zeros.
template <class V>
static void put_row(const Acts& acts, int token, const float* x, int n, bool codes, bool floats) {
  int group = 0;
  for (; (group + 1) * kGroup <= n; ++group) put_group<V>(acts, token, group, x + group * kGroup, codes, floats);
  if (group < acts.groups) {
    float part[kGroup] = {};
    memcpy(part, x + group * kGroup, (size_t)(n - group * kGroup) * 4);
    put_group<V>(acts, token, group, part, codes, floats);
  }
}

// The place of the first largest of n floats and, in *best, its value; NaN there if any of them is NaN.
template <class V>
static int64_t argmax(const float* x, int64_t n, float* best) {
  typename V::F most = V::set1(-INFINITY);
  uint32_t bad = 0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    most = V::max(most, V::load(x + i));
    uint32_t bits[16];
    memcpy(bits, x + i, 64);
    for (uint32_t b : bits) bad |= (b & 0x7FFFFFFF) > 0x7F800000;
  }
  float top = V::hmax(most);
  for (; i < n; ++i) {
    top = x[i] > top ? x[i] : top;
    bad |= x[i] != x[i];
  }
  *best = bad ? NAN : top;
  for (i = 0; i < n && !bad; ++i) {
    if (x[i] == top) return i;
  }
  return 0;
}

struct CombineArgs {
  float* residual;          // [n], becomes residual + multiplier * norm(add)
  const float* add;         // [n] or null
  const float* after_norm;  // weight over `add`, or null
  const float* next_norm;   // weight of the norm before what comes next, or null
  float multiplier;
  float eps;
  int n;
  float* out;  // [n], the normed row
};

// The addition to the residual stream, with the norms round it.
template <class V>
static void combine(const CombineArgs& a) {
  if (a.add) {
    const float* add = a.add;
    if (a.after_norm) {
      rms_norm<V>(add, a.after_norm, a.eps, a.n, a.out);
      add = a.out;
    }
    typename V::F m = V::set1(a.multiplier);
    int i = 0;
    for (; i + 16 <= a.n; i += 16) V::store(a.residual + i, V::fma(V::load(add + i), m, V::load(a.residual + i)));
    for (; i < a.n; ++i) a.residual[i] = fmaf(add[i], a.multiplier, a.residual[i]);
  }
  if (a.next_norm) return rms_norm<V>(a.residual, a.next_norm, a.eps, a.n, a.out);
  memcpy(a.out, a.residual, (size_t)a.n * 4);
}

// 2 x n floats to n: activation(gate) * up, n a multiple of 16.
template <class V>
static void gate(float* g, const float* up, int n, int activation) {
  for (int i = 0; i < n; i += 16) V::store(g + i, V::mul(activate<V>(V::load(g + i), activation), V::load(up + i)));
}

// Neox rotation of one head in place: dims i and i + half turn together.
template <class V>
static OCTAVO_INLINE void rotate(float* x, const float* cos_sin, int half) {
  const float *c = cos_sin, *s = cos_sin + half;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    auto a = V::load(x + i), b = V::load(x + half + i), cc = V::load(c + i), ss = V::load(s + i);
    V::store(x + i, V::sub(V::mul(a, cc), V::mul(b, ss)));
    V::store(x + half + i, V::fma(b, cc, V::mul(a, ss)));
  }
  for (; i < half; ++i) {
    float a = x[i], b = x[half + i];
    x[i] = a * c[i] - b * s[i];
    x[half + i] = fmaf(b, c[i], a * s[i]);
  }
}

struct PrologueArgs {
  float* qkv;  // one token: q heads, k heads, v heads
  int heads, kv_heads, dim;
  const float* q_norm;  // weights or null
  const float* k_norm;
  bool whole_norm;  // over all heads at once (OLMo 2)
  float eps;
  const float* cos_sin;  // the token's row, or null
  int half;
  uint8_t* block;  // of the cache: keys [H_kv][B / 16][D][16], then values [H_kv][B][D]; int8 has scales in each head
  int offset;      // of the token in the block
  int block_size;
  int kv_type;
};

// Sixteen floats to bf16, to nearest even.
static inline void to_bf16(const float* x, uint16_t* to) {
  for (int i = 0; i < 16; ++i) {
    uint32_t u;
    memcpy(&u, x + i, 4);
    to[i] = (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
  }
}

template <class V>
static OCTAVO_INLINE void store_kv(uint16_t* to, const float* x, int kv_type) {
  if (kv_type == kKvBF16) return to_bf16(x, to);
  V::store_half(to, V::load(x));
}

// n values, a multiple of 16, to codes in [-127, 127]; gives the scale, already rounded to fp16.
template <class V>
static uint16_t int8_codes(const float* x, int n, int8_t* to) {
  typename V::F most = V::zero();
  for (int i = 0; i < n; i += 16) most = V::max(most, V::abs(V::load(x + i)));
  // Rounded up by less than a thousandth, so that no code passes 127.
  float part[16];
  uint16_t half[16];
  V::store_half(half, V::set1(V::hmax(most) * (1.0009765625f / 127.0f)));
  V::store(part, V::load_half(half));
  const typename V::F inverse = V::set1(part[0] > 0 ? 1.0f / part[0] : 0.0f);
  for (int i = 0; i < n; i += 16) V::store_bytes(to + i, V::to_int(V::mul(V::load(x + i), inverse)));
  return half[0];
}

template <class V>
static void write_int8(const PrologueArgs& a, const float* key, const float* value) {
  const size_t head = int8_head_bytes(a.block_size, a.dim), scales = (size_t)a.block_size * a.dim;
  int8_t codes[512];
  for (int h = 0; h < a.kv_heads; ++h) {
    uint8_t *k = a.block + h * head, *v = k + a.kv_heads * head;
    const uint16_t k_scale = int8_codes<V>(key + h * a.dim, a.dim, codes);
    uint8_t* to = k + (size_t)(a.offset / 16) * 16 * a.dim + a.offset % 16;
    for (int d = 0; d < a.dim; ++d) to[16 * d] = (uint8_t)codes[d];
    const uint16_t v_scale = int8_codes<V>(value + h * a.dim, a.dim, (int8_t*)v + (size_t)a.offset * a.dim);
    memcpy(k + scales + 2 * a.offset, &k_scale, 2);
    memcpy(v + scales + 2 * a.offset, &v_scale, 2);
  }
}

template <class V>
static void write_kv(const PrologueArgs& a, const float* key, const float* value) {
  if (a.kv_type == kKvInt8) return write_int8<V>(a, key, value);
  const size_t head_size = (size_t)a.block_size * a.dim, values = head_size * a.kv_heads;
  const size_t k_at = (size_t)(a.offset / 16) * 16 * a.dim + a.offset % 16, v_at = (size_t)a.offset * a.dim;
  if (a.kv_type == kKvF32) {
    float* to = (float*)a.block;
    for (int h = 0; h < a.kv_heads; ++h) {
      for (int d = 0; d < a.dim; ++d) to[h * head_size + k_at + 16 * d] = key[h * a.dim + d];
      memcpy(to + values + h * head_size + v_at, value + h * a.dim, (size_t)a.dim * 4);
    }
    return;
  }
  uint16_t* to = (uint16_t*)a.block;
  alignas(64) uint16_t part[16];
  for (int h = 0; h < a.kv_heads; ++h) {
    for (int d = 0; d < a.dim; d += 16) {
      store_kv<V>(part, key + h * a.dim + d, a.kv_type);
      for (int i = 0; i < 16; ++i) to[h * head_size + k_at + 16 * (d + i)] = part[i];
      store_kv<V>(to + values + h * head_size + v_at + d, value + h * a.dim + d, a.kv_type);
    }
  }
}

// QK norm, rotation, and the write of one token's keys and values into its block.
template <class V>
static void prologue(const PrologueArgs& a) {
  const int q = a.heads * a.dim, k = a.kv_heads * a.dim;
  float* key = a.qkv + q;
  if (a.q_norm && a.whole_norm) {
    rms_norm<V>(a.qkv, a.q_norm, a.eps, q, a.qkv);
    rms_norm<V>(key, a.k_norm, a.eps, k, key);
  }
  for (int h = 0; h < a.heads + a.kv_heads; ++h) {
    float* head = a.qkv + h * a.dim;
    if (a.q_norm && !a.whole_norm) rms_norm<V>(head, h < a.heads ? a.q_norm : a.k_norm, a.eps, a.dim, head);
    if (a.cos_sin) rotate<V>(head, a.cos_sin, a.half);
  }
  write_kv<V>(a, key, key + k);
}

}  // namespace octavo
