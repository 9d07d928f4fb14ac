// SPDX-License-Identifier: Apache-2.0
// CDNA: the mLSTM's step of one token, in place, and the norm of heads with the output gate behind it, in one launch.
//
//     C, n, m, h = mLSTM step(q, k, v, i, f)       y = ((h - mean of h) / sqrt(variance + eps) weight + bias)
//     sigmoid(o)
//
// Who owns what: as in mlstm/recurrent/recurrent_step.h, a block owns a tile of columns of one head's C. Blocks of a
// head count themselves when they have read n and m and stored their part of h. The last of them, whichever it is, then
// stores n and m, which its threads hold as the threads of every other block do, and its first wave norms the head. The
// counters are zero when a step begins (embed_kernel), and the last block leaves zero for the next launch.
//
// Order: h and the counters are accessed at the scope of the device. The first wave stores a block's part of h, waits
// until that is done, and counts; by then all waves have met at a barrier with n and m in registers. No block waits for
// another, so any grid runs.
//
// Floor: C read and written once; at one row latency binds. As launches of their own the step, the copy of n and m and
// the norm, which is one block, take 25.4 us for a block of xLSTM-7B at one row on an MI300X, and this 13.5, predicted
// (docs/lab/gfx942.md).
#pragma once

#include "arch/device_scope.h"
#include "engine/gpu/device_mailbox.h"
#include "engine/gpu/prologue_epilogue.h"
#include "mlstm/recurrent/recurrent_step.h"

namespace xlstm::gpu::engine {

// In the registers of a wave, of which a kernel of a whole step has fewer.
constexpr int most_head_values(bool mailboxes) { return mailboxes ? 512 : 1024; }

struct HeadsStepParams {
  mlstm::RecurrentParams step;         // dims, tiles, scale; tensors are those below
  const float *q, *k, *v, *i, *f, *o;  // (batch, heads, dim) of each
  float *c, *n, *m, *h, *y;
  DeviceVector weight, bias;  // of the norm; data is null without
  float norm_eps;
  uint32_t* arrived;  // (batch, heads)
};

// A lane's values of a vector, whose loads are all in flight at once; past the last value, the first again.
template <class T, int kHeadValues>
XLSTM_DEVICE void read_values(const T* from, int lane, int values, float (&to)[kHeadValues]) {
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) {
    const int at = j * kWave + lane;
    to[j] = to_float(from[at < values ? at : 0]);
  }
}
template <int kHeadValues>
XLSTM_DEVICE void read_values(const DeviceVector& x, int begin, int lane, int values, float without,
                              float (&to)[kHeadValues]) {
  if (!x.data) {
#pragma unroll
    for (float& value : to) value = without;
  } else if (x.dtype == XLSTM_FLOAT32) {
    read_values(static_cast<const float*>(x.data) + begin, lane, values, to);
  } else if (x.dtype == XLSTM_BFLOAT16) {
    read_values(static_cast<const BFloat16*>(x.data) + begin, lane, values, to);
  } else {
    read_values(static_cast<const Float16*>(x.data) + begin, lane, values, to);
  }
}

// The same of mailboxes.
template <int kHeadValues>
XLSTM_DEVICE void spin_for_values(const float* from, int lane, int values, float (&to)[kHeadValues]) {
  device_mailbox::spin_each<kHeadValues>(
      [&](int j) {
        const int at = j * kWave + lane;
        return from + (at < values ? at : 0);
      },
      to);
}

// The first wave of a block: its head of h, from where all blocks have stored it. kMailboxes: o and y are mailboxes.
template <bool kMailboxes>
XLSTM_DEVICE void norm_head(const HeadsStepParams& p, int64_t state) {
  constexpr int kHeadValues = most_head_values(kMailboxes) / kWave;  // of a lane, kWave apart
  const int lane = opaque_lane();  // a kernel of many steps would compute all addresses ahead of the first
  const int values = p.step.v.columns, begin = int(state % p.step.where.heads) * values;
  const float* const h = p.h + state * values;
  float x[kHeadValues], gate[kHeadValues], weight[kHeadValues], bias[kHeadValues], sum = 0, squares = 0;
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) {
    const int at = j * kWave + lane;
    x[j] = at < values ? load_device_scope(h + at) : 0.0f;
  }
  if constexpr (kMailboxes)
    spin_for_values(p.o + state * values, lane, values, gate);
  else
    read_values(p.o + state * values, lane, values, gate);
  read_values(p.weight, begin, lane, values, 1.0f, weight);
  read_values(p.bias, begin, lane, values, 0.0f, bias);
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) sum += x[j];
  const float mean = wave_sum(sum) / float(values);
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) {
    x[j] = j * kWave + lane < values ? x[j] - mean : 0.0f;
    squares = __builtin_fmaf(x[j], x[j], squares);
  }
  const float factor = 1 / __builtin_sqrtf(wave_sum(squares) / float(values) + p.norm_eps);
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) {
    const int at = j * kWave + lane;
    if (at >= values) continue;
    const float y = __builtin_fmaf(x[j] * factor, weight[j], bias[j]) * sigmoid_of(gate[j]);
    float* const to = p.y + state * values + at;
    if constexpr (kMailboxes)
      device_mailbox::publish(to, y);
    else
      *to = y;
  }
}

template <int kColumns, int kThreads>
struct HeadsStepLds {
  mlstm::PartialSums<float, kColumns, kThreads / kWave> sums;
  mlstm::OneStep one;
  uint32_t arrived_before;
};

// Updates a tile that has its state and its token, and stores its part of h; the head's last block finishes the head.
// `one` is ready.
template <bool kMailboxes, int kColumns, int kThreads>
XLSTM_DEVICE void step_tile(const HeadsStepParams& p, mlstm::HeadTile<float, kColumns>& tile, int64_t state, int index,
                            HeadsStepLds<kColumns, kThreads>& lds) {
  using Tile = mlstm::HeadTile<float, kColumns>;
  const int keys = p.step.q.columns, values = p.step.v.columns;
  float h[Tile::kWidth] = {}, l = 0;
  tile.update({lds.one.factor[0], 0, lds.one.factor[1]}, h, l);
  mlstm::store_partial_sums<Tile>(lds.sums, 0, h, l);
  __syncthreads();
  uint32_t before = 0;
  const int value = index * kColumns + int(threadIdx.x);
  if (threadIdx.x < kColumns && value < values)
    store_device_scope(
        p.h + state * values + value,
        mlstm::TokenOutput<float>::sum_up(p.step, lds.sums, 0, int(threadIdx.x), 0, blockDim.x / kWave, lds.one.m, l));
  static_assert(kColumns <= kWave);
  if (wave_id() == 0) wait_for_stores();
  // At an opaque address, since the compiler waits at once for an atomic at a uniform one. C is stored while the
  // count is on its way; before, h would wait for it.
  if (threadIdx.x == 0) before = add_device_scope(opaque(p.arrived + state), 1);
  tile.store_c(p.c + state * keys * values);
  if (threadIdx.x == 0) lds.arrived_before = before;
  __syncthreads();
  if (int(lds.arrived_before) + 1 != p.step.tiles) return;
  if (threadIdx.x % Tile::kLanes == 0) tile.store_n(p.n + state * keys);
  if (threadIdx.x == 0) {
    p.m[state] = float(lds.one.m);
    store_device_scope(p.arrived + state, uint32_t(0));
  }
  if (wave_id() == 0) norm_head<kMailboxes>(p, state);
}

template <int kColumns>
__global__ __launch_bounds__(mlstm::kMaxRecurrentThreads, 2) void heads_step(const HeadsStepParams p) {
  if constexpr (kFamily == Family::cdna) {
    using Tile = mlstm::HeadTile<float, kColumns>;
    __shared__ HeadsStepLds<kColumns, mlstm::kMaxRecurrentThreads> lds;
    int64_t state;
    int index;
    if (!mlstm::find_tile(p.step, state, index)) return;
    const int keys = p.step.q.columns, values = p.step.v.columns;
    Tile tile(p.step, index);
    mlstm::OneGate gate;
    if (gate.computes) {
      gate.x = double((gate.is_input ? p.i : p.f)[state]);
      gate.m = double(p.m[state]);
    }
    load_barrier();  // C behind the gates
    tile.load(p.c + state * keys * values, p.n + state * keys);
    tile.q_at = p.q + state * keys + tile.row, tile.k_at = p.k + state * keys + tile.row;
    tile.v_at = p.v + state * values + tile.column;
    tile.fetch();
    gate.compute(p.step, lds.one);
    __syncthreads();
    step_tile<false>(p, tile, state, index, lds);
  }
}

}  // namespace xlstm::gpu::engine
