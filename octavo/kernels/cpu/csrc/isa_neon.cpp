// The kernels for neon; this file alone is compiled with the flags of that instruction set.
#include "kernels.h"
#include "vec_neon.h"
#include "table.h"

namespace octavo {
const Kernels* const kNeon = table<Neon>("neon");
}
