// SPDX-License-Identifier: Apache-2.0
// How a call is split into tasks: a pure function of the shape and the machine, so that it is tested anywhere.
#pragma once

#include <cstdint>

namespace xlstm {

struct MlstmCpuPlan {
  int64_t chunk;           // tokens of one matrix product
  int64_t segment_length;  // tokens that one task walks; a multiple of chunk, or the longest sequence
  int64_t segments;        // of the longest sequence
  int64_t workers;
};

// sequences times heads walks are independent. When they do not fill the threads, each sequence is split into segments.
// That costs a second pass over the states (half a forward), so each segment gets four chunks or more; the last segment
// gets the remaining chunks. segments: 0 lets the plan choose; a sequence of fewer chunks has fewer segments.
MlstmCpuPlan plan_mlstm_cpu(int64_t sequences, int64_t heads, int64_t longest, int64_t chunk_size, int64_t threads,
                            int64_t segments = 0);

}  // namespace xlstm
