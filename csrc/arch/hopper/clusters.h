// SPDX-License-Identifier: Apache-2.0
// Whether a cooperative grid of clusters fits the current device. A cluster runs on one GPC, and how many of a GPC's
// multiprocessors work differs from card to card. CUDA libraries only.
#pragma once

#include "arch/launch.h"

namespace xlstm::gpu {

template <class... Params>
bool fits_at_once(const char* name, void (*kernel)(Params...), const Grid& grid) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(uint32_t(grid.blocks)), config.blockDim = dim3(uint32_t(grid.threads));
  config.dynamicSmemBytes = size_t(grid.lds_bytes);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {uint32_t(grid.cluster), 1, 1};
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  check_launch(name, allow_lds(kernel, grid.lds_bytes));
  check_launch(name, cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return int64_t(clusters) * grid.cluster >= grid.blocks;
}

}  // namespace xlstm::gpu
