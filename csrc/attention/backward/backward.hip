// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU: chooses the kernels of a call and lays out its workspace.
#include "attention/backward/backward_call.h"
#include "attention/backward/backward_params.h"
#include "attention/gpu/tensor_layout.h"
#include "base/arena.h"

namespace xlstm::gpu::attention {
namespace {

bool has_tma_layout(const xlstm_attention_backward& p) {
  const xlstm_attention& in = p.in;
  return has_query_tma_layout(in, in.q, in.dqk) && has_query_tma_layout(in, p.dout, in.dv) &&
         has_key_tma_layout(in, in.k, in.dqk) && has_key_tma_layout(in, in.v, in.dv) && is_aligned16(p.dq, in.dqk) &&
         is_aligned16(p.dk, in.dqk) && is_aligned16(p.dv, in.dv);
}

bool has_vectors(const xlstm_attention_backward& p) {
  const xlstm_attention& in = p.in;
  return is_aligned16(in.q, in.dqk) && is_aligned16(in.k, in.dqk) && is_aligned16(in.v, in.dv) &&
         is_aligned16(p.dout, in.dv);
}

bool is_even(const xlstm_attention& in) {
  return in.window_left < 0 && in.window_right < 0 && !in.cu_seqlens_q && !in.cu_seqlens_k && !in.seqused_k &&
         !in.leftpad_k;
}

BackwardParams params_of(Arena& arena, const xlstm_attention_backward& call, const AttentionBackwardPlan& plan) {
  const xlstm_attention& in = call.in;
  BackwardParams p{};
  p.call = call;
  p.aligned16 = {is_aligned16(in.q, in.dqk),    is_aligned16(in.k, in.dqk),     is_aligned16(in.v, in.dv),
                 is_aligned16(call.out, in.dv), is_aligned16(call.dout, in.dv), is_aligned16(call.dq, in.dqk),
                 is_aligned16(call.dk, in.dqk), is_aligned16(call.dv, in.dv)};
  p.slots = plan.slots;
  p.row_stats = arena.take<float>((in.cu_seqlens_q ? 1 : in.batch) * in.heads_q * plan.slots * 2);
  p.dsink_parts = arena.take<float>(call.dsink ? plan.blocks_delta * in.batch * in.heads_q : 0);
  p.sums = arena.take<float>(plan.sums);
  p.dq_sums = plan.dq_sums ? arena.take<float>(plan.dq_sums) : nullptr;
  p.blocks_delta = plan.blocks_delta;
  p.blocks_q = plan.blocks_q;
  p.blocks_k = plan.blocks_k;
  p.parts = int(plan.parts);
  p.whole_k = plan.whole_k;
  return p;
}

}  // namespace

AttentionBackwardPlan plan_attention_backward_call(const xlstm_attention_backward& p, const Chip& chip) {
  const xlstm_attention& in = p.in;
  const bool has_score_mod = in.softcap > 0 || in.alibi_slopes || in.dropout_p > 0;
  return plan_attention_backward({in.batch, in.heads_q, in.heads_k, in.length_q, in.length_k, in.total_q, in.dqk, in.dv,
                                  in.cu_seqlens_q != nullptr, element_bytes(in.q), has_score_mod, has_tma_layout(p),
                                  p.parts, p.common_schedule != 0, has_vectors(p), p.deterministic != 0, is_even(in)},
                                 chip);
}

size_t attention_backward_workspace(const xlstm_attention_backward& call, const AttentionBackwardPlan& plan) {
  Arena counter(nullptr);
  params_of(counter, call, plan);
  return counter.used();
}

void attention_backward(const xlstm_attention_backward& call, const AttentionBackwardPlan& plan, void* workspace,
                        void* stream) {
  Arena arena(workspace);
  const BackwardParams params = params_of(arena, call, plan);
  const auto s = static_cast<Stream>(stream);
  if (call.in.q.dtype == XLSTM_BFLOAT16)
    launch_backward<BFloat16>(plan, params, s);
  else if (call.in.q.dtype == XLSTM_FLOAT16)
    launch_backward<Float16>(plan, params, s);
  else
    launch_backward<float>(plan, params, s);
}

}  // namespace xlstm::gpu::attention
