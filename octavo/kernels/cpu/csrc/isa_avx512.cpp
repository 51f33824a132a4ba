// The kernels for avx512; this file alone is compiled with the flags of that instruction set.
#include "kernels.h"
#include "vec_avx512.h"
#include "table.h"

namespace octavo {
const Kernels* const kAvx512 = table<Avx512>("avx512");
}
