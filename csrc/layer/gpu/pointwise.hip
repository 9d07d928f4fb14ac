// SPDX-License-Identifier: Apache-2.0
#include "layer/gpu/kernels.h"
#include "layer/gpu/launch.h"
#include "layer/gpu/pointwise.h"

namespace xlstm::gpu::layer {
namespace {

// Makes one row of all rows where every tensor is contiguous.
template <class Call>
Call joined(Call call, std::initializer_list<const xlstm_rows*> tensors) {
  for (const xlstm_rows* x : tensors)
    if (x->stride != call.features) return call;
  call.features *= call.rows;
  call.rows = 1;
  return call;
}

template <class Op, bool kMixed>
void run(const char* name, const typename Op::Params& of_rows, std::initializer_list<const xlstm_rows*> tensors,
         void* stream) {
  const auto call = joined(of_rows, tensors);
  const int64_t row_chunks = ceil_div(call.features, kChunk);
  const PointwiseParams<Op> p{call, call.rows * row_chunks, unsigned(row_chunks)};
  if (call.rows > 1 && p.chunks > INT32_MAX)
    throw std::runtime_error(std::string(name) + ": more features than a GPU call takes of rows that are apart");
  with_kind<kMixed>(call.rows, call.features, tensors, [&](auto kind) {
    using K = decltype(kind);
    constexpr int64_t kBlock = kPointwiseChunks<typename K::Element, K::kAligned> * kLayerThreads;
    launch(name, pointwise<Op, typename K::Element, K::kAligned>, {ceil_div(p.chunks, kBlock), kLayerThreads, 0},
           static_cast<Stream>(stream), p);
  });
}

}  // namespace

void soft_cap_forward(const xlstm_soft_cap& p, void* stream) {
  run<SoftCapForward, false>("soft cap", p, {&p.x, &p.y}, stream);
}
void soft_cap_backward(const xlstm_soft_cap& p, void* stream) {
  run<SoftCapBackward, false>("soft cap, backward", p, {&p.x, &p.dy, &p.dx}, stream);
}
void swiglu_forward(const xlstm_swiglu& p, void* stream) {
  run<SwigluForward, true>("swiglu", p, {&p.gate, &p.up, &p.y}, stream);
}
void swiglu_backward(const xlstm_swiglu& p, void* stream) {
  run<SwigluBackward, true>("swiglu, backward", p, {&p.gate, &p.up, &p.dy, &p.dgate, &p.dup}, stream);
}

}  // namespace xlstm::gpu::layer
