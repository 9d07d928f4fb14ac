// SPDX-License-Identifier: Apache-2.0
// From plans to launches: the walks, one file per dtype so that they compile side by side, and what every launch does.
#pragma once

#include <stdexcept>
#include <string>

#include "mlstm/params_gpu.h"
#include "mlstm/plan_gpu.h"
#include "tile/gpu.h"

namespace xlstm::gpu {

inline void check_launch(const char* kernel, Status status) {
  if (status != kSuccess) throw std::runtime_error(std::string(kernel) + ": " + status_text(status));
}

struct Grid {
  int64_t blocks;
  int threads, lds_bytes;
};

template <class... Params, class... Arguments>
void launch(const char* name, void (*kernel)(Params...), const Grid& grid, Stream stream,
            const Arguments&... arguments) {
  if (grid.blocks == 0) return;
  if (grid.blocks > INT32_MAX) throw std::runtime_error(std::string(name) + ": more blocks than a grid may have");
  if (grid.lds_bytes > 48 << 10) check_launch(name, allow_lds(kernel, grid.lds_bytes));
  check_launch(name, start(kernel, uint32_t(grid.blocks), grid.threads, grid.lds_bytes, stream, arguments...));
}

// A walk, with what its segments need before. With before_last also the dots of that and dc_last.
template <class E>
void launch_walk(const WalkPlan&, const Chip&, const WalkParams&, const float* dc_last, float* dots, Stream);

// The same for bfloat16 where the plan says Schedule::hopper, in a library for CUDA.
// normaliser: it makes them too, from n before each chunk; or null.
void launch_walk_hopper(const WalkPlan&, const WalkParams&, const NormaliserParams* normaliser, const float* dc_last,
                        float* dots, Stream);
template <bool kBackward>
void launch_scores_hopper(const ScoreParams&, Stream);

}  // namespace xlstm::gpu
