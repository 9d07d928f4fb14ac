// SPDX-License-Identifier: Apache-2.0
#include "arch/launch.h"
#include "engine/kernels.h"
#include "engine/sampling/sampling_kernel.h"

namespace xlstm::gpu::engine {

void draw_tokens(const xlstm_draw& p, void* stream_pointer) {
  const DrawParams params{p, rules_of(p)};
  const Stream stream = static_cast<Stream>(stream_pointer);
  const Grid grid{p.batch, kDrawThreads, 0};
  params.rules.greedy ? launch("draw token", draw_token<true>, grid, stream, params)
                      : launch("draw token", draw_token<false>, grid, stream, params);
}

}  // namespace xlstm::gpu::engine
