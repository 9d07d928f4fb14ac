// SPDX-License-Identifier: Apache-2.0
// Multiply-adds of 64 lanes. Compiled as if the rounding mode never changed, since GCC otherwise makes no vectors of
// them; the functions are called where it is set, and have nothing that the compiler could compute or move.
#include "operations.h"

namespace gfx942 {

void fused_lanes(float* __restrict to, const float* a, const float* b, const float* c) {
  for (int l = 0; l < kLanes; ++l) to[l] = __builtin_fmaf(a[l], b[l], c[l]);
}
void fused_lanes(double* __restrict to, const double* a, const double* b, const double* c) {
  for (int l = 0; l < kLanes; ++l) to[l] = __builtin_fma(a[l], b[l], c[l]);
}

}  // namespace gfx942
