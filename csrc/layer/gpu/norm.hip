// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/arena.h"
#include "layer/gpu/kernels.h"
#include "layer/gpu/launch.h"
#include "layer/gpu/norm_backward.h"
#include "layer/gpu/norm_forward.h"

namespace xlstm::gpu::layer {
namespace {

// Rows, and a stride of them beyond, are counted in 32 bits.
void check_size(const xlstm_norm& in) {
  if (in.rows * in.heads > 1 << 30) throw std::runtime_error("norm: more heads of rows than a GPU call takes, 2^30");
}

// f(Kind) as with_kind(); a head of more features than `chunks(Kind)` of a group hold is for Any.
template <class Chunks, class F>
void with_norm_kind(const xlstm_norm& in, std::initializer_list<const xlstm_rows*> tensors, Chunks&& chunks, F&& f) {
  with_kind<true>(in.rows, in.features, tensors, [&](auto kind) {
    if (in.features > int64_t(kMostGroup) * kChunk * chunks(kind))
      f(Kind<Any, decltype(kind)::kWhole>{});
    else
      f(kind);
  });
}

// f(kernel) of the kernel for this call.
template <class F>
void with_backward(const xlstm_norm_backward& call, F&& f) {
  const xlstm_norm& in = call.in;
  const auto tensors = {&in.x, &in.weight, &in.bias, &in.gate, &call.dy, &call.dsum, &call.dx, &call.dgate};
  with_norm_kind(
      in, tensors, [](auto) { return kKeptChunks; },
      [&](auto kind) {
        using E = typename decltype(kind)::Element;
        constexpr bool kWhole = decltype(kind)::kWhole, kAlways = !kPacked<E, kWhole>;  // one kernel
        if (kAlways || call.dbias.data)
          f(norm_backward_rows<E, kWhole, true, true>);
        else if (in.gate.data)
          f(norm_backward_rows<E, kWhole, true, kAlways>);
        else
          f(norm_backward_rows<E, kWhole, kAlways, kAlways>);
      });
}

struct Memory {
  Walk walk;
  int64_t slices, width;
  float *dweight, *dbias;
  size_t used;

  Memory(const xlstm_norm_backward& p, const Chip& chip, void* workspace) {
    walk = plan_norm_backward(chip, p.in.rows, p.in.heads, p.in.features);
    slices = walk.slices;
    width = p.in.heads * p.in.features;
    Arena arena(workspace);
    dweight = p.dweight.data ? arena.take<float>(slices * width) : nullptr;
    dbias = p.dbias.data ? arena.take<float>(slices * width) : nullptr;
    used = arena.used();
  }
};

void sum(const float* from, const Memory& memory, const xlstm_rows& to, Stream stream) {
  if (!to.data) return;
  const SumSlicesParams p{from, int(memory.slices), memory.width, to};
  launch("norm, gradients of weight and bias", sum_slices<0>, {ceil_div(memory.width, kSliceColumns), kLayerThreads, 0},
         stream, p);
}

}  // namespace

void norm_forward(const xlstm_norm_forward& call, const Chip& chip, void* stream) {
  const xlstm_norm& in = call.in;
  check_size(in);
  const auto tensors = {&in.x, &in.residual, &in.weight, &in.bias, &in.gate, &call.sum, &call.y};
  const auto chunks = []<class E, bool kWhole>(Kind<E, kWhole>) { return kForwardChunks<E, kWhole>; };
  with_norm_kind(in, tensors, chunks, [&](auto kind) {
    using E = typename decltype(kind)::Element;
    constexpr bool kWhole = decltype(kind)::kWhole;
    const Groups groups = plan_norm(chip, in.rows, in.heads, in.features, kForwardChunks<E, kWhole>);
    const NormForwardParams p{call, dtypes_of(in), int(in.rows * in.heads), Group(groups.lanes)};
    const Grid grid{groups.blocks, groups.threads, 0, chip.hopper};
    launch("norm", norm_forward_rows<E, kWhole>, grid, static_cast<Stream>(stream), p);
  });
}

size_t norm_backward_workspace(const xlstm_norm_backward& p, const Chip& chip) { return Memory(p, chip, nullptr).used; }

void norm_backward(const xlstm_norm_backward& call, const Chip& chip, void* workspace, void* stream) {
  const xlstm_norm& in = call.in;
  check_size(in);
  with_backward(call, [&](auto kernel) {
    const Memory memory(call, chip, workspace);
    const Walk& walk = memory.walk;
    const int slices = int(walk.slices), items = slices * int(in.heads);
    const NormBackwardParams p{call, items, slices, Group(walk.lanes), memory.dweight, memory.dbias};
    launch("norm, backward", kernel, {walk.blocks, walk.threads, 0}, static_cast<Stream>(stream), p);
    sum(memory.dweight, memory, call.dweight, static_cast<Stream>(stream));
    sum(memory.dbias, memory, call.dbias, static_cast<Stream>(stream));
  });
}

}  // namespace xlstm::gpu::layer
