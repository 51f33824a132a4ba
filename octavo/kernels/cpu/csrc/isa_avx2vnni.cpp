// The kernels for avx2vnni; this file alone is compiled with the flags of that instruction set.
#include "kernels.h"
#include "vec_avx2.h"
#include "table.h"

namespace octavo {
const Kernels* const kAvx2Vnni = table<Avx2Vnni>("avx2vnni");
}
