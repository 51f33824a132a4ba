// The kernels for avx2; this file alone is compiled with the flags of that instruction set.
#include "kernels.h"
#include "vec_avx2.h"
#include "table.h"

namespace octavo {
const Kernels* const kAvx2 = table<Avx2>("avx2");
}
