// SPDX-License-Identifier: Apache-2.0
// Launches a kernel with the LDS that it needs on the caller's stream; an error names the kernel.
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
  bool early_launch = false;  // may begin before the previous kernel has ended: see arch/nvidia/dependent_launch.h
  int cluster = 0;            // blocks of a Hopper cluster, which access each other's shared memory; 0: no clusters
  bool cooperative = false;   // all blocks are resident at once, or the launch fails
};

// The maximum of LDS that a kernel declares statically. Static and dynamic LDS count together towards the 48 KB above
// which CUDA wants to be asked.
constexpr int kMaxStaticLds = 16 << 10;

// A kernel without template parameters that stands in a header is a `template <int>`, launched as kernel<0>: nvcc
// ignores `inline` on a kernel, so a plain one would be defined in every file that includes the header.
template <class... Params, class... Arguments>
void launch(const char* name, void (*kernel)(Params...), const Grid& grid, Stream stream,
            const Arguments&... arguments) {
  if (grid.blocks == 0) return;
  if (grid.blocks > INT32_MAX) throw std::runtime_error(std::string(name) + ": more blocks than a grid may have");
  if (grid.lds_bytes > (48 << 10) - kMaxStaticLds) check_launch(name, allow_lds(kernel, grid.lds_bytes));
  check_launch(name, start(kernel, uint32_t(grid.blocks), grid.threads, grid.lds_bytes, grid.early_launch, grid.cluster,
                           grid.cooperative, stream, arguments...));
}

}  // namespace xlstm::gpu
