// SPDX-License-Identifier: Apache-2.0
// The attention calls of the C API on a GPU: check, plan, launch.
#include "api/attention.h"
#include "api/call.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "attention/gpu/kernels.h"

namespace xlstm {
namespace {

void has_kernel(const char* name, xlstm_dtype dtype) {
  if (dtype == XLSTM_FLOAT64)
    throw std::invalid_argument(std::string(name) + ": expected float32, bfloat16 or float16 on a GPU, got float64");
}
void check(const xlstm_attention_forward& p) {
  check_attention_forward(p, false);
  has_kernel("q", p.in.q.dtype);
}
void check(const xlstm_attention_backward& p) {
  check_attention_backward(p, false);
  has_kernel("q", p.in.q.dtype);
}
void check(const xlstm_attention_append& p) {
  check_attention_append(p, false);
  has_kernel("x", p.from.dtype);
}
void check(const xlstm_attention_combine& p) {
  check_attention_combine(p);
  has_kernel("out_partial", p.wide);
}

template <class Params>
size_t count(const Params* p, size_t (&needed)(const Params&, const gpu::Chip&)) {
  return counted([&] {
    check(given(p));
    return needed(*p, gpu::current_chip());
  });
}
template <class Params>
xlstm_status call(const Params* p, const xlstm_gpu* g, size_t (&needed)(const Params&, const gpu::Chip&),
                  void (&run)(const Params&, const gpu::Chip&, void*, void*)) {
  return guarded([&] {
    check(given(p));
    const gpu::Chip chip = gpu::current_chip();
    const xlstm_gpu& at = given(g);
    check_workspace(at.workspace, at.workspace_bytes, needed(*p, chip) + kWorkspaceAlignment);
    run(*p, chip, aligned(at.workspace), at.stream);
  });
}

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_gpu_attention_forward_workspace(const xlstm_attention_forward* p) {
  return count(p, gpu::attention::attention_forward_workspace);
}
size_t xlstm_gpu_attention_backward_workspace(const xlstm_attention_backward* p) {
  return count(p, gpu::attention::attention_backward_workspace);
}
size_t xlstm_gpu_attention_append_workspace(const xlstm_attention_append* p) {
  return count(p, gpu::attention::attention_append_workspace);
}
size_t xlstm_gpu_attention_combine_workspace(const xlstm_attention_combine* p) {
  return count(p, gpu::attention::attention_combine_workspace);
}

xlstm_status xlstm_gpu_attention_forward_pass(const xlstm_attention_forward* p, const xlstm_gpu* g) {
  return call(p, g, gpu::attention::attention_forward_workspace, gpu::attention::attention_forward);
}
xlstm_status xlstm_gpu_attention_backward_pass(const xlstm_attention_backward* p, const xlstm_gpu* g) {
  return call(p, g, gpu::attention::attention_backward_workspace, gpu::attention::attention_backward);
}
xlstm_status xlstm_gpu_attention_append_tokens(const xlstm_attention_append* p, const xlstm_gpu* g) {
  return call(p, g, gpu::attention::attention_append_workspace, gpu::attention::attention_append);
}
xlstm_status xlstm_gpu_attention_combine_parts(const xlstm_attention_combine* p, const xlstm_gpu* g) {
  return call(p, g, gpu::attention::attention_combine_workspace, gpu::attention::attention_combine);
}

#else  // a library without GPU kernels says so

#define XLSTM_WITHOUT(call, params) \
  xlstm_status call(const params*, const xlstm_gpu*) { return xlstm::no_gpu(); }
#define XLSTM_WITHOUT_BYTES(call, params) \
  size_t call(const params*) { return xlstm::no_gpu_bytes(); }

XLSTM_WITHOUT_BYTES(xlstm_gpu_attention_forward_workspace, xlstm_attention_forward)
XLSTM_WITHOUT_BYTES(xlstm_gpu_attention_backward_workspace, xlstm_attention_backward)
XLSTM_WITHOUT_BYTES(xlstm_gpu_attention_append_workspace, xlstm_attention_append)
XLSTM_WITHOUT_BYTES(xlstm_gpu_attention_combine_workspace, xlstm_attention_combine)
XLSTM_WITHOUT(xlstm_gpu_attention_forward_pass, xlstm_attention_forward)
XLSTM_WITHOUT(xlstm_gpu_attention_backward_pass, xlstm_attention_backward)
XLSTM_WITHOUT(xlstm_gpu_attention_append_tokens, xlstm_attention_append)
XLSTM_WITHOUT(xlstm_gpu_attention_combine_parts, xlstm_attention_combine)

#endif
