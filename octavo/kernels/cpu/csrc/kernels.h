// The table of routines that each instruction set fills once.
#pragma once
#include "format.h"

namespace octavo {

struct MatmulArgs;
struct CombineArgs;
struct PrologueArgs;
struct AttendArgs;

struct Kernels {
  const char* name;
  void (*matmul)(const MatmulArgs&);
  void (*combine)(const CombineArgs&);
  void (*put_row)(const Acts&, int token, const float* x, int n, bool codes, bool floats);
  void (*put_group)(const Acts&, int token, int group, const float* x, bool codes, bool floats);
  void (*gate)(float* g, const float* up, int n, int activation);
  void (*prologue)(const PrologueArgs&);
  void (*attend)(const AttendArgs&);
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  int64_t (*argmax)(const float* x, int64_t n, float* best);
};

// Null where this build has no such routines.
extern const Kernels* const kAvx512;
extern const Kernels* const kAvx2Vnni;
extern const Kernels* const kAvx2;
extern const Kernels* const kNeon;
extern const Kernels* const kPlain;

// The best that this processor runs; OCTAVO_CPU_ISA names one by hand. Null if that one cannot run here.
const Kernels* choose_kernels(const char* wanted);

}  // namespace octavo
