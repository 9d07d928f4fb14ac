// SPDX-License-Identifier: Apache-2.0
// Parts of a head's keys whose last one is short: a compute unit takes two of these, one behind the other, in the time
// of another part. They run where equal parts would leave compute units without work.
#pragma once

#include <stdint.h>

#include "base/host_device.h"

namespace xlstm::gpu::attention {

// The first of n tiles that part `part` of `parts` has. A short last one has 5 twelfths of another: half, but for what
// a block takes however many keys it has.
XLSTM_RULE int first_tile_of_part(int n, int64_t part, int64_t parts, bool last_is_short) {
  const uint32_t each = last_is_short ? 12 : 1, all = last_is_short ? 12 * uint32_t(parts) - 7 : uint32_t(parts);
  const uint64_t first = (uint64_t(uint32_t(n)) * (each * uint32_t(part)) + (last_is_short ? all - 1 : 0)) / all;
  return first < uint64_t(n) ? int(first) : n;
}

}  // namespace xlstm::gpu::attention
