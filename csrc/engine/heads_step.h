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
#include "engine/gpu/prologue_epilogue.h"
#include "mlstm/recurrent/recurrent_step.h"

namespace xlstm::gpu::engine {

constexpr int kMostHeadValues = 1024;  // in the registers of a wave

struct HeadsStepParams {
  mlstm::RecurrentParams step;         // dims, tiles, scale; tensors are those below
  const float *q, *k, *v, *i, *f, *o;  // (batch, heads, dim) of each
  float *c, *n, *m, *h, *y;
  DeviceVector weight, bias;  // of the norm; data is null without
  float norm_eps;
  uint32_t* arrived;  // (batch, heads)
};

constexpr int kHeadValues = kMostHeadValues / kWave;  // of a lane, kWave apart

// A lane's values of a vector, whose loads are all in flight at once; past the last value, the first again.
template <class T>
XLSTM_DEVICE void read_values(const T* from, int values, float (&to)[kHeadValues]) {
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) {
    const int at = j * kWave + lane_id();
    to[j] = to_float(from[at < values ? at : 0]);
  }
}
XLSTM_DEVICE void read_values(const DeviceVector& x, int begin, int values, float without, float (&to)[kHeadValues]) {
  if (!x.data) {
#pragma unroll
    for (float& value : to) value = without;
  } else if (x.dtype == XLSTM_FLOAT32) {
    read_values(static_cast<const float*>(x.data) + begin, values, to);
  } else if (x.dtype == XLSTM_BFLOAT16) {
    read_values(static_cast<const BFloat16*>(x.data) + begin, values, to);
  } else {
    read_values(static_cast<const Float16*>(x.data) + begin, values, to);
  }
}

// The first wave of a block: its head of h, from where all blocks have stored it.
XLSTM_DEVICE void norm_head(const HeadsStepParams& p, int64_t state) {
  const int values = p.step.v.columns, begin = int(state % p.step.where.heads) * values;
  const float* const h = p.h + state * values;
  float x[kHeadValues], gate[kHeadValues], weight[kHeadValues], bias[kHeadValues], sum = 0, squares = 0;
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) {
    const int at = j * kWave + lane_id();
    x[j] = at < values ? load_device_scope(h + at) : 0.0f;
  }
  read_values(p.o + state * values, values, gate);
  read_values(p.weight, begin, values, 1.0f, weight);
  read_values(p.bias, begin, values, 0.0f, bias);
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) sum += x[j];
  const float mean = wave_sum(sum) / float(values);
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) {
    x[j] = j * kWave + lane_id() < values ? x[j] - mean : 0.0f;
    squares = __builtin_fmaf(x[j], x[j], squares);
  }
  const float factor = 1 / __builtin_sqrtf(wave_sum(squares) / float(values) + p.norm_eps);
#pragma unroll
  for (int j = 0; j < kHeadValues; ++j) {
    const int at = j * kWave + lane_id();
    if (at < values) p.y[state * values + at] = __builtin_fmaf(x[j] * factor, weight[j], bias[j]) * sigmoid_of(gate[j]);
  }
}

template <int kColumns>
__global__ __launch_bounds__(mlstm::kMaxRecurrentThreads, 2) void heads_step(const HeadsStepParams p) {
  if constexpr (kFamily == Family::cdna) {
    using Tile = mlstm::HeadTile<float, kColumns>;
    __shared__ mlstm::PartialSums<float, kColumns, mlstm::kMaxRecurrentThreads / kWave> sums;
    __shared__ mlstm::OneStep one;
    __shared__ uint32_t arrived_before;
    int64_t state;
    int index;
    if (!mlstm::find_tile(p.step, state, index)) return;
    const int keys = p.step.q.columns, values = p.step.v.columns;
    Tile tile(p.step, index);
    float* const c = p.c + state * keys * values;
    mlstm::OneGate gate;
    if (gate.computes) {
      gate.x = double((gate.is_input ? p.i : p.f)[state]);
      gate.m = double(p.m[state]);
    }
    load_barrier();  // C behind the gates
    tile.load(c, p.n + state * keys);
    tile.q_at = p.q + state * keys + tile.row, tile.k_at = p.k + state * keys + tile.row;
    tile.v_at = p.v + state * values + tile.column;
    tile.fetch();
    gate.compute(p.step, one);
    __syncthreads();
    float h[Tile::kWidth] = {}, l = 0;
    tile.update({one.factor[0], 0, one.factor[1]}, h, l);
    mlstm::store_partial_sums<Tile>(sums, 0, h, l);
    __syncthreads();
    uint32_t before = 0;
    const int value = index * kColumns + int(threadIdx.x);
    if (threadIdx.x < kColumns && value < values)
      store_device_scope(p.h + state * values + value,
                         mlstm::TokenOutput<float>::sum_up(p.step, sums, 0, blockDim.x / kWave, one.m, l));
    static_assert(kColumns <= kWave);
    if (wave_id() == 0) wait_for_stores();
    // At an opaque address, since the compiler waits at once for an atomic at a uniform one. C is stored while the
    // count is on its way; before, h would wait for it.
    if (threadIdx.x == 0) before = add_device_scope(opaque(p.arrived + state), 1);
    tile.store_c(c);
    if (threadIdx.x == 0) arrived_before = before;
    __syncthreads();
    if (int(arrived_before) + 1 != p.step.tiles) return;
    if (threadIdx.x % Tile::kLanes == 0) tile.store_n(p.n + state * keys);
    if (threadIdx.x == 0) {
      p.m[state] = float(one.m);
      store_device_scope(p.arrived + state, uint32_t(0));
    }
    if (wave_id() == 0) norm_head(p, state);
  }
}

}  // namespace xlstm::gpu::engine
