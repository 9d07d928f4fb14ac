// SPDX-License-Identifier: Apache-2.0
// The attention ops: tensors into params, results allocated, the C API called.
#include <tuple>

#include "base/float8.h"
#include "torch/check.h"

namespace xlstm::torch_ops {
namespace {

constexpr Call<xlstm_attention_forward> kForward = {xlstm_attention_forward_pass, xlstm_gpu_attention_forward_pass};
constexpr Call<xlstm_attention_backward> kBackward = {xlstm_attention_backward_pass, xlstm_gpu_attention_backward_pass};
constexpr Call<xlstm_attention_append> kAppend = {xlstm_attention_append_tokens, xlstm_gpu_attention_append_tokens};
constexpr Call<xlstm_attention_combine> kCombine = {xlstm_attention_combine_parts, xlstm_gpu_attention_combine_parts};

xlstm_dtype key_dtype_of(const char* name, const Tensor& x) {
  if (x.scalar_type() == ScalarType::Float8_e4m3fn) return XLSTM_FLOAT8_E4M3FN;
  if (x.scalar_type() == ScalarType::Float8_e4m3fnuz) return XLSTM_FLOAT8_E4M3FNUZ;
  return dtype_of(name, x);
}

// (B, S, H, D), or packed (T, H, D), whose features are contiguous; strides of sequence, head and token.
xlstm_tensor tokens_of(const char* name, const Tensor& x, const Tensor& q, xlstm_dtype dtype) {
  STD_TORCH_CHECK(x.dim() == 3 || x.dim() == 4, name, ": expected 3 or 4 dimensions ([B,] S, H, D)");
  check_device(name, x, q);
  const int64_t last = x.dim() - 1;
  STD_TORCH_CHECK(x.stride(last) == 1 || x.size(last) <= 1, name, ": expected the last dimension to be contiguous");
  return {x.data_ptr(), dtype, {last == 3 ? x.stride(0) : 0, x.stride(last - 1), x.stride(last - 2)}};
}
xlstm_tensor tokens(const char* name, const Tensor& x, const Tensor& q) {
  return tokens_of(name, x, q, dtype_of(name, x));
}
// The same of what may be floats of 8 bits: keys, values or a cache, and MLA's queries.
xlstm_tensor key_tokens(const char* name, const Tensor& x, const Tensor& q) {
  return tokens_of(name, x, q, key_dtype_of(name, x));
}

// One number, or (B, H_k), of any strides.
xlstm_descale descale(const char* name, const OptionalTensor& x, const Tensor& q, int64_t batch, int64_t heads) {
  if (!x) return {};
  check_device(name, *x, q);
  const bool each = x->dim() == 2 && x->size(0) == batch && x->size(1) == heads;
  STD_TORCH_CHECK(x->scalar_type() == ScalarType::Float && (each || (x->dim() <= 1 && x->numel() == 1)), name,
                  ": expected float32 of one element or (B, H_k) = (", batch, ", ", heads, ")");
  return {static_cast<const float*>(x->data_ptr()), {each ? x->stride(0) : 0, each ? x->stride(1) : 0}};
}

// lse (B, H, S), or packed (H, T).
xlstm_tensor row_values(const char* name, const Tensor& x, const Tensor& q) {
  STD_TORCH_CHECK(x.dim() == 2 || x.dim() == 3, name, ": expected 2 or 3 dimensions ([B,] H, S)");
  check_device(name, x, q);
  STD_TORCH_CHECK(x.scalar_type() == wide_dtype(q), name, ": expected float32, or float64 with float64");
  const int64_t last = x.dim() - 1;
  return {x.data_ptr(), dtype_of(name, x), {last == 2 ? x.stride(0) : 0, x.stride(last - 1), x.stride(last)}};
}

const int32_t* indices(const char* name, const OptionalTensor& x, const Tensor& q, int64_t dims, int64_t size) {
  if (!x) return nullptr;
  check_device(name, *x, q);
  STD_TORCH_CHECK(x->dim() == dims && x->size(0) == size && x->is_contiguous() && x->scalar_type() == ScalarType::Int,
                  name, ": expected a contiguous int32 tensor of ", size, " rows");
  return static_cast<const int32_t*>(x->data_ptr());
}

struct Inputs {
  const Tensor &q, &k, &v;
  const OptionalTensor &cu_seqlens_q, &cu_seqlens_k, &seqused_k, &leftpad_k, &block_table, &cache_batch_idx;
  const OptionalTensor &alibi_slopes, &sink, &rng_state, &k_descale, &v_descale;
};
struct Options {
  int64_t max_seqlen_q, max_seqlen_k;
  double softmax_scale;
  int64_t window_left, window_right;
  double softcap, dropout_p;
  int64_t block_size;
};

void set_alibi(xlstm_attention& p, const Tensor& slopes, const Tensor& q) {
  check_device("alibi_slopes", slopes, q);
  STD_TORCH_CHECK(slopes.is_contiguous() && slopes.scalar_type() == ScalarType::Float &&
                      ((slopes.dim() == 1 && slopes.size(0) == p.heads_q) ||
                       (slopes.dim() == 2 && slopes.size(0) == p.batch && slopes.size(1) == p.heads_q)),
                  "alibi_slopes: expected a contiguous float32 tensor (H) or (B, H)");
  p.alibi_slopes = static_cast<const float*>(slopes.data_ptr());
  p.alibi_stride = slopes.dim() == 2 ? p.heads_q : 0;
}

const int64_t* rng_state_of(const Tensor& rng_state, const Tensor& q) {
  check_shape("rng_state", rng_state, {2});
  check_device("rng_state", rng_state, q);
  STD_TORCH_CHECK(rng_state.is_contiguous() && rng_state.scalar_type() == ScalarType::Long,
                  "rng_state: expected a contiguous int64 tensor (2)");
  return static_cast<const int64_t*>(rng_state.data_ptr());
}

xlstm_attention params_of(const Inputs& x, const Options& o) {
  const Tensor &q = x.q, &k = x.k, &v = x.v;
  xlstm_attention p{};
  const bool packed_q = bool(x.cu_seqlens_q), packed_k = bool(x.cu_seqlens_k), paged = bool(x.block_table);
  STD_TORCH_CHECK(q.dim() == (packed_q ? 3 : 4), "q: expected (B, S, H, D), or (T, H, D) with cu_seqlens_q");
  STD_TORCH_CHECK(k.dim() == (packed_k ? 3 : 4), "k: expected (B, S, H, D), or (T, H, D) with cu_seqlens_k");
  STD_TORCH_CHECK(v.dim() == k.dim(), "v: expected as many dimensions as k has");
  for (int64_t j = 0; j + 1 < k.dim(); ++j)
    STD_TORCH_CHECK(v.size(j) == k.size(j), "v: expected k's shape but for the last dimension");
  const int64_t last_q = q.dim() - 1, last_k = k.dim() - 1;
  STD_TORCH_CHECK(k.size(last_k) == q.size(last_q), "k: expected q's last dimension");
  p.batch = packed_q ? x.cu_seqlens_q->size(0) - 1 : q.size(0);
  p.heads_q = q.size(last_q - 1);
  p.heads_k = k.size(last_k - 1);
  p.dqk = q.size(last_q);
  p.dv = v.size(last_k);
  p.length_q = packed_q ? o.max_seqlen_q : q.size(1);
  p.total_q = packed_q ? q.size(0) : 0;
  p.total_k = packed_k ? k.size(0) : 0;
  p.cu_seqlens_q = indices("cu_seqlens_q", x.cu_seqlens_q, q, 1, p.batch + 1);
  p.cu_seqlens_k = indices("cu_seqlens_k", x.cu_seqlens_k, q, 1, p.batch + 1);
  p.seqused_k = indices("seqused_k", x.seqused_k, q, 1, p.batch);
  p.leftpad_k = indices("leftpad_k", x.leftpad_k, q, 1, p.batch);
  p.cache_batch_idx = indices("cache_batch_idx", x.cache_batch_idx, q, 1, p.batch);
  p.block_table = indices("block_table", x.block_table, q, 2, p.batch);
  if (paged) {
    p.block_table_stride = x.block_table->size(1);
    p.page_size = k.size(1);
    p.pages = k.size(0);
    p.length_k = p.block_table_stride * p.page_size;
  } else {
    p.length_k = packed_k ? o.max_seqlen_k : k.size(1);
    p.cache_batch = packed_k ? 0 : k.size(0);
    STD_TORCH_CHECK(packed_k || p.cache_batch_idx || k.size(0) == p.batch, "k: expected q's batch size");
  }
  p.q = key_tokens("q", q, q);
  p.k = key_tokens("k", k, q);
  p.v = key_tokens("v", v, q);
  p.k_descale = descale("k_descale", x.k_descale, q, p.batch, p.heads_k);
  p.v_descale = descale("v_descale", x.v_descale, q, p.batch, p.heads_k);
  p.softmax_scale = o.softmax_scale;
  p.softcap = o.softcap;
  p.dropout_p = o.dropout_p;
  p.window_left = o.window_left;
  p.window_right = o.window_right;
  p.block_size = o.block_size;
  if (x.alibi_slopes) set_alibi(p, *x.alibi_slopes, q);
  p.sink = wide("sink", x.sink, q, {p.heads_q});
  if (x.rng_state) p.rng_state = rng_state_of(*x.rng_state, q);
  return p;
}

// A contiguous tensor of x's shape but for the features, in bfloat16 where x has 8 bits. If packed it is zeroed, for
// tokens that belong to no sequence.
Tensor like_tokens(const Tensor& x, int64_t features, bool packed) {
  const ScalarType dtype = is_float8(key_dtype_of("q", x)) ? ScalarType::BFloat16 : x.scalar_type();
  Tensor result = x.dim() == 4 ? new_tensor(x, {x.size(0), x.size(1), x.size(2), features}, dtype)
                               : new_tensor(x, {x.size(0), x.size(1), features}, dtype);
  if (packed) torch::stable::zero_(result);
  return result;
}

std::tuple<Tensor, Tensor, Tensor> forward(const Inputs& x, const Options& o, int64_t splits, bool lse_with_sink,
                                           bool probs) {
  xlstm_attention_forward p{};
  p.in = params_of(x, o);
  const bool packed = bool(x.cu_seqlens_q);
  Tensor out = like_tokens(x.q, p.in.dv, packed);
  Tensor lse = packed ? new_tensor(x.q, {p.in.heads_q, p.in.total_q}, wide_dtype(x.q))
                      : new_tensor(x.q, {p.in.batch, p.in.heads_q, p.in.length_q}, wide_dtype(x.q));
  if (packed) torch::stable::zero_(lse);
  Tensor weights = probs ? torch::stable::new_zeros(x.q, {p.in.batch, p.in.heads_q, p.in.length_q, p.in.length_k})
                         : new_tensor(x.q, {0}, x.q.scalar_type());
  if (out.numel() > 0 && p.in.batch > 0) {
    p.out = tokens("out", out, x.q);
    p.lse = row_values("lse", lse, x.q);
    p.lse_with_sink = lse_with_sink;
    p.splits = splits;
    if (probs && weights.numel() > 0)
      p.probs = {weights.data_ptr(), p.in.q.dtype, {weights.stride(0), weights.stride(1), weights.stride(2)}};
    run(x.q, p, kForward);
  }
  return {out, lse, weights};
}

std::tuple<Tensor, Tensor> attention_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k,
                                             const OptionalTensor& seqused_k, const OptionalTensor& leftpad_k,
                                             const OptionalTensor& block_table, const OptionalTensor& cache_batch_idx,
                                             const OptionalTensor& alibi_slopes, const OptionalTensor& sink,
                                             const OptionalTensor& rng_state, int64_t max_seqlen_q,
                                             int64_t max_seqlen_k, double softmax_scale, int64_t window_left,
                                             int64_t window_right, double softcap, double dropout_p, int64_t block_size,
                                             int64_t splits, bool lse_with_sink, const OptionalTensor& k_descale,
                                             const OptionalTensor& v_descale) {
  const auto [out, lse, none] =
      forward({q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, cache_batch_idx, alibi_slopes,
               sink, rng_state, k_descale, v_descale},
              {max_seqlen_q, max_seqlen_k, softmax_scale, window_left, window_right, softcap, dropout_p, block_size},
              splits, lse_with_sink, false);
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> attention_forward_probs(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, const OptionalTensor& seqused_k, const OptionalTensor& leftpad_k,
    const OptionalTensor& alibi_slopes, const OptionalTensor& sink, const OptionalTensor& rng_state,
    int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale, int64_t window_left, int64_t window_right,
    double softcap, double dropout_p, int64_t block_size, const OptionalTensor& k_descale,
    const OptionalTensor& v_descale) {
  const OptionalTensor none;
  return forward({q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, none, none, alibi_slopes, sink, rng_state,
                  k_descale, v_descale},
                 {max_seqlen_q, max_seqlen_k, softmax_scale, window_left, window_right, softcap, dropout_p, block_size},
                 1, true, true);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
    const OptionalTensor& dlse, const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k,
    const OptionalTensor& seqused_k, const OptionalTensor& leftpad_k, const OptionalTensor& alibi_slopes,
    const OptionalTensor& sink, const OptionalTensor& rng_state, int64_t max_seqlen_q, int64_t max_seqlen_k,
    double softmax_scale, int64_t window_left, int64_t window_right, double softcap, double dropout_p,
    int64_t block_size, int64_t row_panels, int64_t parts, int64_t common_schedule, bool deterministic) {
  const OptionalTensor none;
  xlstm_attention_backward p{};
  p.row_panels = row_panels;
  p.parts = parts;
  p.common_schedule = common_schedule;
  p.deterministic = deterministic;
  p.in =
      params_of({q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, none, none, alibi_slopes, sink, rng_state,
                 none, none},
                {max_seqlen_q, max_seqlen_k, softmax_scale, window_left, window_right, softcap, dropout_p, block_size});
  const bool packed = bool(cu_seqlens_k);
  Tensor dq = like_tokens(q, p.in.dqk, bool(cu_seqlens_q)), dk = like_tokens(k, p.in.dqk, packed),
         dv = like_tokens(v, p.in.dv, packed);
  Tensor dsink = new_tensor(q, {sink ? p.in.heads_q : 0}, wide_dtype(q));
  if (sink) torch::stable::zero_(dsink);
  if (q.numel() == 0) {
    torch::stable::zero_(dk);
    torch::stable::zero_(dv);
  } else if (p.in.batch > 0) {
    p.out = tokens("out", out, q);
    p.dout = tokens("dout", dout, q);
    p.lse = row_values("lse", lse, q);
    if (dlse) p.dlse = row_values("dlse", *dlse, q);
    p.dq = tokens("dq", dq, q);
    p.dk = tokens("dk", dk, q);
    p.dv = tokens("dv", dv, q);
    p.dsink = sink ? dsink.data_ptr() : nullptr;
    run(q, p, kBackward);
  }
  return {dq, dk, dv, dsink};
}

// Sets the tables of a rotary embedding.
void set_rotary(xlstm_attention_append& p, const OptionalTensor& cos, const OptionalTensor& sin, const Tensor& x) {
  if (!cos || !sin) return;
  for (const auto& [name, table] : {std::pair{"rotary_cos", &*cos}, std::pair{"rotary_sin", &*sin}}) {
    check_device(name, *table, x);
    STD_TORCH_CHECK(table->dim() == 2 && table->is_contiguous() && table->scalar_type() == x.scalar_type(), name,
                    ": expected a contiguous tensor (S, rotary_dim / 2) of q's dtype");
  }
  check_shape("rotary_sin", *sin, {cos->size(0), cos->size(1)});
  p.cos = cos->data_ptr();
  p.sin = sin->data_ptr();
  p.rotary_length = cos->size(0);
  p.rotary_dim = 2 * cos->size(1);
}

xlstm_attention_append append_params(const Tensor& from, const Tensor& to, const OptionalTensor& start) {
  STD_TORCH_CHECK(from.dim() == 4, "x: expected 4 dimensions (B, S, H, D)");
  STD_TORCH_CHECK(to.dim() == 4 && to.size(2) == from.size(2) && to.size(3) == from.size(3),
                  "cache: expected (B, S, H, D) with the heads and features of the new tokens");
  xlstm_attention_append p{};
  p.batch = from.size(0);
  p.length = from.size(1);
  p.heads = from.size(2);
  p.features = from.size(3);
  p.from = tokens("x", from, from);
  p.to = key_tokens("cache", to, from);
  p.start = indices("cache_seqlens", start, from, 1, p.batch);
  return p;
}

Tensor attention_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, const OptionalTensor& start,
                        bool interleaved, bool same_position) {
  STD_TORCH_CHECK(x.dim() == 4, "x: expected 4 dimensions (B, S, H, D)");
  Tensor y = like_tokens(x, x.size(3), false);
  xlstm_attention_append p = append_params(x, y, start);
  set_rotary(p, cos, sin, x);
  p.interleaved = interleaved;
  p.same_position = same_position;
  if (x.numel() > 0) run(x, p, kAppend);
  return y;
}

void attention_append_(const Tensor& cache, const Tensor& x, const OptionalTensor& cos, const OptionalTensor& sin,
                       const OptionalTensor& start, const OptionalTensor& cache_batch_idx,
                       const OptionalTensor& block_table, bool interleaved, const OptionalTensor& scale) {
  xlstm_attention_append p = append_params(x, cache, start);
  p.descale = descale("descale", scale, x, p.batch, p.heads);
  set_rotary(p, cos, sin, x);
  p.interleaved = interleaved;
  p.to_cache = 1;
  p.cache_batch_idx = indices("cache_batch_idx", cache_batch_idx, x, 1, p.batch);
  p.block_table = indices("block_table", block_table, x, 2, p.batch);
  p.cache_batch = cache.size(0);
  p.cache_length = cache.size(1);
  if (block_table) {
    p.block_table_stride = block_table->size(1);
    p.page_size = cache.size(1);
    p.pages = cache.size(0);
    p.cache_length = p.block_table_stride * p.page_size;
  } else {
    STD_TORCH_CHECK(cache_batch_idx || cache.size(0) == p.batch, "cache: expected the new tokens' batch size");
  }
  if (x.numel() > 0) run(x, p, kAppend);
}

std::tuple<Tensor, Tensor> attention_combine(const Tensor& out_partial, const Tensor& lse_partial) {
  STD_TORCH_CHECK(out_partial.dim() == 5, "out_partial: expected 5 dimensions (splits, B, S, H, D)");
  xlstm_attention_combine p{};
  p.splits = out_partial.size(0);
  p.batch = out_partial.size(1);
  p.length = out_partial.size(2);
  p.heads = out_partial.size(3);
  p.dv = out_partial.size(4);
  p.wide = dtype_of("out_partial", out_partial);
  check_shape("lse_partial", lse_partial, {p.splits, p.batch, p.length, p.heads});
  check_device("lse_partial", lse_partial, out_partial);
  STD_TORCH_CHECK(p.wide == XLSTM_FLOAT32 || p.wide == XLSTM_FLOAT64, "out_partial: expected float32 or float64");
  STD_TORCH_CHECK(lse_partial.scalar_type() == out_partial.scalar_type(), "lse_partial: expected out_partial's dtype");
  STD_TORCH_CHECK(out_partial.stride(4) == 1 || p.dv == 1, "out_partial: expected the last dimension to be contiguous");
  for (int j = 0; j < 4; ++j) p.out_stride[j] = out_partial.stride(j), p.lse_stride[j] = lse_partial.stride(j);
  p.out_partial = out_partial.data_ptr();
  p.lse_partial = lse_partial.data_ptr();
  Tensor out = new_tensor(out_partial, {p.batch, p.length, p.heads, p.dv}, out_partial.scalar_type());
  Tensor lse = new_tensor(out_partial, {p.batch, p.length, p.heads}, out_partial.scalar_type());
  p.out = tokens("out", out, out_partial);
  p.lse = {lse.data_ptr(), p.wide, {lse.stride(0), lse.stride(2), lse.stride(1)}};
  if (out_partial.numel() > 0) run(out_partial, p, kCombine);
  return {out, lse};
}

// One function serves both devices: the tensors' device decides which call of the C API runs.
void implement(Library& m) {
  m.impl("attention_forward", TORCH_BOX(&attention_forward));
  m.impl("attention_forward_probs", TORCH_BOX(&attention_forward_probs));
  m.impl("attention_backward", TORCH_BOX(&attention_backward));
  m.impl("attention_rotary", TORCH_BOX(&attention_rotary));
  m.impl("attention_append_", TORCH_BOX(&attention_append_));
  m.impl("attention_combine", TORCH_BOX(&attention_combine));
}

}  // namespace
}  // namespace xlstm::torch_ops

XLSTM_OPS_IMPL_ON_DEVICES(xlstm::torch_ops::implement)
