// SPDX-License-Identifier: Apache-2.0
// Random numbers from a seed and a counter, Philox 4x32-10 (Salmon et al., SC 2011), for the host and for GPU kernels:
// the numbers depend on no thread, tile or machine.
#pragma once

#include <stdint.h>

#include "base/host_device.h"

namespace xlstm {

struct Philox {
  uint32_t word[4];
};
XLSTM_RULE Philox philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t seed) {
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#if defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
    const uint32_t n0 = uint32_t(b >> 32) ^ c1 ^ k0, n2 = uint32_t(a >> 32) ^ c3 ^ k1;
    c0 = n0, c1 = uint32_t(b), c2 = n2, c3 = uint32_t(a);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace xlstm
