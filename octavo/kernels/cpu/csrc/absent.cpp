// Instruction sets that this build has no routines for.
#include "kernels.h"

namespace octavo {
#ifndef OCTAVO_AVX512
const Kernels* const kAvx512 = nullptr;
#endif
#ifndef OCTAVO_AVX2VNNI
const Kernels* const kAvx2Vnni = nullptr;
#endif
#ifndef OCTAVO_AVX2
const Kernels* const kAvx2 = nullptr;
#endif
#ifndef OCTAVO_NEON
const Kernels* const kNeon = nullptr;
#endif
}  // namespace octavo
