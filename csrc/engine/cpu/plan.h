// SPDX-License-Identifier: Apache-2.0
// How one token's way through a model is cut into tasks: pure functions of shapes and threads.
#pragma once

#include <cstdint>

namespace xlstm {

struct DecodeCpuPlan {
  int64_t workers;
  int64_t rows_at_once;  // of a weight, at most, in a task
};

// weight_bytes: of all weights, read once. A worker that has less than a quarter of a megabyte to read spends longer
// meeting the others after every part of a block than it saves them.
DecodeCpuPlan plan_decode_cpu(int64_t weight_bytes, int64_t threads);

}  // namespace xlstm
