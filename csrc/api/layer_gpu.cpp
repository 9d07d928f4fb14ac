// SPDX-License-Identifier: Apache-2.0
// The layer calls of the C API on a GPU: check, launch.
#include "api/call.h"
#include "api/layer.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "layer/gpu/kernels.h"

namespace xlstm {
namespace {

template <class Params>
xlstm_status call(const Params* p, const xlstm_gpu* g, void (&check)(const Params&, bool),
                  void (&launch)(const Params&, const gpu::Chip&, void*)) {
  return guarded([&] {
    check(given(p), false);
    launch(*p, gpu::current_chip(), given(g).stream);
  });
}

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_gpu_norm_backward_workspace(const xlstm_norm_backward* p) {
  return counted([&] {
    check_norm_backward(given(p), false);
    return gpu::layer::norm_backward_workspace(*p, gpu::current_chip());
  });
}

xlstm_status xlstm_gpu_norm_backward_pass(const xlstm_norm_backward* p, const xlstm_gpu* g) {
  return guarded([&] {
    check_norm_backward(given(p), false);
    const gpu::Chip chip = gpu::current_chip();
    check_workspace(given(g).workspace, g->workspace_bytes,
                    gpu::layer::norm_backward_workspace(*p, chip) + kWorkspaceAlignment);
    gpu::layer::norm_backward(*p, chip, aligned(g->workspace), g->stream);
  });
}

xlstm_status xlstm_gpu_norm_forward_pass(const xlstm_norm_forward* p, const xlstm_gpu* g) {
  return call(p, g, check_norm_forward, gpu::layer::norm_forward);
}
xlstm_status xlstm_gpu_soft_cap_forward_pass(const xlstm_soft_cap* p, const xlstm_gpu* g) {
  return call(p, g, check_soft_cap_forward, gpu::layer::soft_cap_forward);
}
xlstm_status xlstm_gpu_soft_cap_backward_pass(const xlstm_soft_cap* p, const xlstm_gpu* g) {
  return call(p, g, check_soft_cap_backward, gpu::layer::soft_cap_backward);
}
xlstm_status xlstm_gpu_swiglu_forward_pass(const xlstm_swiglu* p, const xlstm_gpu* g) {
  return call(p, g, check_swiglu_forward, gpu::layer::swiglu_forward);
}
xlstm_status xlstm_gpu_swiglu_backward_pass(const xlstm_swiglu* p, const xlstm_gpu* g) {
  return call(p, g, check_swiglu_backward, gpu::layer::swiglu_backward);
}
xlstm_status xlstm_gpu_cross_entropy_forward_pass(const xlstm_cross_entropy* p, const xlstm_gpu* g) {
  return call(p, g, check_cross_entropy_forward, gpu::layer::cross_entropy_forward);
}
xlstm_status xlstm_gpu_cross_entropy_backward_pass(const xlstm_cross_entropy* p, const xlstm_gpu* g) {
  return call(p, g, check_cross_entropy_backward, gpu::layer::cross_entropy_backward);
}

#else  // a library without GPU kernels says so

size_t xlstm_gpu_norm_backward_workspace(const xlstm_norm_backward*) { return xlstm::no_gpu_bytes(); }
xlstm_status xlstm_gpu_norm_backward_pass(const xlstm_norm_backward*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_norm_forward_pass(const xlstm_norm_forward*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_soft_cap_forward_pass(const xlstm_soft_cap*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_soft_cap_backward_pass(const xlstm_soft_cap*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_swiglu_forward_pass(const xlstm_swiglu*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_swiglu_backward_pass(const xlstm_swiglu*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_cross_entropy_forward_pass(const xlstm_cross_entropy*, const xlstm_gpu*) {
  return xlstm::no_gpu();
}
xlstm_status xlstm_gpu_cross_entropy_backward_pass(const xlstm_cross_entropy*, const xlstm_gpu*) {
  return xlstm::no_gpu();
}

#endif
