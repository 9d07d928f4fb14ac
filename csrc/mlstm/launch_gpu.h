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
  int sets = 1;  // of params, along y
};

template <class... Params, class... Arguments>
void launch(const char* name, void (*kernel)(Params...), const Grid& grid, Stream stream, const Arguments&... arguments) {
  if (grid.blocks == 0) return;
  if (grid.blocks > INT32_MAX) throw std::runtime_error(std::string(name) + ": more blocks than a grid may have");
  if (grid.lds_bytes > 48 << 10) check_launch(name, allow_lds(kernel, grid.lds_bytes));
  kernel<<<dim3(uint32_t(grid.blocks), grid.sets), grid.threads, grid.lds_bytes, stream>>>(arguments...);
  check_launch(name, last_status());
}

// One or two walks of one plan, with what their segments need before.
template <class E>
void launch_walks(const WalkPlan&, const Chip&, const WalkParams* walks, int count, Stream);

}  // namespace xlstm::gpu
