// SPDX-License-Identifier: Apache-2.0
// The mLSTM calls of the C API on a GPU: check, plan, launch.
#include <algorithm>

#include "api/call.h"
#include "api/mlstm.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "mlstm/gpu/kernels.h"

namespace xlstm {
namespace {

bool has_panels(const xlstm_mlstm& in) {
  return gpu::has_panels(in.q, in.dqk, in) && gpu::has_panels(in.k, in.dqk, in) && gpu::has_panels(in.v, in.dhv, in);
}

gpu::mlstm::MlstmShape shape_of(const xlstm_mlstm& in, bool panels) {
  if (in.q.dtype == XLSTM_FLOAT64)
    throw std::invalid_argument("q: expected float32, bfloat16 or float16 on a GPU, got float64");
  return {in.cu_seqlens ? in.sequences : in.batch,
          in.heads,
          in.length,
          in.dqk,
          in.dhv,
          in.cu_seqlens != nullptr,
          gpu::element_bytes(in.q),
          panels,
          in.walk_chunk,
          in.segments};
}

gpu::mlstm::ForwardPlan plan(const xlstm_mlstm_forward& p, bool panels) {
  return plan_forward(shape_of(p.in, panels), gpu::current_chip());
}
gpu::mlstm::BackwardPlan plan(const xlstm_mlstm_backward& p, bool panels) {
  return plan_backward(shape_of(p.in, panels), gpu::current_chip());
}
gpu::mlstm::ForwardPlan plan(const xlstm_mlstm_forward& p) {
  return plan(p, has_panels(p.in) && gpu::has_panels(p.h, p.in.dhv, p.in));
}
gpu::mlstm::BackwardPlan plan(const xlstm_mlstm_backward& p) {
  bool panels = has_panels(p.in);
  for (const xlstm_tensor* x : {&p.h, &p.dh, &p.dv}) panels = panels && gpu::has_panels(*x, p.in.dhv, p.in);
  for (const xlstm_tensor* x : {&p.dq, &p.dk}) panels = panels && gpu::has_panels(*x, p.in.dqk, p.in);
  return plan(p, panels);
}
// What a call needs must not change with where its tensors lie: room for either schedule.
template <class Call>
size_t for_any_plan(const Call& p, size_t (&workspace)(const Call&, const decltype(plan(p))&)) {
  return std::max(workspace(p, plan(p, false)), p.in.q.dtype == XLSTM_BFLOAT16 ? workspace(p, plan(p, true)) : 0);
}
gpu::Chip chip_for_recurrent(const xlstm_mlstm_forward& p) {
  shape_of(p.in, false);  // throws where there is no kernel for it
  return gpu::current_chip();
}

void check_runtime(const xlstm_gpu& g, size_t needed) {
  check_workspace(g.workspace, g.workspace_bytes, needed + kWorkspaceAlignment);
}

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_gpu_mlstm_chunkwise_workspace(const xlstm_mlstm_forward* p) {
  return counted([&] {
    check_chunkwise(given(p), false);
    return for_any_plan(*p, gpu::mlstm::chunkwise_workspace);
  });
}

size_t xlstm_gpu_mlstm_recurrent_workspace(const xlstm_mlstm_forward* p) {
  return counted([&] {
    check_recurrent(given(p), false);
    return gpu::mlstm::recurrent_workspace(*p, chip_for_recurrent(*p));
  });
}

size_t xlstm_gpu_mlstm_backward_workspace(const xlstm_mlstm_backward* p) {
  return counted([&] {
    check_backward(given(p), false);
    return for_any_plan(*p, gpu::mlstm::backward_workspace);
  });
}

xlstm_status xlstm_gpu_mlstm_chunkwise(const xlstm_mlstm_forward* p, const xlstm_gpu* g) {
  return guarded([&] {
    check_chunkwise(given(p), false);
    const gpu::mlstm::ForwardPlan cut = plan(*p);
    check_runtime(given(g), gpu::mlstm::chunkwise_workspace(*p, cut));
    gpu::mlstm::chunkwise(*p, cut, aligned(g->workspace), g->stream);
  });
}

xlstm_status xlstm_gpu_mlstm_recurrent(const xlstm_mlstm_forward* p, const xlstm_gpu* g) {
  return guarded([&] {
    check_recurrent(given(p), false);
    const gpu::Chip chip = chip_for_recurrent(*p);
    check_runtime(given(g), gpu::mlstm::recurrent_workspace(*p, chip));
    gpu::mlstm::recurrent(*p, chip, aligned(g->workspace), g->stream);
  });
}

xlstm_status xlstm_gpu_mlstm_backward_pass(const xlstm_mlstm_backward* p, const xlstm_gpu* g) {
  return guarded([&] {
    check_backward(given(p), false);
    const gpu::mlstm::BackwardPlan cut = plan(*p);
    check_runtime(given(g), gpu::mlstm::backward_workspace(*p, cut));
    gpu::mlstm::backward(*p, cut, aligned(g->workspace), g->stream);
  });
}

#else  // a library without GPU kernels says so

size_t xlstm_gpu_mlstm_chunkwise_workspace(const xlstm_mlstm_forward*) { return xlstm::no_gpu_bytes(); }
size_t xlstm_gpu_mlstm_recurrent_workspace(const xlstm_mlstm_forward*) { return xlstm::no_gpu_bytes(); }
size_t xlstm_gpu_mlstm_backward_workspace(const xlstm_mlstm_backward*) { return xlstm::no_gpu_bytes(); }
xlstm_status xlstm_gpu_mlstm_chunkwise(const xlstm_mlstm_forward*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_mlstm_recurrent(const xlstm_mlstm_forward*, const xlstm_gpu*) { return xlstm::no_gpu(); }
xlstm_status xlstm_gpu_mlstm_backward_pass(const xlstm_mlstm_backward*, const xlstm_gpu*) { return xlstm::no_gpu(); }

#endif
