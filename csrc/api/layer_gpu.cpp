// SPDX-License-Identifier: Apache-2.0
// The layer calls of the C API on a GPU: there are none yet.
#include "api/call.h"

namespace {
xlstm_status none() {
  return xlstm::guarded([] { throw std::runtime_error("this library was built without GPU kernels"); });
}
}  // namespace

size_t xlstm_gpu_norm_backward_workspace(const xlstm_norm_backward*) {
  none();
  return 0;
}
xlstm_status xlstm_gpu_norm_backward_pass(const xlstm_norm_backward*, const xlstm_gpu*) { return none(); }
xlstm_status xlstm_gpu_norm_forward_pass(const xlstm_norm_forward*, const xlstm_gpu*) { return none(); }
xlstm_status xlstm_gpu_soft_cap_forward_pass(const xlstm_soft_cap*, const xlstm_gpu*) { return none(); }
xlstm_status xlstm_gpu_soft_cap_backward_pass(const xlstm_soft_cap*, const xlstm_gpu*) { return none(); }
xlstm_status xlstm_gpu_swiglu_forward_pass(const xlstm_swiglu*, const xlstm_gpu*) { return none(); }
xlstm_status xlstm_gpu_swiglu_backward_pass(const xlstm_swiglu*, const xlstm_gpu*) { return none(); }
xlstm_status xlstm_gpu_cross_entropy_forward_pass(const xlstm_cross_entropy*, const xlstm_gpu*) { return none(); }
xlstm_status xlstm_gpu_cross_entropy_backward_pass(const xlstm_cross_entropy*, const xlstm_gpu*) { return none(); }
