// SPDX-License-Identifier: Apache-2.0
// Attention forward on a GPU: which kernel a call takes, and what it works in.
#include "attention/forward_launch.h"
#include "attention/kernels_gpu.h"

namespace xlstm::gpu {
namespace {

int element_bytes(const xlstm_tensor& x) { return x.dtype == XLSTM_FLOAT32 ? 4 : 2; }

AttentionForwardPlan plan(const xlstm_attention_forward& p, const Chip& chip) {
  const xlstm_attention& in = p.in;
  const bool bent = in.softcap > 0 || in.alibi_slopes || in.dropout_p > 0 || !(in.softmax_scale > 0);
  return plan_attention_forward(
      {in.batch, in.heads_q, in.heads_k, in.length_q, in.length_k, in.dqk, in.dv, element_bytes(in.q), bent},
      in.block_size, p.splits, chip);
}

// Rows of whole pieces at multiples of 16 bytes, a tile of whose tokens 32 bits reach.
bool is_whole(const xlstm_tensor& x, int64_t features) {
  const int64_t bytes = element_bytes(x);
  bool whole = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && features * bytes % 16 == 0;
  for (const int64_t stride : x.stride) whole = whole && stride * bytes % 16 == 0;
  return whole && x.stride[2] >= 0 && x.stride[2] * bytes < int64_t(1) << 24;
}

}  // namespace

size_t attention_forward_workspace(const xlstm_attention_forward& p, const Chip& chip) {
  return ForwardParts::bytes(p.in, plan(p, chip).splits);
}

void attention_forward(const xlstm_attention_forward& p, const Chip& chip, void* workspace, void* stream) {
  const AttentionForwardPlan cut = plan(p, chip);
  const xlstm_attention& in = p.in;
  const ForwardParams params{p,
                             cut.blocks,
                             cut.splits,
                             is_whole(in.q, in.dqk),
                             is_whole(in.k, in.dqk),
                             is_whole(in.v, in.dv),
                             is_whole(p.out, in.dv),
                             ForwardParts::in_workspace(in, cut.splits, workspace)};
  const auto s = static_cast<Stream>(stream);
  if (in.q.dtype == XLSTM_BFLOAT16)
    launch_forward<BFloat16>(cut, params, s);
  else if (in.q.dtype == XLSTM_FLOAT16)
    launch_forward<Float16>(cut, params, s);
  else
    launch_forward<float>(cut, params, s);
}

}  // namespace xlstm::gpu
