// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include "arch/launch.h"
#include "mlstm/recurrent/recurrent.h"
#include "mlstm/recurrent/recurrent_any_shape.h"
#include "mlstm/recurrent/recurrent_call.h"
#include "mlstm/recurrent/recurrent_step.h"

namespace xlstm::gpu::mlstm {
namespace {

int64_t heads_of(const xlstm_mlstm& in) { return (in.cu_seqlens ? in.sequences : in.batch) * in.heads; }

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

Tokens tokens(const xlstm_tensor& x, const xlstm_mlstm& in, int64_t columns) {
  Tokens t{x.data, {x.stride[0], x.stride[1], x.stride[2]}, int(columns), int(x.dtype), is_aligned(x.data)};
  const int64_t extent[3] = {in.batch, in.heads, in.length}, vec = x.dtype == XLSTM_FLOAT32 ? 4 : 8;
  for (int d = 0; d < 3; ++d) t.is_aligned16 &= extent[d] == 1 || x.stride[d] % vec == 0;
  return t;
}

// Workspace, in floats: n and m before they are copied in place, and n from token to token. The size is enough for
// either kernel.
struct Memory {
  float *n_and_m, *n_buffers;
  size_t used;

  Memory(const xlstm_mlstm& in, void* workspace) {
    const int64_t heads = heads_of(in), tiles = ceil_div(in.dhv, kAnyTile);
    n_and_m = static_cast<float*>(workspace);
    n_buffers = n_and_m + (heads * (in.dqk + 1) + 3) / 4 * 4;
    used = size_t(n_buffers - n_and_m + (in.length > 1 ? heads * tiles * 2 * in.dqk : 0)) * sizeof(float);
  }
};

template <class E, class C, int kTileBytes>
void launch_tile(const RecurrentParams& p, const RecurrentPlan& plan, Stream stream) {
  constexpr int kColumns = kTileBytes / sizeof(C);
  auto kernel = recurrent_step<E, kColumns, C>;
  if constexpr (sizeof(C) == 4)
    if (p.where.length > 1 || p.where.cu_seqlens) kernel = recurrent_tokens<E, kColumns>;
  launch("recurrent mLSTM", kernel, {plan.blocks, int(plan.threads), 0, plan.early_launch}, stream, p);
}

template <class E, class C>
void launch_state(const RecurrentParams& p, const RecurrentPlan& plan, Stream stream) {
  const int tile_bytes = plan.columns * int(sizeof(C));
  if (!plan.in_registers)
    launch("recurrent mLSTM", recurrent_tokens_any_shape<E, C>, {plan.blocks, int(plan.threads), 0}, stream, p);
  else if (tile_bytes == 128)
    launch_tile<E, C, 128>(p, plan, stream);
  else if (tile_bytes == 64)
    launch_tile<E, C, 64>(p, plan, stream);
  else
    launch_tile<E, C, 32>(p, plan, stream);
}

template <class E>
void launch_element(const RecurrentParams& p, bool bfloat16_c, const RecurrentPlan& plan, Stream stream) {
  bfloat16_c ? launch_state<E, BFloat16>(p, plan, stream) : launch_state<E, float>(p, plan, stream);
}

}  // namespace

RecurrentPlan plan_recurrent_call(const xlstm_mlstm_forward& p, const Chip& chip) {
  const xlstm_mlstm& in = p.in;
  const int state_bytes = in.bfloat16_c ? 2 : 4;
  const bool aligned16 = in.dqk % kRecurrentRows == 0 && in.dhv % recurrent_columns(state_bytes) == 0 &&
                         tokens(in.q, in, in.dqk).is_aligned16 && tokens(in.k, in, in.dqk).is_aligned16 &&
                         tokens(in.v, in, in.dhv).is_aligned16 && is_aligned(in.c_initial) &&
                         is_aligned(in.n_initial) && is_aligned(p.c_last) && is_aligned(p.n_last);
  return plan_recurrent(heads_of(in), in.dqk, in.dhv, aligned16, chip, in.step_columns, state_bytes);
}

size_t recurrent_workspace(const xlstm_mlstm_forward& p) { return Memory(p.in, nullptr).used; }

void recurrent(const xlstm_mlstm_forward& call, const RecurrentPlan& plan, void* workspace, void* stream_pointer) {
  const Stream stream = static_cast<Stream>(stream_pointer);
  const xlstm_mlstm& in = call.in;
  const Memory memory(in, workspace);
  const int64_t heads = heads_of(in), n_size = heads * in.dqk;
  // Several tiles read what one tile writes. In the kernel for any shape a tile's threads also read what another of its
  // threads writes.
  const bool shared = plan.tiles > 1 || !plan.in_registers;
  const bool in_place = shared && (call.n_last == in.n_initial || call.m_last == in.m_initial);

  RecurrentParams p{};
  p.where = {in.cu_seqlens, in.length, in.heads, heads / in.heads, in.cu_seqlens ? in.heads : heads,
             in.length,     1,         nullptr};
  p.q = tokens(in.q, in, in.dqk);
  p.k = tokens(in.k, in, in.dqk);
  p.v = tokens(in.v, in, in.dhv);
  p.gate[0] = tokens(in.f, in, 1);
  p.gate[1] = tokens(in.i, in, 1);
  p.h = tokens(call.h, in, in.dhv);
  p.c_initial = in.c_initial;
  p.n_initial = static_cast<const float*>(in.n_initial);
  p.m_initial = static_cast<const float*>(in.m_initial);
  p.c_last = call.c_last;
  p.n_last = in_place ? memory.n_and_m : static_cast<float*>(call.n_last);
  p.m_last = in_place ? memory.n_and_m + n_size : static_cast<float*>(call.m_last);
  p.n_buffers = memory.n_buffers;
  p.l = static_cast<float*>(call.l);
  p.tiles = plan.tiles;
  p.interleaved_heads = plan.interleaved_heads;
  p.sigmoid = in.gate == XLSTM_GATE_SIGMOID;
  p.normalize = !p.sigmoid || in.normalize;
  p.scale = 1 / std::sqrt(double(in.dqk));
  p.eps = in.eps;
  p.gate_soft_cap = in.gate_soft_cap;
  switch (in.q.dtype) {
    case XLSTM_BFLOAT16:
      launch_element<BFloat16>(p, in.bfloat16_c, plan, stream);
      break;
    case XLSTM_FLOAT16:
      launch_element<Float16>(p, in.bfloat16_c, plan, stream);
      break;
    default:
      launch_element<float>(p, in.bfloat16_c, plan, stream);
  }
  if (!in_place) return;
  const CopyStateParams s{memory.n_and_m, static_cast<float*>(call.n_last), static_cast<float*>(call.m_last), n_size,
                          n_size + heads};
  launch("recurrent mLSTM, n and m in place", copy_n_and_m<0>,
         {ceil_div(s.size, kCopyStateThreads), kCopyStateThreads, 0, plan.early_launch}, stream, s);
}

}  // namespace xlstm::gpu::mlstm
