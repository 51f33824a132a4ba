// Pieces of a step that every thread runs together; work is handed out by counters, phases end at a barrier.
#pragma once
#include <algorithm>
#include <vector>

#include "attend.h"
#include "decoder.h"

namespace octavo {

static inline bool wants_floats(const Linear& linear) {
  return std::any_of(linear.parts.begin(), linear.parts.end(), [](const Part& p) { return is_float(p.matrix->layout); });
}
static inline bool wants_codes(const Linear& linear) {
  return std::any_of(linear.parts.begin(), linear.parts.end(), [](const Part& p) { return !is_float(p.matrix->layout); });
}
static inline int tiles_of(int tokens) { return (tokens + kTile - 1) / kTile; }

// How a product is cut: some panels times some tiles an item.
struct Cut {
  int panels, tiles, tile_items;
};

static inline Cut cut_for(int panels, int tokens, int threads) {
  Cut cut;
  const int tiles = tiles_of(tokens);
  cut.tiles = std::min(tiles, 8);
  cut.tile_items = (tiles + cut.tiles - 1) / cut.tiles;
  // One tile reads every weight once, from memory: long runs suit the processor's prefetching. More tiles read them
  // again, and a run must stay in cache.
  cut.panels = tiles == 1 ? std::clamp(panels / (threads * 4), 1, 64) : std::clamp(panels / (threads * 8), 1, 8);
  return cut;
}

// One thread's share of a product over activations that are ready.
static inline void run_linear(const Kernels& k, const Linear& linear, const Acts& acts, float* out, size_t ld,
                              int threads, Counter& counter, void* scratch) {
  int panels = 0;
  for (const Part& part : linear.parts) panels += part.matrix->panels;
  const Cut cut = cut_for(panels, acts.tokens, threads);
  const int tiles = tiles_of(acts.tokens);
  int item = counter.take(), before = 0;
  for (const Part& part : linear.parts) {
    const int chunks = (part.matrix->panels + cut.panels - 1) / cut.panels;
    for (; item < before + chunks * cut.tile_items; item = counter.take()) {
      const int chunk = (item - before) / cut.tile_items, from = (item - before) % cut.tile_items * cut.tiles;
      const int begin = chunk * cut.panels, end = std::min(begin + cut.panels, part.matrix->panels);
      for (int tile = from; tile < std::min(from + cut.tiles, tiles); ++tile) {
        float* to = out + (size_t)tile * kTile * ld + part.row + begin * kRows;
        k.matmul({part.matrix, &acts, tile, begin, end, to, ld, part.bias, scratch, tile == from});
      }
    }
    before += chunks * cut.tile_items;
  }
}

}  // namespace octavo
