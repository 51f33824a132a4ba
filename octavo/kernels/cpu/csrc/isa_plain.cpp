// The kernels for plain; this file alone is compiled with the flags of that instruction set.
#ifndef OCTAVO_UNROLL
#define OCTAVO_UNROLL _Pragma("GCC unroll 1")  // nothing here stays in registers anyway, and it compiles far sooner
#endif
#include "kernels.h"
#include "vec_plain.h"
#include "table.h"

namespace octavo {
const Kernels* const kPlain = table<Plain>("plain");
}
