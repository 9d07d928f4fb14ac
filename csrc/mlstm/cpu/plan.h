// SPDX-License-Identifier: Apache-2.0
// How a call is cut into tasks: a pure function of the shape and the machine, so that it is tested anywhere.
#pragma once

#include <cstdint>

namespace xlstm {

struct MlstmCpuPlan {
  int64_t chunk;           // tokens that one matrix product takes
  int64_t segment_length;  // tokens that one task walks; a multiple of chunk, or the longest sequence
  int64_t segments;        // of the longest sequence
  int64_t workers;
};

// sequences times heads walks are independent. When they do not fill the threads, each sequence is cut into segments:
// that costs a second pass over the states (half a forward), so only where each gets four chunks or more (the last one
// takes what is left). segments: 0 leaves them to the plan; of fewer chunks there are fewer.
MlstmCpuPlan plan_mlstm_cpu(int64_t sequences, int64_t heads, int64_t longest, int64_t chunk_size, int64_t threads,
                            int64_t segments = 0);

}  // namespace xlstm
