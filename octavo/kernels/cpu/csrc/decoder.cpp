#include "decoder.h"

#include <cmath>
#include <cstring>

#include "run.h"

namespace octavo {

ActBuffer::~ActBuffer() = default;

const Acts& ActBuffer::fit(int tokens, int columns, bool floats, int planes) {
  acts_.tokens = tokens;
  acts_.groups = (columns + kGroup - 1) / kGroup;
  const size_t places = (size_t)tiles_of(tokens) * kTile * acts_.groups;
  auto grow = [](std::vector<uint8_t>& bytes, size_t need) {
    need += 64;
    if (bytes.size() < need) bytes.assign(need, 0);
    return (void*)(((uintptr_t)bytes.data() + 63) / 64 * 64);
  };
  acts_.planes = planes;
  acts_.q = (int8_t*)grow(q_, places * kGroup * planes);
  acts_.scale = (float*)grow(scale_, places * 4);
  acts_.sum = (int32_t*)grow(sum_, places * 8);
  if (floats) acts_.x = (float*)grow(x_, places * kGroup * 4);
  return acts_;
}

void Engine::linear(const Linear& linear, const float* x, int tokens, int columns, int planes, float* out,
                    size_t ld) {
  run(linear, x, tokens, columns, planes, out, ld, nullptr);
}

void Engine::likeliest(const Linear& linear, const float* x, int tokens, int columns, int planes, float* out,
                       size_t ld, int64_t* places) {
  run(linear, x, tokens, columns, planes, out, ld, places);
}

void Engine::run(const Linear& linear, const float* x, int tokens, int columns, int planes, float* out,
                 size_t ld, int64_t* places) {
  if (tokens <= 0) return;
  constexpr int kPiece = 16384;  // outputs that one look for the largest takes
  const int pieces = (linear.rows + kPiece - 1) / kPiece;
  std::vector<float> best(places ? (size_t)tokens * pieces : 0);
  std::vector<int64_t> found(best.size());
  Counter looks;
  const bool codes = wants_codes(linear), floats = wants_floats(linear);
  const Acts& acts = acts_.fit(tokens, columns, floats, planes);
  Counter rows, items;
  pool.run([&](int) {
    std::vector<uint8_t> scratch(matmul_scratch_bytes(acts.groups));
    for (int t = rows.take(); t < tokens; t = rows.take()) {
      k.put_row(acts, t, x + (size_t)t * columns, columns, codes, floats);
    }
    pool.barrier().wait();
    run_linear(k, linear, acts, out, ld, pool.size(), items, scratch.data());
    if (!places) return;
    pool.barrier().wait();
    for (int i = looks.take(); i < tokens * pieces; i = looks.take()) {
      const int from = i % pieces * kPiece, count = std::min(kPiece, linear.rows - from);
      found[i] = from + k.argmax(out + (size_t)(i / pieces) * ld + from, count, &best[i]);
    }
  });
  for (int t = 0; places && t < tokens; ++t) {
    int most = t * pieces;
    bool sound = true;
    for (int i = t * pieces; i < (t + 1) * pieces; ++i) {
      sound = sound && !std::isnan(best[i]);
      if (best[i] > best[most]) most = i;
    }
    places[t] = sound && std::isfinite(best[most]) ? found[most] : -1;
  }
}

namespace {

// Query vectors of one row and one kv head that are attended to together.
struct AttendItem {
  int row, kv_head, first, count;  // vectors count token by token, each token's heads of the group in turn
};

}  // namespace

// One step; every method but `prepare` is run by all threads at once.
class StepRun {
 public:
  StepRun(Decoder& decoder, const Step& step)
      : d_(decoder), s_(step), k_(decoder.engine_.k), pool_(decoder.engine_.pool) {}

  void prepare() {
    size_t qkv = 0, heads = 0, widest = d_.hidden_;
    bool in = false, mid = false, wide = false;
    for (const LayerWeights& l : d_.layers_) {
      qkv = std::max(qkv, (size_t)l.qkv.rows);
      heads = std::max(heads, (size_t)l.heads * l.dim);
      widest = std::max(widest, (size_t)std::max(l.gate.rows, l.heads * l.dim));
      in = in || wants_floats(l.qkv) || wants_floats(l.gate) || wants_floats(l.up);
      mid = mid || wants_floats(l.o);
      wide = wide || wants_floats(l.down);
    }
    const size_t tokens = (size_t)s_.tokens;
    auto grow = [](std::vector<float>& v, size_t n) {
      if (v.size() < n) v.resize(n);
      return v.data();
    };
    qkv_ = grow(d_.qkv_, tokens * qkv);
    attention_ = grow(d_.attention_, tokens * heads);
    out_ = grow(d_.out_, tokens * d_.hidden_);
    in_ = d_.in_.fit(s_.tokens, d_.hidden_, in, d_.planes_);
    floats_in_ = in;
    floats_mid_ = mid;
    floats_wide_ = wide;
    scratch_bytes_ = matmul_scratch_bytes((int)(widest + kGroup - 1) / kGroup) + 64;
    row_floats_ = widest;
    counters_ = std::vector<Counter>(d_.layers_.size() * 9 + 2);
    build_items();
  }

  void thread() {
    std::vector<float> row(row_floats_ + 2 * kTile * kGluColumns);
    std::vector<uint8_t> scratch(scratch_bytes_);
    int phase = 0;
    const float* add = nullptr;
    const float* after = nullptr;
    float multiplier = 1;
    for (size_t i = 0; i < d_.layers_.size(); ++i) {
      const LayerWeights& l = d_.layers_[i];
      combine(counters_[phase++], add, after, l.before_attention, multiplier, row.data(), nullptr);
      linear(counters_[phase++], l.qkv, in_, qkv_, l.qkv.rows, scratch.data());
      prologue(counters_[phase++], l);
      attend(counters_[phase++], l);
      put_attention(counters_[phase++], l);
      linear(counters_[phase++], l.o, mid_, out_, d_.hidden_, scratch.data());
      combine(counters_[phase++], out_, l.after_attention, l.before_mlp, l.multiplier, row.data(), nullptr);
      glu(counters_[phase++], l, row.data(), scratch.data());
      linear(counters_[phase++], l.down, wide_, out_, d_.hidden_, scratch.data());
      add = out_;
      after = l.after_mlp;
      multiplier = l.multiplier;
    }
    combine(counters_[phase++], add, after, d_.final_norm_, multiplier, row.data(), s_.hidden);
  }

 private:
  // As with Cut: long runs of weights where each is read once.
  static constexpr int kGluColumns = 256;
  int glu_columns() const { return s_.tokens <= kTile ? kGluColumns : 64; }

  void build_items() {
    const LayerWeights& l = d_.layers_.front();
    mid_ = d_.mid_.fit(s_.tokens, l.heads * l.dim, floats_mid_, d_.planes_);
    wide_ = d_.wide_.fit(s_.tokens, l.gate.rows, floats_wide_, d_.planes_);
    const int share = l.heads / l.kv_heads;
    for (int r = 0; r < s_.rows; ++r) {
      const int vectors = (s_.query_start[r + 1] - s_.query_start[r]) * share;
      for (int first = 0; first < vectors; first += kQueries) {
        for (int h = 0; h < l.kv_heads; ++h) items_.push_back({r, h, first, std::min(kQueries, vectors - first)});
      }
    }
  }

  // The residual stream plus what the last half gave, normed and ready for the next product, or put to `hidden`.
  void combine(Counter& counter, const float* add, const float* after, const float* next, float multiplier, float* row,
               float* hidden) {
    const int n = d_.hidden_;
    for (int t = counter.take(); t < s_.tokens; t = counter.take()) {
      float* residual = s_.hidden + (size_t)t * n;
      k_.combine({residual, add ? add + (size_t)t * n : nullptr, after, next, multiplier, d_.eps_, n, row});
      if (hidden) {
        std::memcpy(hidden + (size_t)t * n, row, (size_t)n * 4);
      } else {
        k_.put_row(in_, t, row, n, true, floats_in_);
      }
    }
    pool_.barrier().wait();
  }

  void linear(Counter& counter, const Linear& linear, const Acts& acts, float* out, size_t ld, void* scratch) {
    run_linear(k_, linear, acts, out, ld, pool_.size(), counter, scratch);
    pool_.barrier().wait();
  }

  void prologue(Counter& counter, const LayerWeights& l) {
    const KvGroup& group = s_.groups[l.group];
    for (int t = counter.take(); t < s_.tokens; t = counter.take()) {
      const float* turn = nullptr;
      int half = 0;
      if (l.rope >= 0) {
        const Rotation& rope = s_.ropes[l.rope];
        turn = rope.table + (size_t)rope.index[t] * rope.width;
        half = rope.width / 2;
      }
      const int64_t slot = group.slots[t];
      k_.prologue({qkv_ + (size_t)t * l.qkv.rows, l.heads, l.kv_heads, l.dim, l.q_norm, l.k_norm, l.whole_norm, d_.eps_,
                   turn, half, l.kv + (size_t)(slot / d_.block_size_) * d_.block_stride_, (int)(slot % d_.block_size_),
                   d_.block_size_, d_.kv_type_});
    }
    pool_.barrier().wait();
  }

  void attend(Counter& counter, const LayerWeights& l) {
    const KvGroup& group = s_.groups[l.group];
    const int share = l.heads / l.kv_heads, count = (int)items_.size();
    for (int i = counter.take(); i < count; i = counter.take()) {
      const AttendItem& item = items_[count - 1 - i];  // the longest pasts of a prompt first
      AttendArgs a;
      a.count = item.count;
      for (int n = 0; n < item.count; ++n) {
        const int token = s_.query_start[item.row] + (item.first + n) / share;
        const int head = item.kv_head * share + (item.first + n) % share;
        a.q[n] = qkv_ + (size_t)token * l.qkv.rows + head * l.dim;
        a.out[n] = attention_ + ((size_t)token * l.heads + head) * l.dim;
        a.position[n] = (int)s_.positions[token];
      }
      a.kv = l.kv;
      a.block_stride = d_.block_stride_;
      a.blocks = group.blocks + (size_t)item.row * group.stride;
      a.kv_head = item.kv_head;
      a.kv_heads = l.kv_heads;
      a.dim = l.dim;
      a.block_size = d_.block_size_;
      a.kv_type = d_.kv_type_;
      a.scale = l.scale;
      a.window = l.window;
      a.softcap = l.softcap;
      k_.attend(a);
    }
    pool_.barrier().wait();
  }

  void put_attention(Counter& counter, const LayerWeights& l) {
    const int n = l.heads * l.dim;
    for (int t = counter.take(); t < s_.tokens; t = counter.take()) {
      k_.put_row(mid_, t, attention_ + (size_t)t * n, n, true, floats_mid_);
    }
    pool_.barrier().wait();
  }

  // activation(gate) * up, some columns at a time, straight into the activations of the down product.
  void glu(Counter& counter, const LayerWeights& l, float* row, void* scratch) {
    const Part &gate = l.gate.parts.front(), &up = l.up.parts.front();
    const int panels = gate.matrix->panels, columns = glu_columns(), step = columns / kRows, tiles = tiles_of(s_.tokens);
    const int per = std::min(tiles, 8), tile_items = (tiles + per - 1) / per;
    const int items = (panels + step - 1) / step * tile_items;
    float *g = row, *u = row + kTile * columns;
    std::memset(row, 0, 2 * kTile * kGluColumns * sizeof(float));
    for (int i = counter.take(); i < items; i = counter.take()) {
      const int begin = i / tile_items * step, end = std::min(begin + step, panels);
      const int from = i % tile_items * per;
      for (int tile = from; tile < std::min(from + per, tiles); ++tile) {
        k_.matmul({gate.matrix, &in_, tile, begin, end, g, (size_t)columns, gate.bias, scratch, tile == from});
        k_.matmul({up.matrix, &in_, tile, begin, end, u, (size_t)columns, up.bias, scratch, tile == from});
        put_gated(tile, begin / 2, (end - begin + 1) / 2, l.activation, g, u);
      }
    }
    pool_.barrier().wait();
  }

  void put_gated(int tile, int group, int groups, int activation, float* g, float* u) {
    const int tokens = std::min(kTile, s_.tokens - tile * kTile);
    k_.gate(g, u, tokens * glu_columns(), activation);
    for (int t = 0; t < tokens; ++t) {
      for (int n = 0; n < groups; ++n) {
        k_.put_group(wide_, tile * kTile + t, group + n, g + t * glu_columns() + n * kGroup, true, floats_wide_);
      }
    }
  }

  Decoder& d_;
  const Step& s_;
  const Kernels& k_;
  Pool& pool_;
  Acts in_, mid_, wide_;
  bool floats_in_ = false, floats_mid_ = false, floats_wide_ = false;
  float *qkv_ = nullptr, *attention_ = nullptr, *out_ = nullptr;
  size_t scratch_bytes_ = 0, row_floats_ = 0;
  std::vector<Counter> counters_;
  std::vector<AttendItem> items_;
};

void Decoder::place(const std::vector<int>& groups, const std::vector<uintptr_t>& kv, size_t block_stride,
                    int block_size, int kv_type) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].group = groups.at(i);
    layers_[i].kv = reinterpret_cast<uint8_t*>(kv.at(i));
  }
  block_stride_ = block_stride;
  block_size_ = block_size;
  kv_type_ = kv_type;
}

void Decoder::forward(const Step& step) {
  if (step.tokens <= 0 || layers_.empty()) return;
  StepRun run(*this, step);
  run.prepare();
  engine_.pool.run([&](int) { run.thread(); });
}

}  // namespace octavo
