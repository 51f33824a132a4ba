// A whole decoder: one call a step. Built from the same Architecture as the torch module, layer by layer.
#pragma once
#include <vector>

#include "kernels.h"
#include "pack.h"

namespace octavo {

// A matrix and its place among the outputs of a stacked product.
struct Part {
  const Matrix* matrix;
  int row;            // of its first output
  const float* bias;  // of that output, or null
};

struct Linear {
  std::vector<Part> parts;
  int rows = 0;
};

struct LayerWeights {
  Linear qkv, o, gate, up, down;
  // Norm weights; null where the layer has none.
  const float *before_attention = nullptr, *after_attention = nullptr, *before_mlp = nullptr, *after_mlp = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  bool whole_norm = false;
  int heads = 0, kv_heads = 0, dim = 0;
  float scale = 0;
  int window = 0;
  float softcap = 0;
  int rope = -1;   // index into Step::ropes
  int group = 0;   // index into Step::groups
  uint8_t* kv = nullptr;  // the layer's part of block 0 of the cache
  int activation = 0;
  float multiplier = 1;
};

struct Rotation {
  const float* table;    // [rows][width]: cosines, then sines
  const int64_t* index;  // [tokens], rows of the table
  int width;
};

struct KvGroup {
  const int32_t* blocks;  // [rows][stride]
  size_t stride;
  const int64_t* slots;  // [tokens]
};

struct Step {
  int tokens, rows;
  const int64_t* positions;    // [tokens]
  const int32_t* query_start;  // [rows + 1]
  std::vector<KvGroup> groups;
  std::vector<Rotation> ropes;
  float* hidden;  // [tokens][hidden]: embeddings in, normed hidden states out
};

// Memory for activations that grows with the largest step.
class ActBuffer {
 public:
  ~ActBuffer();
  const Acts& fit(int tokens, int columns, bool floats, int planes);

 private:
  Acts acts_;
  std::vector<uint8_t> q_, scale_, sum_, x_;
};

// The state that a call of `linear` needs besides weights.
class Engine {
 public:
  Engine(const Kernels* kernels, Pool* pool) : k(*kernels), pool(*pool) {}

  // x [tokens][columns] fp32 -> out [tokens][ld]; `planes` as in Acts
  void linear(const Linear& linear, const float* x, int tokens, int columns, int planes, float* out, size_t ld);
  // The same, and the place of each token's largest output; -1 where one is not finite.
  void likeliest(const Linear& linear, const float* x, int tokens, int columns, int planes, float* out, size_t ld,
                 int64_t* places);

  const Kernels& k;
  Pool& pool;

 private:
  void run(const Linear& linear, const float* x, int tokens, int columns, int planes, float* out, size_t ld,
           int64_t* places);

  ActBuffer acts_;
};

class Decoder {
 public:
  Decoder(Engine* engine, int hidden, float eps, const float* final_norm, int planes)
      : engine_(*engine), hidden_(hidden), eps_(eps), final_norm_(final_norm), planes_(planes) {}

  void add(LayerWeights layer) { layers_.push_back(std::move(layer)); }
  // Where each layer's keys and values lie: its group, its part of block 0, bytes from block to block.
  void place(const std::vector<int>& groups, const std::vector<uintptr_t>& kv, size_t block_stride, int block_size,
             int kv_type);
  void forward(const Step& step);

 private:
  friend class StepRun;
  Engine& engine_;
  int hidden_;
  float eps_;
  const float* final_norm_;
  int planes_;  // of the codes of activations, see Acts
  std::vector<LayerWeights> layers_;
  size_t block_stride_ = 0;
  int block_size_ = 16, kv_type_ = 0;
  ActBuffer in_, mid_, wide_;
  std::vector<float> qkv_, attention_, out_;
};

}  // namespace octavo
