// SPDX-License-Identifier: Apache-2.0
// How a recurrent cell's call is partitioned on a CPU: a task has some rows of one head, and walks their tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/numbers.h"

namespace xlstm {

struct SlstmCpuPlan {
  int64_t workers;
  int64_t rows;    // sequences of a task
  bool is_packed;  // the matrix is packed once for the call; else its rows are multiplied as they lie
};

// A task's rows share each load of the matrix, so there are as many as the task's states may have in a cache, unless
// that leaves threads without a task. Packing costs what two tokens' products do.
inline SlstmCpuPlan plan_slstm_cpu(int64_t sequences, int64_t heads, int64_t longest, int32_t threads) {
  constexpr int64_t kMostRows = 16, kPackedFrom = 8;
  const int64_t tasks_wanted = ceil_div(threads, heads);
  const int64_t rows = std::clamp<int64_t>(ceil_div(sequences, tasks_wanted), 1, kMostRows);
  return {threads, rows, longest * std::min(sequences, kMostRows) >= kPackedFrom};
}

}  // namespace xlstm
