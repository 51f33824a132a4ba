#include "pack.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "blocks.h"
#include "matmul.h"

namespace octavo {

uint8_t* allocate(size_t bytes) {
  if (bytes == 0) bytes = 1;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (bytes >= (4u << 20)) madvise(p, bytes, MADV_HUGEPAGE);
#endif
  return (uint8_t*)p;
}

void release(uint8_t* data, size_t bytes) {
  if (data) munmap(data, bytes ? bytes : 1);
}

// The kernels look a few kilobytes ahead.
static size_t matrix_bytes(const Matrix& m) { return m.stride * m.panels + 4096; }

Matrix shape_matrix(int layout, int rows, int columns) {
  Matrix m;
  const LayoutInfo info = layout_info(layout);
  m.layout = layout;
  m.rows = rows;
  m.columns = columns;
  m.groups = (columns + kGroup - 1) / kGroup;
  m.panels = (rows + kRows - 1) / kRows;
  m.stride = ((size_t)m.groups * (info.code_bytes + info.scale_bytes) + 63) / 64 * 64;
  return m;
}

Matrix make_matrix(int layout, int rows, int columns) {
  Matrix m = shape_matrix(layout, rows, columns);
  m.data = allocate(matrix_bytes(m));
  return m;
}

void free_matrix(Matrix& m) {
  release(m.data, matrix_bytes(m));
  m.data = nullptr;
}

int layout_for(int qtype) {
  switch (qtype) {
    case kQ4_0: return kB4;
    case kQ4_1: case kQ4_K: return kB4M;
    case kQ5_0: return kB5;
    case kQ5_1: case kQ5_K: return kB5M;
    case kQ6_K: return kB6;
    case kIQ4_NL: case kIQ4_XS: return kL4;
    default: return kB8;
  }
}

namespace {

// A panel's rows apart: codes [16][columns], scales and offsets [16][columns / 16].
struct Rows {
  std::vector<uint8_t> code;
  std::vector<float> d, m;
  int columns, runs;

  explicit Rows(int groups) : columns(groups * kGroup), runs(groups * 2) {
    code.assign((size_t)16 * columns, 0);
    d.assign((size_t)16 * runs, 0.0f);
    m.assign((size_t)16 * runs, 0.0f);
  }
};

// Codes of a group in the order of format.h; four columns of a row are one word.
void put_codes(int layout, const Rows& rows, int group, uint8_t* to) {
  uint32_t step[8][16];
  for (int r = 0; r < 16; ++r) {
    uint32_t words[8];
    std::memcpy(words, rows.code.data() + (size_t)r * rows.columns + group * kGroup, 32);
    for (int s = 0; s < 8; ++s) step[s][r] = words[s];
  }
  if (layout == kB8) {
    std::memcpy(to, step, 512);
    return;
  }
  uint32_t out[32][16] = {};
  for (int n = 0; n < 4; ++n) {
    for (int r = 0; r < 16; ++r) out[n][r] = (step[n][r] & 0x0F0F0F0F) | (step[n + 4][r] & 0x0F0F0F0F) << 4;
  }
  for (int s = 0; s < 8; ++s) {
    for (int r = 0; r < 16; ++r) {
      if (layout == kB5 || layout == kB5M) out[4][r] |= (step[s][r] >> 4 & 0x01010101) << s;
      if (layout == kB6) out[4 + s / 4][r] |= (step[s][r] >> 4 & 0x03030303) << 2 * (s % 4);
    }
  }
  std::memcpy(to, out, layout_info(layout).code_bytes);
}

void put_scales(const Matrix& m, const Rows& rows, int group, uint16_t* to) {
  const float inverse = 1.0f / m.unit;
  for (int r = 0; r < 16; ++r) {
    const float* d = rows.d.data() + (size_t)r * rows.runs + 2 * group;
    to[r] = Plain::to_half(d[0] * inverse);
    if (m.layout == kB6) to[16 + r] = Plain::to_half(d[1] * inverse);
    if (m.layout == kB4M || m.layout == kB5M) {
      to[16 + r] = Plain::to_half(rows.m[(size_t)r * rows.runs + 2 * group] * inverse);
    }
  }
}

void put_panel(Matrix& m, int panel, const Rows& rows) {
  const LayoutInfo info = layout_info(m.layout);
  uint8_t* codes = m.data + panel * m.stride;
  uint8_t* scales = codes + (size_t)m.groups * info.code_bytes;
  for (int g = 0; g < m.groups; ++g) {
    put_codes(m.layout, rows, g, codes + (size_t)g * info.code_bytes);
    put_scales(m, rows, g, (uint16_t*)(scales + (size_t)g * info.scale_bytes));
  }
}

// The power of two that brings the largest scale to between 2^13 and 2^14.
float unit_for(float largest) {
  if (!(largest > 0) || !std::isfinite(largest)) return 1.0f;
  int exponent;
  std::frexp(largest, &exponent);
  return std::ldexp(1.0f, std::clamp(exponent - 14, -120, 100));
}

float largest_of(const std::vector<float>& parts) {
  float most = 0;
  for (float v : parts) most = std::max(most, v);
  return most;
}

// d, code and nothing else: codes of eight bits for 32 values.
void to_bytes(const float* x, uint8_t* code, float* d) {
  float top = 0;
  for (int i = 0; i < kGroup; ++i) top = std::max(top, std::fabs(x[i]));
  *d = top / 127.0f;
  const float inverse = top > 0 ? 127.0f / top : 0.0f;
  for (int i = 0; i < kGroup; ++i) code[i] = (uint8_t)(128 + (int)std::nearbyint(x[i] * inverse));
}

float nibble_error(const float* x, float d, float m, uint8_t* code) {
  float error = 0;
  const float inverse = d > 0 ? 1.0f / d : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float q = std::clamp(std::nearbyint((x[i] - m) * inverse), 0.0f, 15.0f);
    code[i] = (uint8_t)q;
    const float off = x[i] - (q * d + m);
    error += off * off;
  }
  return error;
}

// Codes of four bits with a minimum: of several ranges about the true one, that with the least square error.
void to_nibbles(const float* x, uint8_t* code, float* d, float* m) {
  const auto [low, high] = std::minmax_element(x, x + kGroup);
  float best = INFINITY;
  uint8_t tried[kGroup];
  for (int low_cut = 0; low_cut < 4; ++low_cut) {
    for (int high_cut = 0; high_cut < 4; ++high_cut) {
      const float span = *high - *low, from = *low + 0.03f * low_cut * span, to = *high - 0.03f * high_cut * span;
      const float step = Plain::half(Plain::to_half((to - from) / 15.0f));
      const float error = nibble_error(x, step, from, tried);
      if (error >= best) continue;
      best = error;
      *d = step;
      *m = from;
      std::memcpy(code, tried, kGroup);
    }
  }
}

void read_blocks(int qtype, const uint8_t* row, int columns, uint8_t* code, float* d, float* m) {
  const BlockInfo info = block_info(qtype);
  for (int n = 0; n < columns / info.values; ++n) {
    const uint8_t* block = row + (size_t)n * info.bytes;
    block_codes(qtype, block, code + (size_t)n * info.values);
    block_scales(qtype, block, d + (size_t)n * info.values / 16, m + (size_t)n * info.values / 16);
  }
}

// One row of blocks or floats in fp32.
void read_row(int qtype, const uint8_t* row, int columns, float* out) {
  for (int i = 0; i < columns && qtype <= 1; ++i) {
    if (qtype == 0) std::memcpy(out + i, row + 4 * (size_t)i, 4);
    if (qtype == 1) out[i] = half_at(row + 2 * (size_t)i);
  }
  if (qtype == 30) {
    for (int i = 0; i < columns; ++i) out[i] = Plain::bits((uint32_t)(row[2 * i] | row[2 * i + 1] << 8) << 16);
  }
  const BlockInfo info = block_info(qtype);
  if (!info.values) return;
  uint8_t code[256];
  float d[16], m[16];
  const bool levels = qtype == kIQ4_NL || qtype == kIQ4_XS;
  for (int n = 0; n < columns / info.values; ++n) {
    block_codes(qtype, row + (size_t)n * info.bytes, code);
    block_scales(qtype, row + (size_t)n * info.bytes, d, m);
    for (int i = 0; i < info.values; ++i) {
      out[n * info.values + i] = d[i / 16] * (levels ? kLevels[code[i]] : code[i]) + m[i / 16];
    }
  }
}

int float_qtype(int type) { return type == kF32 ? 0 : type == kF16 ? 1 : 30; }

// A panel of rows in fp32 to codes of `layout`.
void quantize_panel(Matrix& m, int panel, const std::vector<float>& values, Rows& rows) {
  for (int r = 0; r < 16; ++r) {
    for (int g = 0; g < m.groups; ++g) {
      const float* x = values.data() + (size_t)r * rows.columns + g * kGroup;
      uint8_t* code = rows.code.data() + (size_t)r * rows.columns + g * kGroup;
      float* d = rows.d.data() + (size_t)r * rows.runs + 2 * g;
      if (m.layout == kB8) to_bytes(x, code, d);
      if (m.layout == kB4M) to_nibbles(x, code, d, rows.m.data() + (size_t)r * rows.runs + 2 * g);
    }
  }
  put_panel(m, panel, rows);
}

// Rows that are read as `qtype` and kept in another form.
void requantize(Matrix& m, int qtype, const uint8_t* source, size_t row_bytes, Pool& pool) {
  std::vector<float> most((size_t)m.panels, 0.0f);
  pool.each(m.panels, [&](int panel) {
    std::vector<float> row((size_t)m.columns);
    for (int r = panel * 16; r < std::min(m.rows, panel * 16 + 16); ++r) {
      read_row(qtype, source + r * row_bytes, m.columns, row.data());
      for (float v : row) most[panel] = std::max(most[panel], std::fabs(v));
    }
  });
  m.unit = unit_for(largest_of(most));
  pool.each(m.panels, [&](int panel) {
    Rows rows(m.groups);
    std::vector<float> values((size_t)16 * rows.columns, 0.0f);
    for (int r = 0; r < 16 && panel * 16 + r < m.rows; ++r) {
      read_row(qtype, source + (panel * 16 + r) * row_bytes, m.columns, values.data() + (size_t)r * rows.columns);
    }
    quantize_panel(m, panel, values, rows);
  });
}

}  // namespace

void pack_blocks(Matrix& m, int qtype, const uint8_t* source, size_t row_bytes, Pool& pool) {
  if (qtype == kQ2_K || qtype == kQ3_K) return requantize(m, qtype, source, row_bytes, pool);
  const BlockInfo info = block_info(qtype);
  std::vector<float> most((size_t)m.panels, 0.0f);
  pool.each(m.panels, [&](int panel) {
    float d[16], least[16];
    const bool minimum = m.layout == kB4M || m.layout == kB5M;
    for (int r = panel * 16; r < std::min(m.rows, panel * 16 + 16); ++r) {
      for (int n = 0; n < m.columns / info.values; ++n) {
        block_scales(qtype, source + r * row_bytes + (size_t)n * info.bytes, d, least);
        for (int j = 0; j < info.values / 16; ++j) {
          most[panel] = std::max({most[panel], std::fabs(d[j]), minimum ? std::fabs(least[j]) : 0.0f});
        }
      }
    }
  });
  m.unit = unit_for(largest_of(most));
  pool.each(m.panels, [&](int panel) {
    Rows rows(m.groups);
    for (int r = 0; r < 16 && panel * 16 + r < m.rows; ++r) {
      read_blocks(qtype, source + (panel * 16 + r) * row_bytes, m.columns, rows.code.data() + (size_t)r * rows.columns,
                  rows.d.data() + (size_t)r * rows.runs, rows.m.data() + (size_t)r * rows.runs);
    }
    put_panel(m, panel, rows);
  });
}

void pack_floats(Matrix& m, int type, const uint8_t* source, Pool& pool) {
  const size_t size = type == kF32 ? 4 : 2, row_bytes = size * m.columns;
  if (!is_float(m.layout)) return requantize(m, float_qtype(type), source, row_bytes, pool);
  pool.each(m.panels, [&](int panel) {
    uint8_t* to = m.data + panel * m.stride;
    std::memset(to, 0, m.stride);
    for (int r = 0; r < 16 && panel * 16 + r < m.rows; ++r) {
      const uint8_t* row = source + (panel * 16 + r) * row_bytes;
      for (int k = 0; k < m.columns; ++k) std::memcpy(to + ((size_t)k * 16 + r) * size, row + k * size, size);
    }
  });
}

void lookup(int qtype, const uint8_t* table, size_t row_bytes, int columns, const int64_t* ids, int count,
            float multiplier, float* out, Pool& pool) {
  auto one = [&](int i) {
    float* row = out + (size_t)i * columns;
    read_row(qtype, table + (size_t)ids[i] * row_bytes, columns, row);
    for (int k = 0; k < columns; ++k) row[k] *= multiplier;
  };
  if (count < 8) {
    for (int i = 0; i < count; ++i) one(i);
  } else {
    pool.each(count, one);
  }
}

static uint8_t code_at(int layout, const uint8_t* codes, int row, int k) {
  const int s = k / 4, byte = 4 * row + k % 4;
  if (layout == kB8) return codes[64 * s + byte];
  uint8_t code = s < 4 ? codes[64 * s + byte] & 15 : codes[64 * (s - 4) + byte] >> 4;
  if (layout == kB5 || layout == kB5M) code |= (codes[256 + byte] >> s & 1) << 4;
  if (layout == kB6) code |= (codes[256 + 64 * (s / 4) + byte] >> 2 * (s % 4) & 3) << 4;
  return layout == kL4 ? kLevels[code] : code;
}

static float value_at(const Matrix& m, int row, int column) {
  const LayoutInfo info = layout_info(m.layout);
  const uint8_t* panel = m.data + (row / 16) * m.stride;
  const int group = column / kGroup, k = column % kGroup, r = row % 16;
  const uint8_t* codes = panel + (size_t)group * info.code_bytes;
  float value;
  if (m.layout == kF32) return std::memcpy(&value, codes + 4 * (16 * k + r), 4), value;
  if (m.layout == kF16) return half_at(codes + 2 * (16 * k + r));
  if (m.layout == kBF16) {
    const uint8_t* p = codes + 2 * (16 * k + r);
    return Plain::bits((uint32_t)(p[0] | p[1] << 8) << 16);
  }
  const uint8_t* scales = panel + (size_t)m.groups * info.code_bytes + (size_t)group * info.scale_bytes;
  const float d = half_at(scales + 2 * (r + (m.layout == kB6 && k >= 16 ? 16 : 0)));
  const float code = (float)code_at(m.layout, codes, r, k);
  if (m.layout == kB4M || m.layout == kB5M) return (d * code + half_at(scales + 2 * (16 + r))) * m.unit;
  return d * (code - (float)info.zero) * m.unit;
}

void unpack(const Matrix& m, float* out) {
  for (int r = 0; r < m.rows; ++r) {
    for (int k = 0; k < m.columns; ++k) out[(size_t)r * m.columns + k] = value_at(m, r, k);
  }
}

}  // namespace octavo
