// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU: which kernels a call takes, and what they work in.
#include "attention/backward/backward_params.h"
#include "attention/gpu/kernels.h"
#include "base/arena.h"

namespace xlstm::gpu::attention {
namespace {

bool has_panels(const xlstm_attention_backward& p) {
  const xlstm_attention& in = p.in;
  return query_panels(in, in.q, in.dqk) && query_panels(in, p.dout, in.dv) && key_panels(in, in.k, in.dqk) &&
         key_panels(in, in.v, in.dv) && is_whole(p.dq, in.dqk) && is_whole(p.dk, in.dqk) && is_whole(p.dv, in.dv);
}

AttentionBackwardPlan plan_of(const xlstm_attention_backward& p, const Chip& chip) {
  const xlstm_attention& in = p.in;
  const bool bent = in.softcap > 0 || in.alibi_slopes || in.dropout_p > 0;
  return plan_attention_backward(
      {in.batch, in.heads_q, in.heads_k, in.length_q, in.length_k, in.total_q, in.dqk, in.dv,
       in.cu_seqlens_q != nullptr, element_bytes(in.q), bent, has_panels(p), p.parts, p.common_schedule != 0},
      chip);
}

BackwardParams params_of(Arena& arena, const xlstm_attention_backward& call, const AttentionBackwardPlan& plan) {
  const xlstm_attention& in = call.in;
  BackwardParams p{};
  p.call = call;
  p.whole = {is_whole(in.q, in.dqk),    is_whole(in.k, in.dqk),     is_whole(in.v, in.dv),
             is_whole(call.out, in.dv), is_whole(call.dout, in.dv), is_whole(call.dq, in.dqk),
             is_whole(call.dk, in.dqk), is_whole(call.dv, in.dv)};
  p.slots = plan.slots;
  p.facts = arena.take<float>((in.cu_seqlens_q ? 1 : in.batch) * in.heads_q * plan.slots * 2);
  p.dsink_parts = arena.take<float>(call.dsink ? plan.blocks_delta * in.batch * in.heads_q : 0);
  p.sums = arena.take<float>(plan.sums);
  p.blocks_delta = plan.blocks_delta;
  p.blocks_q = plan.blocks_q;
  p.blocks_k = plan.blocks_k;
  p.parts = int(plan.parts);
  return p;
}

}  // namespace

size_t attention_backward_workspace(const xlstm_attention_backward& call, const Chip& chip) {
  Arena counter(nullptr);
  params_of(counter, call, plan_of(call, chip));
  return counter.used();
}

void attention_backward(const xlstm_attention_backward& call, const Chip& chip, void* workspace, void* stream) {
  const AttentionBackwardPlan plan = plan_of(call, chip);
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
