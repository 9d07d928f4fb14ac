// SPDX-License-Identifier: Apache-2.0
#include "api/check_values.h"
#include "api/checks.h"
#include "attention/cpu/plan.h"

namespace xlstm {
namespace {

// A call without keys may have no memory for them.
void is_keys(const char* name, const xlstm_tensor& x, const xlstm_attention& in, xlstm_dtype dtype) {
  const bool none = in.cu_seqlens_k ? in.total_k == 0 : in.length_k == 0;
  if (!none || x.data) has_data(name, x.data);
  if (x.dtype != dtype) expected(name, "dtype " + std::to_string(int(dtype)), std::to_string(int(x.dtype)));
}
void is_descale(const char* name, const xlstm_descale& x, xlstm_dtype dtype) {
  if (x.data && !is_float8(dtype)) expected(name, "none, but for floats of 8 bits", "dtype " + std::to_string(dtype));
}
xlstm_dtype wide(const xlstm_attention& in) { return in.q.dtype == XLSTM_FLOAT64 ? XLSTM_FLOAT64 : XLSTM_FLOAT32; }

void offsets(const char* name, const int32_t* values, int64_t batch, int64_t longest, int64_t total) {
  if (!values) return;
  if (values[0] != 0) invalid(std::string(name) + ": expected to start at 0, got " + std::to_string(values[0]));
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = int64_t(values[b + 1]) - values[b];
    if (length < 0) invalid(std::string(name) + ": expected values that do not fall");
    if (length > longest)
      invalid(std::string(name) + ": sequence " + std::to_string(b) + " has " + std::to_string(length) +
              " tokens, more than the longest is said to have: " + std::to_string(longest));
  }
  in_range(std::string(name) + ": the last value", values[batch], 0, total);
}

void check_values(const xlstm_attention& in) {
  offsets("cu_seqlens_q", in.cu_seqlens_q, in.batch, in.length_q, in.total_q);
  offsets("cu_seqlens_k", in.cu_seqlens_k, in.batch, in.length_k, in.total_k);
  for (int64_t b = 0; b < in.batch; ++b) {
    const int64_t capacity = in.cu_seqlens_k ? in.cu_seqlens_k[b + 1] - in.cu_seqlens_k[b] : in.length_k;
    const int64_t used = in.seqused_k ? in.seqused_k[b] : capacity;
    if (in.seqused_k) in_range("seqused_k", used, 0, capacity);
    if (in.leftpad_k) in_range("leftpad_k", in.leftpad_k[b], 0, capacity);
    if (in.cache_batch_idx) in_range("cache_batch_idx", in.cache_batch_idx[b], 0, in.cache_batch - 1);
    for (int64_t t = 0; in.block_table && t < used; t += in.page_size)  // unused entries may hold anything
      in_range("block_table", in.block_table[b * in.block_table_stride + t / in.page_size], 0, in.pages - 1);
  }
  if (in.rng_state) at_least("rng_state: the offset", in.rng_state[1], 0);
}

void check(const xlstm_attention& in, bool on_host) {
  at_least("batch", in.batch, 1);
  at_least("heads_k", in.heads_k, 1);
  at_least("heads_q", in.heads_q, 1);
  if (in.heads_q % in.heads_k)
    invalid("heads_q: expected a multiple of heads_k = " + std::to_string(in.heads_k) + ", got " +
            std::to_string(in.heads_q));
  at_least("dqk", in.dqk, 1);
  at_least("dv", in.dv, 1);
  constexpr int64_t kMaxTokens = int64_t(1) << 30;
  in_range("length_q", in.length_q, 0, kMaxTokens);
  in_range("length_k", in.length_k, 0, kMaxTokens);
  const bool float8_products = is_float8(in.q.dtype);
  if (float8_products && on_host) invalid("q: floats of 8 bits are for a GPU");
  if (float8_products)
    has_data("q", in.q.data);
  else
    has_dtype("q", in.q);
  is_keys("k", in.k, in, is_float8(in.k.dtype) && !float8_products ? in.k.dtype : in.q.dtype);
  is_keys("v", in.v, in, in.k.dtype);
  is_descale("k_descale", in.k_descale, in.k.dtype);
  is_descale("v_descale", in.v_descale, in.k.dtype);
  is_finite("softmax_scale", in.softmax_scale);
  not_negative("softcap", in.softcap);
  if (!(in.dropout_p >= 0 && in.dropout_p < 1))
    invalid("dropout_p: expected 0 <= p < 1, got " + std::to_string(in.dropout_p));
  if (in.dropout_p > 0) has_data("rng_state", in.rng_state);
  bool legal = in.block_size == 0;
  for (int64_t size : kAttentionBlocks) legal = legal || in.block_size == size;
  if (!legal) invalid("block_size: expected 32, 64, 128 or 256, got " + std::to_string(in.block_size));
  if (in.block_table) {
    at_least("page_size", in.page_size, 1);
    if (in.cu_seqlens_k) invalid("block_table: expected no cu_seqlens_k with block_table");
    if (in.cache_batch_idx) invalid("block_table: expected no cache_batch_idx with block_table");
  }
  if (on_host) check_values(in);
}

}  // namespace

void check_attention_forward(const xlstm_attention_forward& p, bool on_host) {
  check(p.in, on_host);
  has_dtype("out", p.out, is_float8(p.in.q.dtype) ? XLSTM_BFLOAT16 : p.in.q.dtype);
  has_dtype("lse", p.lse, wide(p.in));
  if (p.probs.data) has_dtype("probs", p.probs, p.in.q.dtype);
  in_range("splits", p.splits, 0, kMaxSplits);
}

void check_attention_backward(const xlstm_attention_backward& p, bool on_host) {
  check(p.in, on_host);
  if (is_float8(p.in.k.dtype)) invalid("k: there is no backward pass for floats of 8 bits");
  if (p.in.block_table) invalid("block_table: there is no backward pass through pages");
  if (p.in.cache_batch_idx) invalid("cache_batch_idx: there is no backward pass through a cache");
  has_dtype("out", p.out, p.in.q.dtype);
  has_dtype("dout", p.dout, p.in.q.dtype);
  has_dtype("dq", p.dq, p.in.q.dtype);
  is_keys("dk", p.dk, p.in, p.in.q.dtype);
  is_keys("dv", p.dv, p.in, p.in.q.dtype);
  has_dtype("lse", p.lse, wide(p.in));
  if (p.dlse.data) has_dtype("dlse", p.dlse, wide(p.in));
  if (p.dsink && !p.in.sink) invalid("dsink: needs sink");
  in_range("parts", p.parts, 0, kMaxSplits);
  in_range("row_panels", p.row_panels, 0, kMaxRowPanels);
  in_range("common_schedule", p.common_schedule, 0, 1);
  in_range("deterministic", p.deterministic, 0, 1);
  const std::string gpu_tiles = "0 for the backward pass on a GPU, where the kernels fix the tiles";
  if (!on_host && p.in.block_size) expected("block_size", gpu_tiles, std::to_string(p.in.block_size));
  if (!on_host && p.row_panels) expected("row_panels", gpu_tiles, std::to_string(p.row_panels));
  if (on_host && p.common_schedule) expected("common_schedule", "0 on a CPU", std::to_string(p.common_schedule));
}

void check_attention_append(const xlstm_attention_append& p, bool on_host) {
  at_least("batch", p.batch, 1);
  at_least("length", p.length, 1);
  at_least("heads", p.heads, 1);
  at_least("features", p.features, 1);
  has_dtype("from", p.from);
  if (is_float8(p.to.dtype))
    has_data("to", p.to.data);
  else
    has_dtype("to", p.to, p.from.dtype);
  is_descale("descale", p.descale, p.to.dtype);
  if ((p.cos == nullptr) != (p.sin == nullptr)) invalid("rotary_cos, rotary_sin: expected both or none");
  if (p.cos) {
    in_range("rotary_dim", p.rotary_dim, 2, p.features);
    if (p.rotary_dim % 2) invalid("rotary_dim: expected an even number, got " + std::to_string(p.rotary_dim));
  }
  if (p.block_table) at_least("page_size", p.page_size, 1);
  if (p.to_cache && p.block_table && p.cache_batch_idx)
    invalid("block_table: expected no cache_batch_idx with block_table");
  for (int64_t b = 0; on_host && b < p.batch; ++b) {
    const int64_t start = p.start ? p.start[b] : 0, last = start + p.length - 1;
    at_least("cache_seqlens", start, 0);
    if (p.cos) in_range("cache_seqlens: a rotary position", p.same_position ? start : last, 0, p.rotary_length - 1);
    if (!p.to_cache) continue;
    in_range("cache_seqlens: a new key's position", last, 0, p.cache_length - 1);
    if (p.cache_batch_idx) in_range("cache_batch_idx", p.cache_batch_idx[b], 0, p.cache_batch - 1);
    for (int64_t t = start; p.block_table && t <= last; ++t)
      in_range("block_table", p.block_table[b * p.block_table_stride + t / p.page_size], 0, p.pages - 1);
  }
}

void check_attention_combine(const xlstm_attention_combine& p, bool) {
  at_least("splits", p.splits, 1);
  at_least("batch", p.batch, 1);
  at_least("length", p.length, 1);
  at_least("heads", p.heads, 1);
  at_least("dv", p.dv, 1);
  has_data("out_partial", p.out_partial);
  has_data("lse_partial", p.lse_partial);
  if (p.wide != XLSTM_FLOAT32 && p.wide != XLSTM_FLOAT64) invalid("wide: expected float32 or float64");
  has_dtype("out", p.out);
  has_dtype("lse", p.lse, p.wide);
}

}  // namespace xlstm
