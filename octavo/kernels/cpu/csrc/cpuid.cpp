// Which instruction set this processor runs. Compiled without flags of any.
#include <cstring>
#include <initializer_list>

#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace octavo {

static bool runs(const Kernels* kernels) {
  if (!kernels) return false;
  if (kernels == kPlain) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (kernels == kAvx2) return avx2;
  if (kernels == kAvx2Vnni) return avx2 && __builtin_cpu_supports("avxvnni");
  if (kernels == kAvx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
  }
  return false;
#elif defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // Apple's own processors all have the dot product
#endif
}

const Kernels* choose_kernels(const char* wanted) {
  for (const Kernels* kernels : {kAvx512, kAvx2Vnni, kAvx2, kNeon, kPlain}) {
    if (!runs(kernels)) continue;
    if (!wanted || !*wanted || !std::strcmp(wanted, kernels->name)) return kernels;
  }
  return nullptr;
}

}  // namespace octavo
