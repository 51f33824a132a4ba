// Paged attention over blocks, in the running-maximum form of flash attention (Dao et al. 2022).
//
// Keys lie transposed in their block, [D][16] for each sixteen tokens, so that one register holds a score of sixteen
// tokens and no sum runs across lanes. The past is walked in steps of 64 tokens from multiples of 64, whatever the
// tile of queries: a query's result is the same bits alone and among others.
#pragma once
#include "rowops.h"

namespace octavo {

constexpr int kStep = 64;    // tokens of the past between two looks at the maximum
constexpr int kQueries = 8;  // query vectors of one tile
constexpr int kMaxDim = 512;

struct AttendArgs {
  const float* q[kQueries];  // [D] each
  float* out[kQueries];      // [D] each
  int position[kQueries];    // a query sees positions up to its own
  int count;                 // of queries, at least one
  const uint8_t* kv;         // the layer's part of block 0
  size_t block_stride;       // bytes
  const int32_t* blocks;     // of the row
  int kv_head, kv_heads, dim, block_size, kv_type;
  float scale;
  int window;     // 0: all of the past
  float softcap;  // 0: none
};

template <class V, int KV>
static OCTAVO_INLINE typename V::F load_kv(const uint8_t* p, size_t i) {
  if constexpr (KV == kKvF32) return V::load((const float*)p + i);
  if constexpr (KV == kKvF16) return V::load_half((const uint16_t*)p + i);
  if constexpr (KV == kKvInt8) return V::load_bytes((const int8_t*)p + i);
  return V::load_bf16((const uint16_t*)p + i);
}

template <class V, int KV, int N>
struct Attend {
  using F = typename V::F;
  static constexpr size_t kBytes = KV == kKvF32 ? 4 : KV == kKvInt8 ? 1 : 2;

  const AttendArgs& a;
  alignas(64) float p[N][kStep];
  alignas(64) float o[N][kMaxDim];
  float top[N], total[N];

  explicit Attend(const AttendArgs& args) : a(args) {}

  const float* query(int i) const { return a.q[i < a.count ? i : 0]; }
  int position(int i) const { return a.position[i < a.count ? i : 0]; }

  // Scores of sixteen tokens whose keys begin at k, and their scales at `scales` if they have any.
  void scores(const uint8_t* k, const uint8_t* scales, int base, int part) {
    F scale = V::set1(a.scale);
    if constexpr (KV == kKvInt8) scale = V::mul(scale, V::load_half((const uint16_t*)scales));
    F acc[N];
    const float* q[N];
    OCTAVO_UNROLL for (int i = 0; i < N; ++i) {
      acc[i] = V::zero();
      q[i] = query(i);
    }
    for (int d = 0; d < a.dim; ++d) {
      F key = load_kv<V, KV>(k, 16 * (size_t)d);
      OCTAVO_UNROLL for (int i = 0; i < N; ++i) acc[i] = V::fma(V::set1(q[i][d]), key, acc[i]);
    }
    for (int i = 0; i < N; ++i) {
      F s = V::mul(acc[i], scale);
      if (a.softcap > 0) s = V::mul(tanh_of<V>(V::div(s, V::set1(a.softcap))), V::set1(a.softcap));
      int last = position(i) + 1 - base, first = a.window ? last - a.window : 0;
      last = last < 0 ? 0 : last > 16 ? 16 : last;
      first = first < 0 ? 0 : first > 15 ? 16 : first;
      if (first > last) first = last;
      if (first > 0 || last < 16) s = first < 16 ? V::keep(s, first, last, -INFINITY) : V::set1(-INFINITY);
      V::store(p[i] + 16 * part, s);
    }
  }

  // Scores to weights; what was summed so far is scaled down if the maximum rose.
  void weigh(int i, int parts) {
    F most = V::load(p[i]);
    for (int n = 1; n < parts; ++n) most = V::max(most, V::load(p[i] + 16 * n));
    float high = V::hmax(most);
    if (high == -INFINITY) {
      for (int n = 0; n < parts; ++n) V::store(p[i] + 16 * n, V::zero());
      return;
    }
    if (high > top[i]) {
      float down = top[i] == -INFINITY ? 0.0f : first_lane(exp_of<V>(V::set1(top[i] - high)));
      total[i] *= down;
      F f = V::set1(down);
      for (int d = 0; d < a.dim; d += 16) V::store(o[i] + d, V::mul(V::load(o[i] + d), f));
      top[i] = high;
    }
    F sum = V::zero(), t = V::set1(top[i]);
    for (int n = 0; n < parts; ++n) {
      F s = V::load(p[i] + 16 * n);
      F w = exp_of<V>(V::sub(s, t));
      // What is hidden weighs nothing at all, not 1e-38.
      w = V::max(V::zero(), V::sub(w, V::set1(1.3e-38f)));
      V::store(p[i] + 16 * n, w);
      sum = V::add(sum, w);
    }
    total[i] += V::hsum(sum);
  }

  static float first_lane(F v) {
    float part[16];
    V::store(part, v);
    return part[0];
  }

  // Values of `count` tokens from v on, times their weights, for 64 dims from d on.
  template <int Q, int D>
  void add_values(const uint8_t* v, int count, int part, int first, int d) {
    F acc[Q][D];
    OCTAVO_UNROLL for (int i = 0; i < Q; ++i) {
      OCTAVO_UNROLL for (int n = 0; n < D; ++n) acc[i][n] = V::load(o[first + i] + d + 16 * n);
    }
    for (int j = 0; j < count; ++j) {
      F value[D];
      OCTAVO_UNROLL for (int n = 0; n < D; ++n) value[n] = load_kv<V, KV>(v, (size_t)j * a.dim + d + 16 * n);
      OCTAVO_UNROLL for (int i = 0; i < Q; ++i) {
        F w = V::set1(p[first + i][16 * part + j]);
        OCTAVO_UNROLL for (int n = 0; n < D; ++n) acc[i][n] = V::fma(w, value[n], acc[i][n]);
      }
    }
    OCTAVO_UNROLL for (int i = 0; i < Q; ++i) {
      OCTAVO_UNROLL for (int n = 0; n < D; ++n) V::store(o[first + i] + d + 16 * n, acc[i][n]);
    }
  }

  void values(const uint8_t* v, int count, int part) {
    constexpr int Q = N < 4 ? N : 4;
    for (int first = 0; first < N; first += Q) {
      int d = 0;
      for (; d + 64 <= a.dim; d += 64) add_values<Q, 4>(v, count, part, first, d);
      for (; d < a.dim; d += 16) add_values<Q, 1>(v, count, part, first, d);
    }
  }

  void run() {
    int least = position(0), last = position(0);
    for (int i = 0; i < N; ++i) {
      top[i] = -INFINITY;
      total[i] = 0;
      for (int d = 0; d < a.dim; d += 16) V::store(o[i] + d, V::zero());
      least = position(i) < least ? position(i) : least;
      last = position(i) > last ? position(i) : last;
    }
    const size_t codes = (size_t)a.block_size * a.dim * kBytes;
    const size_t head = KV == kKvInt8 ? int8_head_bytes(a.block_size, a.dim) : codes, keys = head * a.kv_head;
    const size_t values_at = head * a.kv_heads + head * a.kv_head;
    const int from = a.window && least + 1 > a.window ? (least + 1 - a.window) / kStep * kStep : 0;
    for (int base = from; base <= last; base += kStep) {
      const int left = last + 1 - base, parts = left >= kStep ? kStep / 16 : (left + 15) / 16;
      const int skip = a.window && least + 1 - a.window > base ? (least + 1 - a.window - base) / 16 : 0;
      for (int n = 0; n < parts; ++n) {
        const int at = base + 16 * n;
        if (n < skip) {
          for (int i = 0; i < N; ++i) V::store(p[i] + 16 * n, V::set1(-INFINITY));
        } else {
          const uint8_t* block = a.kv + a.blocks[at / a.block_size] * a.block_stride;
          const int offset = at % a.block_size;
          scores(block + keys + (size_t)offset * a.dim * kBytes, block + keys + codes + 2 * offset, at, n);
        }
      }
      for (int i = 0; i < N; ++i) weigh(i, parts);
      for (int n = skip; n < parts; ++n) {
        const int at = base + 16 * n, count = last + 1 - at < 16 ? last + 1 - at : 16;
        const uint8_t* block = a.kv + a.blocks[at / a.block_size] * a.block_stride;
        if constexpr (KV == kKvInt8) {
          const F scale = V::load_half((const uint16_t*)(block + values_at + codes + 2 * (at % a.block_size)));
          for (int i = 0; i < N; ++i) V::store(p[i] + 16 * n, V::mul(V::load(p[i] + 16 * n), scale));
        }
        values(block + values_at + (size_t)(at % a.block_size) * a.dim * kBytes, count, n);
      }
    }
    for (int i = 0; i < a.count; ++i) {
      F f = V::set1(1.0f / total[i]);
      for (int d = 0; d < a.dim; d += 16) V::store(a.out[i] + d, V::mul(V::load(o[i] + d), f));
    }
  }
};

template <class V, int KV>
static void attend_kv(const AttendArgs& a) {
  if (a.count <= 1) {
    Attend<V, KV, 1> one(a);
    one.run();
  } else if (a.count <= 4) {
    Attend<V, KV, 4> four(a);
    four.run();
  } else {
    Attend<V, KV, kQueries> all(a);
    all.run();
  }
}

template <class V>
static void attend(const AttendArgs& a) {
  if (a.kv_type == kKvF32) return attend_kv<V, kKvF32>(a);
  if (a.kv_type == kKvF16) return attend_kv<V, kKvF16>(a);
  if (a.kv_type == kKvInt8) return attend_kv<V, kKvInt8>(a);
  return attend_kv<V, kKvBF16>(a);
}

}  // namespace octavo
