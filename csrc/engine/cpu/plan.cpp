// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/plan.h"

#include <algorithm>

namespace xlstm {

DecodeCpuPlan plan_decode_cpu(int64_t weight_bytes, int64_t threads) {
  constexpr int64_t kLeastBytes = 256 << 10, kMostRows = 256;
  return {std::clamp<int64_t>(weight_bytes / kLeastBytes, 1, std::max<int64_t>(threads, 1)), kMostRows};
}

}  // namespace xlstm
