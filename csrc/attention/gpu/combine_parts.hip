// SPDX-License-Identifier: Apache-2.0
// Launches of the split-KV combination (combine_parts.h): the public call, and the step that follows a split-KV forward
// kernel.
#include "arch/launch.h"
#include "attention/gpu/combine_parts.h"
#include "attention/gpu/kernels.h"
#include "attention/gpu/tensor_layout.h"
#include "attention/layout.h"

namespace xlstm::gpu::attention {
namespace {

__global__ __launch_bounds__(kCombineThreads) void combine_kernel(const xlstm_attention_combine p, const Parts parts) {
  combine_rows(parts, static_cast<float*>(p.out.data), static_cast<float*>(p.lse.data), [&](int64_t n, PartsRow& row) {
    const int64_t head = n % p.heads, t = n / p.heads % p.length, b = n / p.heads / p.length;
    if (b >= p.batch) return false;
    const auto at = [&](const int64_t* stride) { return b * stride[1] + t * stride[2] + head * stride[3]; };
    const auto to = [&](const xlstm_tensor& x) { return b * x.stride[0] + head * x.stride[1] + t * x.stride[2]; };
    row = {at(p.out_stride), at(p.lse_stride), to(p.out), to(p.lse), false, false, 0};
    return true;
  });
}

template <class E>
__global__ __launch_bounds__(kCombineThreads) void combine_forward_kernel(const xlstm_attention_forward p,
                                                                          const Parts parts) {
  combine_rows(parts, static_cast<E*>(p.out.data), static_cast<float*>(p.lse.data), [&](int64_t n, PartsRow& row) {
    const xlstm_attention& in = p.in;
    // Rows are few in split-KV; a 64-bit division would cost more than the rest of a row's work.
    const uint32_t length = uint32_t(in.length_q), heads = uint32_t(in.heads_q), row_and_head = uint32_t(n) / length;
    const int64_t i = uint32_t(n) % length, head = row_and_head % heads, b = row_and_head / heads;
    if (b >= in.batch) return false;
    const AttentionLayout at(in, b);
    const float* sink = static_cast<const float*>(in.sink);
    row = {n * in.dv,
           n,
           at.query(p.out, head, i),
           at.query(p.lse, head, i),
           sink != nullptr,
           p.lse_with_sink != 0,
           sink ? sink[head] : 0};
    return i < at.queries;
  });
}

bool is_multiple_of_16(int64_t bytes) { return bytes % 16 == 0; }

// One line per row where the rows fill a large chip; few rows get more lines, each of which walks fewer parts.
int combine_groups(int64_t rows, int64_t splits, int64_t dv) {
  constexpr int64_t kBlocks = 1024;
  Parts p{};
  p.dv = int(dv), p.groups = 1;
  while (p.groups < kCombineLines && p.groups < splits && combine_blocks(rows, p) < kBlocks) p.groups *= 2;
  return p.groups;
}

void combine(const xlstm_attention_combine& p, Stream stream) {
  bool aligned16 = is_multiple_of_16(p.dv * 4) && is_multiple_of_16(intptr_t(p.out_partial)) &&
                   is_multiple_of_16(intptr_t(p.out.data));
  for (int64_t stride : p.out_stride) aligned16 = aligned16 && is_multiple_of_16(stride * 4);
  for (int64_t stride : p.out.stride) aligned16 = aligned16 && stride % 4 == 0;
  const int64_t rows = p.batch * p.length * p.heads;
  const Parts parts{static_cast<const float*>(p.out_partial),
                    static_cast<const float*>(p.lse_partial),
                    p.out_stride[0],
                    p.lse_stride[0],
                    int(p.splits),
                    int(p.dv),
                    combine_groups(rows, p.splits, p.dv),
                    aligned16};
  launch("attention, combination", combine_kernel, {combine_blocks(rows, parts), kCombineThreads, 0}, stream, p, parts);
}

template <class E>
void combine(const xlstm_attention_forward& p, const ForwardParts& forward_parts, int64_t splits, Stream stream) {
  const int64_t rows = ForwardParts::rows(p.in);
  bool aligned16 = p.in.dv % 4 == 0 && is_multiple_of_16(intptr_t(p.out.data));
  for (int64_t stride : p.out.stride) aligned16 = aligned16 && stride % 4 == 0;
  const Parts parts{forward_parts.out,
                    forward_parts.lse,
                    rows * p.in.dv,
                    rows,
                    int(splits),
                    int(p.in.dv),
                    combine_groups(rows, splits, p.in.dv),
                    aligned16};
  launch("attention, combination", combine_forward_kernel<E>, {combine_blocks(rows, parts), kCombineThreads, 0}, stream,
         p, parts);
}

}  // namespace

void combine_forward_parts(const xlstm_attention_forward& p, const ForwardParts& parts, int64_t splits, Stream stream) {
  switch (p.out.dtype) {
    case XLSTM_BFLOAT16:
      return combine<BFloat16>(p, parts, splits, stream);
    case XLSTM_FLOAT16:
      return combine<Float16>(p, parts, splits, stream);
    default:
      return combine<float>(p, parts, splits, stream);
  }
}

void attention_combine(const xlstm_attention_combine& p, void* stream) {
  if (p.out.dtype != XLSTM_FLOAT32) throw std::invalid_argument("out: expected float32 on a GPU, as the parts have");
  combine(p, static_cast<Stream>(stream));
}

}  // namespace xlstm::gpu::attention
