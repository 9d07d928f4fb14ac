// SPDX-License-Identifier: Apache-2.0
// What every launch of a kernel does: the LDS it needs, the caller's stream, and an error that names it.
#pragma once

#include <stdexcept>
#include <string>

#include "arch/fragments.h"

namespace xlstm::gpu {

inline void check_launch(const char* kernel, Status status) {
  if (status != kSuccess) throw std::runtime_error(std::string(kernel) + ": " + status_text(status));
}

struct Grid {
  int64_t blocks;
  int threads, lds_bytes;
  bool early = false;     // before the kernel before it has ended: see arch/nvidia/dependent_launch.h
  int cluster = 0;        // blocks that see each other's LDS: Hopper's
  bool together = false;  // all blocks at once, or an error: NVIDIA's
};

// What a kernel may have of LDS of its own, beside what its launch gives it: together they are what asking counts from.
constexpr int kMostOwnLds = 16 << 10;

// A kernel without template parameters that stands in a header is a `template <int>`, launched as kernel<0>: nvcc ignores
// `inline` on a kernel, so a plain one would be defined in every file that includes the header.
template <class... Params, class... Arguments>
void launch(const char* name, void (*kernel)(Params...), const Grid& grid, Stream stream,
            const Arguments&... arguments) {
  if (grid.blocks == 0) return;
  if (grid.blocks > INT32_MAX) throw std::runtime_error(std::string(name) + ": more blocks than a grid may have");
  if (grid.lds_bytes > (48 << 10) - kMostOwnLds) check_launch(name, allow_lds(kernel, grid.lds_bytes));
  check_launch(name, start(kernel, uint32_t(grid.blocks), grid.threads, grid.lds_bytes, grid.early, grid.cluster,
                           grid.together, stream, arguments...));
}

}  // namespace xlstm::gpu
