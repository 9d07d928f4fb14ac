// SPDX-License-Identifier: Apache-2.0
// The decode calls of the C API on a GPU: check, launch.
#include "api/call.h"
#include "api/engine.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "engine/kernels.h"

using namespace xlstm;

size_t xlstm_gpu_decode_workspace(const xlstm_decode* p) {
  return counted([&] {
    check_decode(given(p), false);
    return gpu::engine::decode_workspace(*p, gpu::current_chip());
  });
}

xlstm_status xlstm_gpu_decode_step(const xlstm_decode* p, const xlstm_gpu* g) {
  return guarded([&] {
    check_decode(given(p), false);
    const gpu::Chip chip = gpu::current_chip();
    check_workspace(given(g).workspace, g->workspace_bytes,
                    gpu::engine::decode_workspace(*p, chip) + kWorkspaceAlignment);
    gpu::engine::decode_step(*p, chip, aligned(g->workspace), g->stream);
  });
}

xlstm_status xlstm_gpu_draw_tokens(const xlstm_draw* p, const xlstm_gpu* g) {
  return guarded([&] {
    check_draw(given(p));
    gpu::engine::sample_tokens(*p, given(g).stream);
  });
}

#else  // a library without GPU kernels says so

size_t xlstm_gpu_decode_workspace(const xlstm_decode*) { return xlstm::no_gpu_bytes(); }
xlstm_status xlstm_gpu_decode_step(const xlstm_decode*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_draw_tokens(const xlstm_draw*, const xlstm_gpu*) { return xlstm::no_gpu(); }

#endif
