// The kernels for plain; this file alone is compiled with the flags of that instruction set.
#include "kernels.h"
#include "vec_plain.h"
#include "table.h"

namespace octavo {
const Kernels* const kPlain = table<Plain>("plain");
}
