// SPDX-License-Identifier: Apache-2.0
// The mLSTM calls of the C API on a GPU.
#include <algorithm>

#include "api/entry.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "mlstm/chunkwise/chunkwise_call.h"
#include "mlstm/gpu/tensor_layout.h"
#include "mlstm/recurrent/recurrent_call.h"

namespace xlstm {
namespace {

using gpu::Chip;
using gpu::mlstm::BackwardPlan, gpu::mlstm::ForwardPlan, gpu::mlstm::MlstmShape;

bool has_panels(const xlstm_mlstm& in) {
  return gpu::mlstm::has_panels(in.q, in.dqk, in) && gpu::mlstm::has_panels(in.k, in.dqk, in) &&
         gpu::mlstm::has_panels(in.v, in.dhv, in);
}
bool has_panels(const xlstm_mlstm_forward& p) {
  return has_panels(p.in) && gpu::mlstm::has_panels(p.h, p.in.dhv, p.in);
}
bool has_panels(const xlstm_mlstm_backward& p) {
  bool panels = has_panels(p.in);
  for (const xlstm_tensor* x : {&p.h, &p.dh, &p.dv}) panels = panels && gpu::mlstm::has_panels(*x, p.in.dhv, p.in);
  for (const xlstm_tensor* x : {&p.dq, &p.dk}) panels = panels && gpu::mlstm::has_panels(*x, p.in.dqk, p.in);
  return panels;
}

template <void (*kCheck)(const xlstm_mlstm_forward&, bool)>
void check_forward_on_gpu(const xlstm_mlstm_forward& p, bool on_host) {
  kCheck(p, on_host);
  has_gpu_dtype("q", p.in.q.dtype);
}
void check_backward_on_gpu(const xlstm_mlstm_backward& p, bool on_host) {
  check_backward(p, on_host);
  has_gpu_dtype("q", p.in.q.dtype);
}

MlstmShape shape_of(const xlstm_mlstm& in, bool panels, bool other_states) {
  return {in.cu_seqlens ? in.sequences : in.batch,
          in.heads,
          in.length,
          in.dqk,
          in.dhv,
          gpu::element_bytes(in.q),
          panels,
          in.walk_chunk,
          in.segments,
          !in.c_initial && !other_states,
          in.cu_seqlens != nullptr};
}
ForwardPlan plan(const xlstm_mlstm_forward& p, bool panels, const Chip& chip) {
  return plan_forward(shape_of(p.in, panels, p.c_last), chip);
}
BackwardPlan plan(const xlstm_mlstm_backward& p, bool panels, const Chip& chip) {
  return plan_backward(shape_of(p.in, panels, p.dc_last || p.dc_initial), chip);
}

// Hopper's schedule depends on the layout of the tensors. This workspace suffices for both schedules.
template <class Params, class Plan, size_t (*kWorkspace)(const Params&, const Plan&)>
size_t workspace_of_either_schedule(const Params& p, const Chip& chip) {
  const size_t common = kWorkspace(p, plan(p, false, chip));
  return p.in.q.dtype == XLSTM_BFLOAT16 ? std::max(common, kWorkspace(p, plan(p, true, chip))) : common;
}

constexpr GpuEntry<xlstm_mlstm_forward, ForwardPlan> kChunkwise = {
    check_forward_on_gpu<check_chunkwise>, [](const auto& p, const Chip& chip) { return plan(p, has_panels(p), chip); },
    gpu::mlstm::chunkwise_workspace, gpu::mlstm::chunkwise,
    workspace_of_either_schedule<xlstm_mlstm_forward, ForwardPlan, gpu::mlstm::chunkwise_workspace>};

constexpr GpuEntry<xlstm_mlstm_backward, BackwardPlan> kBackward = {
    check_backward_on_gpu, [](const auto& p, const Chip& chip) { return plan(p, has_panels(p), chip); },
    gpu::mlstm::backward_workspace, gpu::mlstm::backward,
    workspace_of_either_schedule<xlstm_mlstm_backward, BackwardPlan, gpu::mlstm::backward_workspace>};

constexpr GpuEntry<xlstm_mlstm_forward, gpu::mlstm::RecurrentPlan> kRecurrent = {
    check_forward_on_gpu<check_recurrent>, gpu::mlstm::plan_recurrent_call,
    [](const auto& p, const auto&) { return gpu::mlstm::recurrent_workspace(p); }, gpu::mlstm::recurrent};

}  // namespace
}  // namespace xlstm

using namespace xlstm;
#endif

XLSTM_GPU_WORKSPACE(xlstm_gpu_mlstm_chunkwise_workspace, xlstm_mlstm_forward, kChunkwise)
XLSTM_GPU_WORKSPACE(xlstm_gpu_mlstm_recurrent_workspace, xlstm_mlstm_forward, kRecurrent)
XLSTM_GPU_WORKSPACE(xlstm_gpu_mlstm_backward_workspace, xlstm_mlstm_backward, kBackward)

XLSTM_GPU_CALL(xlstm_gpu_mlstm_chunkwise, xlstm_mlstm_forward, kChunkwise)
XLSTM_GPU_CALL(xlstm_gpu_mlstm_recurrent, xlstm_mlstm_forward, kRecurrent)
XLSTM_GPU_CALL(xlstm_gpu_mlstm_backward_pass, xlstm_mlstm_backward, kBackward)
