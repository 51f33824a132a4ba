// Fills a table with the routines of one instruction set.
#pragma once
#include "attend.h"
#include "kernels.h"

namespace octavo {

template <class V>
static const Kernels* table(const char* name) {
  static const Kernels kernels = {name,    matmul<V>,   combine<V>, put_row<V>, put_one<V>,
                                  gate<V>, prologue<V>, attend<V>,  rms_norm<V>, argmax<V>};
  return &kernels;
}

}  // namespace octavo
