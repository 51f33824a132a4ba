// The kernels alone, for a build under AddressSanitizer and UndefinedBehaviorSanitizer: packs every format in odd
// shapes, multiplies one token and many, attends over scattered blocks, and compares bits of rows alone and together.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "blocks.h"
#include "decoder.h"
#include "rowops.h"

using namespace octavo;

namespace {

uint32_t state = 12345;
uint32_t next() { return state = state * 1664525u + 1013904223u; }
float unit() { return (float)(next() >> 8) / 8388608.0f - 1.0f; }

int failures = 0;
int planes = 1;  // of activations
void expect(bool good, const char* what, int a, int b) {
  if (good) return;
  ++failures;
  std::printf("failed: %s (%d, %d)\n", what, a, b);
}

std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  for (float& v : values) v = unit();
  return values;
}

std::vector<float> product(Engine& engine, const Matrix& m, const float* x, int tokens) {
  std::vector<float> out((size_t)tokens * m.rows);
  Linear linear;
  linear.parts = {{&m, 0, nullptr}};
  linear.rows = m.rows;
  engine.linear(linear, x, tokens, m.columns, planes, out.data(), m.rows);
  return out;
}

// The bits of a row alone and among others; how far the sums are from plain ones.
void check_matrix(Engine& engine, const Matrix& m, const char* what, int tag) {
  std::vector<float> values((size_t)m.rows * m.columns);
  unpack(m, values.data());
  for (int tokens : {1, 3, 11, 18}) {
    const std::vector<float> x = numbers((size_t)tokens * m.columns);
    const std::vector<float> out = product(engine, m, x.data(), tokens);
    for (int t = 0; t < tokens; ++t) {
      const std::vector<float> alone = product(engine, m, x.data() + (size_t)t * m.columns, 1);
      expect(!std::memcmp(alone.data(), out.data() + (size_t)t * m.rows, alone.size() * 4), what, tag, tokens);
      for (int r = 0; r < m.rows; ++r) {
        double sum = 0, size = 0;
        for (int k = 0; k < m.columns; ++k) {
          const double term = (double)values[(size_t)r * m.columns + k] * x[(size_t)t * m.columns + k];
          sum += term;
          size += term * term;
        }
        expect(std::fabs(sum - alone[r]) <= (planes == 1 ? 0.05 : 0.001) * std::sqrt(size) + 1e-5, what, tag, r);
      }
    }
  }
}

void check_blocks(Engine& engine, Pool& pool) {
  for (int qtype : {2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23}) {
    const BlockInfo info = block_info(qtype);
    const int rows = 21, blocks = 2, columns = blocks * info.values;
    std::vector<uint8_t> data((size_t)rows * blocks * info.bytes);
    for (uint8_t& byte : data) byte = (uint8_t)(next() >> 24);
    for (int i = 0; i < rows * blocks; ++i) {
      uint8_t* block = data.data() + (size_t)i * info.bytes;
      const uint16_t d = Plain::to_half(unit() * 0.01f), least = Plain::to_half(unit() * 0.01f);
      const int at = qtype == kQ6_K ? 208 : qtype == kQ3_K ? 108 : qtype == kQ2_K ? 80 : 0;
      std::memcpy(block + at, &d, 2);
      if (qtype == 3 || qtype == 7 || qtype == 12 || qtype == 13 || qtype == 10) std::memcpy(block + at + 2, &least, 2);
    }
    Matrix m = make_matrix(layout_for(qtype), rows, columns);
    pack_blocks(m, qtype, data.data(), (size_t)blocks * info.bytes, pool);
    check_matrix(engine, m, "blocks", qtype);
    free_matrix(m);
  }
}

void check_floats(Engine& engine, Pool& pool) {
  for (int layout : {(int)kF32, (int)kB8, (int)kB4M}) {
    for (int columns : {1, 31, 33, 70}) {
      const int rows = 19;
      const std::vector<float> values = numbers((size_t)rows * columns);
      Matrix m = make_matrix(layout, rows, columns);
      pack_floats(m, kF32, (const uint8_t*)values.data(), pool);
      check_matrix(engine, m, "floats", layout);
      free_matrix(m);
    }
  }
}

// A decoder of two layers over a cache in scattered blocks: a prompt at once and token by token.
struct Toy {
  static constexpr int kHidden = 48, kHeads = 4, kKvHeads = 2, kDim = 16, kInner = 40, kBlocks = 8, kSize = 16;
  std::vector<Matrix> matrices;
  std::vector<float> norm = std::vector<float>(kHidden, 1.0f), table, cache;
  std::vector<int32_t> blocks = {5, 2, 7, 1};

  const Matrix* make(int layout, int rows, int columns, Pool& pool) {
    const std::vector<float> values = numbers((size_t)rows * columns);
    matrices.push_back(make_matrix(layout, rows, columns));
    pack_floats(matrices.back(), kF32, (const uint8_t*)values.data(), pool);
    return &matrices.back();
  }

  static Linear whole(const Matrix* m) {
    Linear linear;
    linear.parts = {{m, 0, nullptr}};
    linear.rows = m->rows;
    return linear;
  }

  std::vector<float> run(Decoder& decoder, const std::vector<float>& in, int chunk) {
    std::vector<float> out = in;
    const int count = (int)in.size() / kHidden;
    for (int at = 0; at < count; at += chunk) {
      const int n = std::min(chunk, count - at);
      std::vector<int64_t> positions(n), slots(n);
      for (int i = 0; i < n; ++i) {
        positions[i] = at + i;
        slots[i] = blocks[(at + i) / kSize] * kSize + (at + i) % kSize;
      }
      const int32_t start[2] = {0, n};
      Step step;
      step.tokens = n;
      step.rows = 1;
      step.positions = positions.data();
      step.query_start = start;
      step.groups = {{blocks.data(), blocks.size(), slots.data()}};
      step.ropes = {{table.data(), positions.data(), kDim}};
      step.hidden = out.data() + (size_t)at * kHidden;
      decoder.forward(step);
    }
    return out;
  }
};

void check_decoder(Engine& engine, Pool& pool, int layout, int kv_type, int window) {
  Toy toy;
  toy.matrices.reserve(16);
  toy.table = numbers(64 * Toy::kDim);
  Decoder decoder(&engine, Toy::kHidden, 1e-6f, toy.norm.data(), planes);
  for (int i = 0; i < 2; ++i) {
    LayerWeights l;
    l.heads = Toy::kHeads;
    l.kv_heads = Toy::kKvHeads;
    l.dim = Toy::kDim;
    l.qkv = Toy::whole(toy.make(layout, (Toy::kHeads + 2 * Toy::kKvHeads) * Toy::kDim, Toy::kHidden, pool));
    l.o = Toy::whole(toy.make(layout, Toy::kHidden, Toy::kHeads * Toy::kDim, pool));
    l.gate = Toy::whole(toy.make(layout, Toy::kInner, Toy::kHidden, pool));
    l.up = Toy::whole(toy.make(layout, Toy::kInner, Toy::kHidden, pool));
    l.down = Toy::whole(toy.make(layout, Toy::kHidden, Toy::kInner, pool));
    l.before_attention = l.before_mlp = toy.norm.data();
    l.scale = 0.25f;
    l.window = window;
    l.rope = 0;
    decoder.add(l);
  }
  const size_t dims = kv_type == kKvInt8 ? Toy::kDim + 2 : Toy::kDim;  // int8 has a scale, of two bytes
  const size_t size = kv_type == kKvF32 ? 4 : kv_type == kKvInt8 ? 1 : 2;
  const size_t layer = (size_t)2 * Toy::kKvHeads * Toy::kSize * dims * size;  // bytes of a block
  toy.cache.assign(layer * 2 * Toy::kBlocks / 4 + 1, NAN);
  const uintptr_t base = (uintptr_t)toy.cache.data();
  decoder.place({0, 0}, {base, base + layer}, layer * 2, Toy::kSize, kv_type);
  const std::vector<float> in = numbers((size_t)50 * Toy::kHidden);
  const std::vector<float> once = toy.run(decoder, in, 50);
  for (float v : once) expect(std::isfinite(v), "decoder", layout, kv_type);
  for (int chunk : {1, 7, 20}) {
    const std::vector<float> parts = toy.run(decoder, in, chunk);
    expect(!std::memcmp(once.data(), parts.data(), once.size() * 4), "chunks", layout, chunk);
  }
  for (Matrix& m : toy.matrices) free_matrix(m);
}

}  // namespace

int main() {
  for (const char* isa : {"avx512", "avx2vnni", "avx2", "neon", "plain"}) {
    const Kernels* kernels = choose_kernels(isa);
    if (!kernels) continue;
    Pool pool(2, false);
    Engine engine(kernels, &pool);
    for (planes = 1; planes <= 2; ++planes) {
      check_blocks(engine, pool);
      check_floats(engine, pool);
      for (int layout : {(int)kF32, (int)kB8, (int)kB4M}) {
        for (int kv_type : {0, 1, 2, 3}) check_decoder(engine, pool, layout, kv_type, layout == kB8 ? 9 : 0);
      }
    }
    std::printf("%s checked\n", isa);
  }
  std::printf("%d failures\n", failures);
  return failures != 0;
}
