// SPDX-License-Identifier: Apache-2.0
#include "mlstm/cpu/plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace xlstm {

MlstmCpuPlan plan_mlstm_cpu(int64_t sequences, int64_t heads, int64_t longest, int64_t chunk_size, int64_t threads,
                            int64_t segments) {
  constexpr int64_t kMinChunks = 4;
  const int64_t walks = sequences * heads;
  const int64_t chunk = std::min(chunk_size, longest);
  const int64_t chunks = ceil_div(longest, chunk);
  const int64_t wanted = ceil_div(threads, walks);
  segments = segments ? std::min(segments, chunks) : std::max<int64_t>(1, std::min(wanted, chunks / kMinChunks));
  const int64_t chunks_each = ceil_div(chunks, segments);
  MlstmCpuPlan plan;
  plan.chunk = chunk;
  plan.segment_length = segments == 1 ? longest : chunks_each * chunk;
  plan.segments = ceil_div(longest, plan.segment_length);
  plan.workers = std::max<int64_t>(1, std::min(threads, walks * plan.segments));
  return plan;
}

}  // namespace xlstm
