// SPDX-License-Identifier: Apache-2.0
// Sums and the largest over eight neighbouring lanes, in each of them. AMD moves words within a row of lanes without
// LDS (DPP). CDNA alone has kernels that use them.
#pragma once

#include "arch/lanes.h"

namespace xlstm::gpu {

#if defined(__CUDACC__)
__device__ int sum_over_octet(int x);
__device__ uint32_t most_over_octet(uint32_t x);
#else
constexpr int kOctetExchanges[] = {0xb1, 0x4e, 0x141};  // DPP: with a neighbour; pairs; the octet reversed
XLSTM_DEVICE int sum_over_octet(int x) {
  x += from_row<kOctetExchanges[0]>(x);
  x += from_row<kOctetExchanges[1]>(x);
  return x + from_row<kOctetExchanges[2]>(x);
}
template <int kControl>
XLSTM_DEVICE uint32_t most_with(uint32_t x) {
  const uint32_t other = from_row<kControl>(x);
  return other > x ? other : x;
}
XLSTM_DEVICE uint32_t most_over_octet(uint32_t x) {
  return most_with<kOctetExchanges[2]>(most_with<kOctetExchanges[1]>(most_with<kOctetExchanges[0]>(x)));
}
#endif

}  // namespace xlstm::gpu
