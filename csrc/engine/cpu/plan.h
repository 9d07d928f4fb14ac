// SPDX-License-Identifier: Apache-2.0
// Splits a decode step into tasks: pure functions of shapes and threads.
#pragma once

#include <cstdint>

namespace xlstm {

struct DecodeCpuPlan {
  int64_t workers;
  int64_t rows_at_once;  // at most, of a linear, in a task
};

// weight_bytes: of all weights, each of which is read once. A worker with less than a quarter of a megabyte to read
// loses more time in the waits after each part of a block than it saves.
DecodeCpuPlan plan_decode_cpu(int64_t weight_bytes, int64_t threads);

}  // namespace xlstm
