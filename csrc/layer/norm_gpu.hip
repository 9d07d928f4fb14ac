// SPDX-License-Identifier: Apache-2.0
#include "layer/kernels_gpu.h"
#include "layer/launch_gpu.h"
#include "layer/norm_gpu.h"
#include "tile/arena.h"

namespace xlstm::gpu {
namespace {

// Rows, and a stride of them beyond, are counted in 32 bits.
void check_size(const xlstm_norm& in) {
  if (in.rows * in.heads > 1 << 30) throw std::runtime_error("norm: more heads of rows than a GPU call takes, 2^30");
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
  launch("norm, gradients of weight and bias", sum_slices<0>,
         {(memory.width + kSliceColumns - 1) / kSliceColumns, kLayerThreads, 0}, stream, p);
}

}  // namespace

void norm_forward(const xlstm_norm_forward& call, const Chip& chip, void* stream) {
  const xlstm_norm& in = call.in;
  const Walk walk = plan_norm(chip, in.rows, in.heads, in.features);
  check_size(in);
  const NormForwardParams p{call, dtypes_of(in), int(walk.slices * in.heads), int(walk.slices), {walk.lanes}};
  const auto tensors = {&in.x, &in.residual, &in.weight, &in.bias, &in.gate, &call.sum, &call.y};
  with_kind<true>(in.rows, in.features, tensors, [&](auto kind) {
    using K = decltype(kind);
    launch("norm", norm_forward_rows<typename K::Element, K::kWhole>, {walk.blocks, walk.threads, 0},
           static_cast<Stream>(stream), p);
  });
}

size_t norm_backward_workspace(const xlstm_norm_backward& p, const Chip& chip) { return Memory(p, chip, nullptr).used; }

void norm_backward(const xlstm_norm_backward& call, const Chip& chip, void* workspace, void* stream) {
  const xlstm_norm& in = call.in;
  const Memory memory(call, chip, workspace);
  const Walk& walk = memory.walk;
  check_size(in);
  const int slices = int(walk.slices), items = slices * int(in.heads);
  const NormBackwardParams p{call, items, slices, {walk.lanes}, memory.dweight, memory.dbias};
  const auto tensors = {&in.x, &in.weight, &in.bias, &in.gate, &call.dy, &call.dsum, &call.dx, &call.dgate};
  with_kind<true>(in.rows, in.features, tensors, [&](auto kind) {
    using K = decltype(kind);
    launch("norm, backward", norm_backward_rows<typename K::Element, K::kWhole>, {walk.blocks, walk.threads, 0},
           static_cast<Stream>(stream), p);
  });
  sum(memory.dweight, memory, call.dweight, static_cast<Stream>(stream));
  sum(memory.dbias, memory, call.dbias, static_cast<Stream>(stream));
}

}  // namespace xlstm::gpu
