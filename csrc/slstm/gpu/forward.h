// SPDX-License-Identifier: Apache-2.0
// sLSTM and LSTM forward on a GPU: a block walks the tokens of up to 16 sequences of one head (8 on NVIDIA).
//
//   raw(t) = x(t) + bias + R h(t - 1)      4 P by P, by matrix instructions
//   h(t), states(t) = cell(raw(t), states(t - 1))
//
//   wave w        units [w S, (w + 1) S) of the head, S the rows of a strip: a strip for each of their gates, so that a
//                 lane has all four gates of its units
//   LDS           h of the block's sequences, twice: a token reads one and writes the other, one barrier a token
//
// Resident: a wave has one S of units, and its rows of R, 128 registers a lane at 128 units, and the units' states stay
// in registers for all tokens. x(t + 1) is loaded while the products of t run.
// Streamed, for heads and formats that do not fit: a wave takes one S of its units after the other, reads R from L2 for
// each token, and keeps the states in memory.
//
// What binds is the chain through one token, since the next one's products need its h: products, a cell of 8
// transcendentals a unit, a barrier; on an H200 some 2000 clocks at 128 units, a quarter of them issued. Streamed, the
// bytes of R bind, 8 P^2 a token from L2 for a whole block. Bytes and flops of the whole card do not.
#pragma once

#include "slstm/gpu/lane_units.h"

namespace xlstm::gpu::slstm {

// What the cell needs of a token and a lane's units, beside the products.
template <class E>
struct CellInputs {
  Units<E, E> x[kGates];
  float bias[kGates][kUnits<E>];
  States<FloatMaths<E>> states[kUnits<E>];
};

// kResident: padded units of the head, or 0.
template <class E, int kResident>
XLSTM_DEVICE void walk_forward(const ForwardParams& p, char* lds) {
  using Maths = FloatMaths<E>;
  constexpr int kStepUnits = kUnit<E>;
  const CellShape& at = p.at;
  const LaneSequence lane(at);
  const int padded = kResident ? kResident : at.padded, row_bytes = lds_row_bytes(kFamily, sizeof(E), padded);
  const int64_t head_units = int64_t(at.heads) * at.units, state = lane.state(at);
  const bool has_n = at.cell != XLSTM_CELL_LSTM, has_row = lane.column < at.rows;

  const auto rows_of_gate = [&](int unit, int gate) {
    const E* matrix = static_cast<const E*>(p.recurrent) + int64_t(lane.head) * kGates * at.padded * at.padded;
    return MatrixRows<E>{matrix + (int64_t(gate) * at.padded + unit) * at.padded, at.padded};
  };
  const auto lds_row = [&](int t) { return reinterpret_cast<E*>(lds + ((t & 1) * at.rows + lane.column) * row_bytes); };
  // The token of x that is loaded next, and the unit of the token that is computed next.
  const E* x_token =
      static_cast<const E*>(p.x) + lane.row * p.x_stride[0] + lane.begin * p.x_stride[1] + lane.head * p.x_stride[3];
  int64_t token = lane.token(at, 0);

  const auto load_x = [&](const LaneUnits<E>& own, CellInputs<E>& in) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) in.x[g] = own.load(x_token + g * p.x_stride[2]);
  };
  const auto load_bias = [&](const LaneUnits<E>& own, CellInputs<E>& in) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      const auto b = own.load_or_zero(p.bias, (int64_t(g) * at.heads + lane.head) * at.units);
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) in.bias[g][u] = b.at(u);
    }
  };
  const auto load_states = [&](const LaneUnits<E>& own, CellInputs<E>& in, const float* c, const float* n,
                               const float* m) {
    const auto c0 = own.load_or_zero(c, state), n0 = own.load_or_zero(n, state), m0 = own.load_or_zero(m, state);
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u) {
      const bool forgets = has_n && n0.at(u) == 0;
      in.states[u] = {forgets ? 0.0f : c0.at(u), n0.at(u), forgets ? -__builtin_inff() : m0.at(u)};
    }
  };
  // The cell of token t, after the products.
  const auto finish = [&](const LaneUnits<E>& own, const Strip<E>(&raw)[kGates], CellInputs<E>& in, int t) {
    const bool is_token = t < lane.length;
    Units<E, E> out, z, o, slope;
    Units<float, E> decay, c, n, m;
    with_cell(at.cell, [&](auto cell) {
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) {
        const int r = register_of(u);
        const Gates<Maths> gates{raw[0].value[r], raw[1].value[r], raw[2].value[r], raw[3].value[r]};
        Kept<Maths> kept;
        out.set(u, forward_token<Maths>(cell, gates, in.states[u], kept));
        z.set(u, kept.z), o.set(u, kept.o), slope.set(u, kept.slope), decay.set(u, kept.decay);
      }
    });
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u) {
      const States<Maths>& s = in.states[u];
      c.set(u, s.c), n.set(u, s.n), m.set(u, s.m);
    }
    if (has_row) own.store_lds(lds_row(t + 1), out);
    own.store(static_cast<E*>(p.h) + token, out, is_token);
    if (p.m) own.store(p.m + token, m, is_token);
    if (p.gates) {
      const int64_t kept = lane.among_values(at, kKept, token);
      E* gates = static_cast<E*>(p.gates) + kept;
      float* memory = p.memory + kept;
      own.store(gates, z, is_token);
      own.store(gates + head_units, o, is_token);
      own.store(gates + 2 * head_units, slope, is_token);
      own.store(memory, decay, is_token);
      own.store(memory + head_units, c, is_token);
      own.store(memory + 2 * head_units, n, is_token);
    }
    const bool is_last = t + 1 == lane.length;
    if (p.h_last) own.store(static_cast<E*>(p.h_last) + state, out, is_last);
    if (p.c_last) {
      const bool is_kept = is_last || (kResident == 0 && is_token);
      own.store(p.c_last + state, c, is_kept);
      if (has_n) own.store(p.n_last + state, n, is_kept), own.store(p.m_last + state, m, is_kept);
    }
  };
  const auto store_initial_h = [&](const LaneUnits<E>& own) {
    if (has_row) own.store_lds(lds_row(0), own.load_or_zero(static_cast<const E*>(p.h_initial), state));
  };

  const int longest = LaneSequence::longest(at);
  if constexpr (kResident > 0) {
    const int unit = wave_id() * kStep<E>;
    StreamOperand<E> matrix[kGates][kResident / kStep<E>];
#pragma unroll
    for (int g = 0; g < kGates; ++g)
#pragma unroll
      for (int k = 0; k < kResident / kStepUnits; ++k)
        rows_of_gate(unit, g).each_step_of(
            k, [&](int s, const StreamOperand<E>& operand) { matrix[g][k * kUnitSteps<E> + s] = operand; });
    const LaneUnits<E> own(at, unit);
    CellInputs<E> in;
    load_x(own, in), load_bias(own, in), load_states(own, in, p.c_initial, p.n_initial, p.m_initial);
    store_initial_h(own);
    __syncthreads();
    for (int t = 0; t < longest; ++t) {
      Strip<E> raw[kGates];
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        raw[g].zero();
#pragma unroll
        for (int u = 0; u < kUnits<E>; ++u) raw[g].value[register_of(u)] = in.x[g].at(u) + in.bias[g][u];
      }
      if (t + 1 < lane.length) x_token += p.x_stride[1];
      load_x(own, in);
      const SequenceRows<E> h{lds + (t & 1) * at.rows * row_bytes, row_bytes, at.rows};
      h.each_step(0, kResident / kStepUnits, [&](int s, const ChainOperand<E>& operand) {
#pragma unroll
        for (int g = 0; g < kGates; ++g) multiply(raw[g], matrix[g][s], operand);
      });
      finish(own, raw, in, t);
      token += head_units;
      __syncthreads();
    }
  } else {
    for (int unit = wave_id() * kStep<E>; unit < padded; unit += int(blockDim.x) / kWave * kStep<E>)
      store_initial_h(LaneUnits<E>(at, unit));
    __syncthreads();
    for (int t = 0; t < longest; ++t) {
      const SequenceRows<E> h{lds + (t & 1) * at.rows * row_bytes, row_bytes, at.rows};
#pragma unroll 1
      for (int unit = wave_id() * kStep<E>; unit < padded; unit += int(blockDim.x) / kWave * kStep<E>) {
        Strip<E> raw[kGates];
#pragma unroll
        for (int g = 0; g < kGates; ++g) raw[g].zero();
#pragma unroll 1
        for (int k = 0; k < padded / kStepUnits; ++k) {
          ChainOperand<E> of_k[kUnitSteps<E>];
          h.each_step(k, 1, [&](int s, const ChainOperand<E>& operand) { of_k[s] = operand; });
#pragma unroll
          for (int g = 0; g < kGates; ++g)
            rows_of_gate(unit, g).each_step_of(
                k, [&](int s, const StreamOperand<E>& operand) { multiply_in_parts(raw[g], operand, of_k[s]); });
        }
        const LaneUnits<E> own(at, unit);
        CellInputs<E> in;
        load_x(own, in), load_bias(own, in);
        t == 0 ? load_states(own, in, p.c_initial, p.n_initial, p.m_initial)
               : load_states(own, in, p.c_last, p.n_last, p.m_last);
#pragma unroll
        for (int g = 0; g < kGates; ++g)
#pragma unroll
          for (int u = 0; u < kUnits<E>; ++u) raw[g].value[register_of(u)] += in.x[g].at(u) + in.bias[g][u];
        finish(own, raw, in, t);
      }
      if (t + 1 < lane.length) x_token += p.x_stride[1];
      token += head_units;
      __syncthreads();
    }
  }
}

template <class E, int kResident>
__global__ __launch_bounds__((kThreads<E, kResident, false>)) void cell_forward(XLSTM_PARAM ForwardParams p) {
  extern __shared__ __align__(16) char lds[];
  if constexpr (kHasKernel<E, kResident>) walk_forward<E, kResident>(p, lds);
}

}  // namespace xlstm::gpu::slstm
