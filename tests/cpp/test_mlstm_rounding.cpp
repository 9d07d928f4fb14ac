// SPDX-License-Identifier: Apache-2.0
// The C API's conversions of the 16-bit formats, for every pattern and instruction set. With open gates, zero states
// and one token, h = q k v: a product of three 16-bit numbers that is exact in float and rounded once.
#include "each_isa.h"
#include "mlstm_call.h"

namespace {

void test_patterns(const Format& format, xlstm_dtype dtype, double k) {
  Settings set;
  set.dtype = dtype;
  set.gate = XLSTM_GATE_SIGMOID;
  set.normalize = false;
  set.states = false;
  Problem p = random_problem({1, 1, 1, 1, 65536, 64}, set);
  p.q = {1}, p.k = {k}, p.i = p.f = {1000};
  for (int bits = 0; bits < 65536; ++bits) p.v[bits] = format.decode(uint16_t(bits));
  const Values one_call = chunkwise(p).h, other_call = recurrent(p).h;
  for (int bits = 0; bits < 65536; ++bits) {
    const double v = p.v[bits], expected = rounded(k * v, dtype);
    // The bfloat16 dot product flushes denormal inputs and results.
    const bool denormal = std::min(std::fabs(v), std::fabs(k * v)) < 0x1p-126;
    const bool flushed = dtype == XLSTM_BFLOAT16 && bf16_products() && denormal && one_call[bits] == 0;
    CHECK(flushed || relative_error(one_call[bits], expected) == 0, "dtype %d %04x times %g: chunkwise has %g, not %g",
          int(dtype), bits, k, one_call[bits], expected);
    CHECK(relative_error(other_call[bits], expected) == 0, "dtype %d %04x times %g: recurrent has %g, not %g",
          int(dtype), bits, k, other_call[bits], expected);
  }
}

void tests() {
  // Times 1 the result is the pattern. Times 3/2 every other result is a tie, times 5/4 every fourth. The last factor
  // gives arbitrary remainders.
  for (double k : {1.0, 1.5, 1.25, -1.0, 0.0078125, 1.609375}) {
    test_patterns(kBfloat16, XLSTM_BFLOAT16, k);
    test_patterns(kFloat16, XLSTM_FLOAT16, k);
  }
}

}  // namespace

int main() { return run_for_each_isa(tests); }
