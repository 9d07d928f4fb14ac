// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/plan.h"

#include <algorithm>

namespace xlstm {

DecodeCpuPlan plan_decode_cpu(int64_t weight_bytes, int64_t threads) {
  constexpr int64_t kMinBytes = 256 << 10, kMaxRows = 256;
  return {std::clamp<int64_t>(weight_bytes / kMinBytes, 1, std::max<int64_t>(threads, 1)), kMaxRows};
}

}  // namespace xlstm
