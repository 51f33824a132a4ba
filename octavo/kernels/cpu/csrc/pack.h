// Weights into the form of format.h, once, at load.
#pragma once
#include "format.h"
#include "pool.h"

namespace octavo {

// Memory of its own, in large pages where the system has them.
uint8_t* allocate(size_t bytes);
void release(uint8_t* data, size_t bytes);

// A matrix without memory.
Matrix shape_matrix(int layout, int rows, int columns);
// A matrix with room for its codes, none filled in.
Matrix make_matrix(int layout, int rows, int columns);
void free_matrix(Matrix& matrix);

// The layout that holds blocks of a GGUF type without loss; kB8 for those that have none of their own.
int layout_for(int qtype);

// From GGUF blocks, rows of `row_bytes`.
void pack_blocks(Matrix& matrix, int qtype, const uint8_t* blocks, size_t row_bytes, Pool& pool);

// From rows of fp32, fp16 or bf16 (`type`: kF32, kF16, kBF16): kept, or quantized to kB8 or kB4M.
void pack_floats(Matrix& matrix, int type, const uint8_t* rows, Pool& pool);

// Some rows of a table of GGUF blocks or floats in fp32: out [count][columns], times `multiplier`.
void lookup(int qtype, const uint8_t* table, size_t row_bytes, int columns, const int64_t* ids, int count,
            float multiplier, float* out, Pool& pool);

// All values of a matrix in fp32, as the kernels see them: out [rows][columns].
void unpack(const Matrix& matrix, float* out);

}  // namespace octavo
