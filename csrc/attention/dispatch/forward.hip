// SPDX-License-Identifier: Apache-2.0
// Attention forward on a GPU: chooses the kernel of a call (forward, Hopper forward, decode, MLA) and its workspace.
#include <algorithm>

#include "attention/decode/decode_plan.h"
#include "attention/decode/few_rows.h"
#include "attention/dispatch/forward_call.h"
#include "attention/forward/forward_params.h"
#include "attention/gpu/key_elements.h"
#include "attention/gpu/tensor_layout.h"
#include "attention/mla/mla_plan.h"

namespace xlstm::gpu::attention {
namespace {

AttentionCall call_of(const xlstm_attention_forward& p) {
  const xlstm_attention& in = p.in;
  const bool has_score_mod = in.softcap > 0 || in.alibi_slopes || in.dropout_p > 0 || !(in.softmax_scale > 0);
  const bool float8 = is_float8(in.k.dtype);
  const bool panels = !float8 && has_query_tma_layout(in, in.q, in.dqk) && has_key_tma_layout(in, in.k, in.dqk) &&
                      has_key_tma_layout(in, in.v, in.dv) && is_aligned16(p.out, in.dv) && !p.probs.data;
  const bool packed = in.cu_seqlens_q || in.cu_seqlens_k || in.seqused_k || in.leftpad_k;
  return {in.batch, in.heads_q,          in.heads_k,    in.length_q, in.length_k, in.dqk,
          in.dv,    element_bytes(in.q), has_score_mod, panels,      float8,      packed};
}
// The workspace of a call must not depend on the addresses of its tensors.
AttentionCall call_without_panels(const xlstm_attention_forward& p) {
  AttentionCall call = call_of(p);
  call.panels = false;
  return call;
}

// Few rows against many keys take the decode kernel, unless the caller names the size of a tile: that selects the
// forward kernel.
bool may_take_decode(const xlstm_attention_forward& p, const Chip& chip) {
  return has_few_rows(call_of(p), chip) && !p.probs.data && !(p.in.dropout_p > 0) && p.in.block_size == 0;
}
bool takes_decode(const xlstm_attention_forward& p, const Chip& chip) {
  return may_take_decode(p, chip) && is_aligned16(p.in.q, p.in.dqk) && is_aligned16(p.in.k, p.in.dqk) &&
         is_aligned16(p.in.v, p.in.dv);
}

// Calls launch(Elements) with what q and the keys have. Where q has floats of 8 bits, only MLA's kernels have it.
template <class Launch>
void with_call_elements(const xlstm_attention& in, Launch&& launch) {
  if (in.q.dtype == XLSTM_BFLOAT16)
    with_elements(BFloat16{}, in.k.dtype, launch);
  else if (in.q.dtype == XLSTM_FLOAT16)
    with_elements(Float16{}, in.k.dtype, launch);
  else
    launch(float{});
}

void run(const xlstm_attention_forward& p, const DecodePlan& plan, void* workspace, Stream stream) {
  const FewRowsParams params{p, plan.blocks, plan.splits, is_aligned16(p.out, p.in.dv),
                             ForwardParts::in_workspace(p.in, plan.splits, workspace)};
  with_call_elements(p.in, [&](auto elements) { launch_decode<decltype(elements)>(plan, params, stream); });
  if (plan.splits > 1) combine_forward_parts(p, params.parts, plan.splits, stream);
}

// MLA: the values are the first features of the keys.
bool is_mla(const xlstm_attention_forward& p) {
  const xlstm_tensor &k = p.in.k, &v = p.in.v;
  bool same = v.data == k.data;
  for (int j = 0; j < 3; ++j) same = same && v.stride[j] == k.stride[j];
  return same && has_mla_dims(p.in.dqk, p.in.dv);
}
bool multiplies(const Chip& chip, xlstm_dtype dtype) { return !is_float8(dtype) || chip.float8_products == dtype; }
void check_mla(const xlstm_attention_forward& p, const Chip& chip) {
  const xlstm_attention& in = p.in;
  const auto expect = [&](bool as_expected, const std::string& what) {
    if (!as_expected)
      throw std::invalid_argument(what + " on a GPU with head dims of " + std::to_string(in.dqk) + " and 512");
  };
  expect(in.q.dtype != XLSTM_FLOAT32 && multiplies(chip, in.q.dtype), "q: expected bfloat16 or float16");
  expect(!(in.softcap > 0), "softcap: expected 0");
  expect(!(in.dropout_p > 0), "dropout_p: expected 0");
  expect(!p.probs.data, "return_attn_probs: expected False");
  expect(!in.alibi_slopes, "alibi_slopes: expected None");
  expect(in.block_size == 0, "block_size: expected None");
  expect(is_aligned16(in.q, in.dqk), "q: expected rows that begin at multiples of 16 bytes");
  expect(is_aligned16(in.k, in.dqk), "k_cache: expected rows that begin at multiples of 16 bytes");
}
template <class Launch>
void with_mla_elements(const xlstm_attention& in, Launch&& launch) {
  if (in.q.dtype == XLSTM_FLOAT8_E4M3FN)
    launch(E4m3fnProducts<BFloat16>{});
  else if (in.q.dtype == XLSTM_FLOAT8_E4M3FNUZ)
    launch(E4m3fnuzProducts<BFloat16>{});
  else
    with_call_elements(in, launch);
}
template <class Elements>
void launch_planned_mla(const MlaPlan& plan, const FewRowsParams& params, Stream stream) {
  if constexpr (sizeof(QueryOf<Elements>) <= 2) {
    if constexpr (kHasHopperKernels && !kIsFloat8<KeyOf<Elements>>)
      if (plan.hopper) return launch_mla_hopper<Elements>(plan, params, stream);
    launch_mla<Elements>(plan, params, stream);
  }
}
void run(const xlstm_attention_forward& p, const MlaPlan& plan, void* workspace, Stream stream) {
  const FewRowsParams params{p,
                             plan.blocks,
                             plan.splits,
                             is_aligned16(p.out, p.in.dv),
                             ForwardParts::in_workspace(p.in, plan.splits, workspace),
                             plan.last_is_short};
  with_mla_elements(p.in, [&](auto elements) { launch_planned_mla<decltype(elements)>(plan, params, stream); });
  if (plan.splits > 1) combine_forward_parts(p, params.parts, plan.splits, stream);
}

void run(const xlstm_attention_forward& p, const AttentionForwardPlan& plan, void* workspace, Stream stream) {
  const xlstm_attention& in = p.in;
  const ForwardParams params{p,
                             plan.blocks,
                             plan.splits,
                             is_aligned16(in.q, in.dqk),
                             is_aligned16(in.k, in.dqk),
                             is_aligned16(in.v, in.dv),
                             is_aligned16(p.out, in.dv),
                             ForwardParts::in_workspace(in, plan.splits, workspace)};
  with_call_elements(in, [&](auto elements) {
    using Elements = decltype(elements);
    if constexpr (kHasHopperKernels && sizeof(QueryOf<Elements>) == 2 && !kIsFloat8<KeyOf<Elements>>)
      if (plan.hopper) return launch_forward_hopper<Elements>(plan, params, stream);
    launch_forward<Elements>(plan, params, stream);
  });
}

}  // namespace

ForwardCallPlan plan_attention_forward_call(const xlstm_attention_forward& p, const Chip& chip) {
  const AttentionCall call = call_of(p);
  if (is_mla(p)) {
    check_mla(p, chip);
    return plan_mla(call, p.splits, chip);
  }
  if (is_float8(p.in.q.dtype)) throw std::invalid_argument("q: floats of 8 bits are for MLA");
  if (takes_decode(p, chip)) return plan_decode(call, p.splits, chip);
  return plan_attention_forward(call, p.in.block_size, p.splits, chip);
}

size_t attention_forward_workspace(const xlstm_attention_forward& p, const ForwardCallPlan& plan) {
  return std::visit([&](const auto& x) { return ForwardParts::bytes(p.in, x.splits); }, plan);
}

size_t attention_forward_workspace_anywhere(const xlstm_attention_forward& p, const Chip& chip) {
  if (is_mla(p)) return attention_forward_workspace(p, plan_attention_forward_call(p, chip));
  const int64_t decode_splits = may_take_decode(p, chip) ? plan_decode(call_of(p), p.splits, chip).splits : 1;
  const int64_t forward_splits = plan_attention_forward(call_without_panels(p), p.in.block_size, p.splits, chip).splits;
  return ForwardParts::bytes(p.in, std::max(decode_splits, forward_splits));
}

void attention_forward(const xlstm_attention_forward& p, const ForwardCallPlan& plan, void* workspace, void* stream) {
  std::visit([&](const auto& x) { run(p, x, workspace, static_cast<Stream>(stream)); }, plan);
}

}  // namespace xlstm::gpu::attention
