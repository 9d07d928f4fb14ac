// SPDX-License-Identifier: Apache-2.0
#include "arch/launch.h"
#include "engine/kernels.h"
#include "engine/sampling/sampling_kernel.h"

namespace xlstm::gpu::engine {

void sample_tokens(const xlstm_draw& p, void* stream_pointer) {
  const SampleParams params{p, rules_of(p)};
  const Stream stream = static_cast<Stream>(stream_pointer);
  const Grid grid{p.batch, kSampleThreads, 0};
  params.rules.greedy ? launch("sample token", sample_kernel<true>, grid, stream, params)
                      : launch("sample token", sample_kernel<false>, grid, stream, params);
}

}  // namespace xlstm::gpu::engine
