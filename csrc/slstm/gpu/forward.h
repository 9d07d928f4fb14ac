// SPDX-License-Identifier: Apache-2.0
// sLSTM and LSTM forward on a GPU: a block walks the tokens of up to 16 sequences of one head (8 on NVIDIA).
//
//   raw(t) = x(t) + bias + R h(t - 1)      4 P by P, by matrix instructions
//   h(t), states(t) = cell(raw(t), states(t - 1))
//
//   wave w        units [w S, (w + 1) S) of the head, S the rows of a strip: a strip for each of their gates, so that a
//                 lane has all four gates of its units, and keeps the units' states in registers
//   LDS           h of the block's sequences, twice: a token reads one and writes the other, one barrier a token
//   registers     resident: the wave's rows of R, 128 a lane at 128 units; else they are read from L2 for each token
//
//   token t       h(t - 1) from LDS | S products of each gate | cell | h(t) to LDS, memory | barrier
//                 x(t + 1) from memory while the products run
//
// What binds is the chain through one token, since the next one's products need its h: products, a cell of 7
// transcendentals a unit, a barrier. Bytes and flops of the whole card do not.
#pragma once

#include "slstm/gpu/lane_units.h"

namespace xlstm::gpu::slstm {

// kResident: padded units of the head, or 0. kGroups: of S units in a wave, one after the other; 1 with kResident.
template <class E, int kResident, int kGroups>
XLSTM_DEVICE void walk_forward(const ForwardParams& p, char* lds) {
  using Maths = FloatMaths<E>;
  constexpr int kStepUnits = kUnit<E>, kResidentSteps = kResident ? kResident / kStep<E> : 1;
  const CellShape& at = p.at;
  const LaneSequence lane(at);
  const int head = lane.head;
  const int padded = kResident ? kResident : at.padded, row_bytes = lds_row_bytes(kFamily, sizeof(E), padded);
  const int waves = int(blockDim.x) / kWave;
  const int64_t head_units = int64_t(at.heads) * at.units;
  const bool has_n = at.cell != XLSTM_CELL_LSTM;
  const auto wave_unit = [&](int group) { return (group * waves + wave_id()) * kStep<E>; };

  const auto rows_of_gate = [&](int unit, int gate) {
    const E* matrix = static_cast<const E*>(p.recurrent) + int64_t(head) * kGates * at.padded * at.padded;
    return MatrixRows<E>{matrix + (int64_t(gate) * at.padded + unit) * at.padded, at.padded};
  };
  StreamOperand<E> resident[kGates][kResidentSteps];
  if constexpr (kResident > 0) {
#pragma unroll
    for (int g = 0; g < kGates; ++g)
#pragma unroll
      for (int u = 0; u < kResident / kStepUnits; ++u)
        rows_of_gate(wave_unit(0), g).each_step_of(u, [&](int s, const StreamOperand<E>& operand) {
          resident[g][u * kUnitSteps<E> + s] = operand;
        });
  }

  // The lane's sequence: the token of x that is loaded next, and the unit of the token that is computed next.
  const E* x_token =
      static_cast<const E*>(p.x) + lane.row * p.x_stride[0] + lane.begin * p.x_stride[1] + head * p.x_stride[3];
  int64_t token = lane.token(at, 0);
  const bool has_row = lane.column < at.rows;
  const auto lds_row = [&](int t) { return reinterpret_cast<E*>(lds + ((t & 1) * at.rows + lane.column) * row_bytes); };

  // The states before the first token; h goes to LDS.
  States<Maths> states[kGroups][kUnits<E>];
  float bias[kGroups][kGates][kUnits<E>];
  Units<E, E> x[kGroups][kGates];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if (kGroups > 1 && wave_unit(group) >= padded) continue;
    const LaneUnits<E> own(at, wave_unit(group));
    const int64_t state = lane.state(at);
    const auto c0 = own.load_or_zero(p.c_initial, state), n0 = own.load_or_zero(p.n_initial, state);
    const auto m0 = own.load_or_zero(p.m_initial, state);
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u) {
      const bool forgets = has_n && n0.at(u) == 0;
      states[group][u] = {forgets ? 0.0f : c0.at(u), n0.at(u), forgets ? -__builtin_inff() : m0.at(u)};
    }
    if (has_row) own.store_lds(lds_row(0), own.load_or_zero(static_cast<const E*>(p.h_initial), state));
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      const auto b = own.load_or_zero(p.bias, (int64_t(g) * at.heads + head) * at.units);
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) bias[group][g][u] = b.at(u);
      x[group][g] = own.load(x_token + g * p.x_stride[2]);
    }
  }
  __syncthreads();

  const int longest = LaneSequence::longest(at);
  for (int t = 0; t < longest; ++t) {
    const SequenceRows<E> h{lds + (t & 1) * at.rows * row_bytes, row_bytes, at.rows};
    const bool is_token = t < lane.length;
    if (t + 1 < lane.length) x_token += p.x_stride[1];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int unit = wave_unit(group);
      if (kGroups > 1 && unit >= padded) continue;
      const LaneUnits<E> own(at, unit);
      Strip<E> raw[kGates];
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        raw[g].zero();
#pragma unroll
        for (int u = 0; u < kUnits<E>; ++u) raw[g].value[register_of(u)] = x[group][g].at(u) + bias[group][g][u];
        x[group][g] = own.load(x_token + g * p.x_stride[2]);
      }
      if constexpr (kResident > 0) {
        h.each_step(0, kResident / kStepUnits, [&](int s, const ChainOperand<E>& operand) {
#pragma unroll
          for (int g = 0; g < kGates; ++g) multiply(raw[g], resident[g][s], operand);
        });
      } else {
        for (int k = 0; k < padded / kStepUnits; ++k) {
          ChainOperand<E> of_k[kUnitSteps<E>];
          h.each_step(k, 1, [&](int s, const ChainOperand<E>& operand) { of_k[s] = operand; });
#pragma unroll
          for (int g = 0; g < kGates; ++g)
            rows_of_gate(unit, g).each_step_of(
                k, [&](int s, const StreamOperand<E>& operand) { multiply(raw[g], operand, of_k[s]); });
        }
      }

      Units<E, E> out, z, o, slope;
      Units<float, E> decay, c, n, m;
      with_cell(at.cell, [&](auto cell) {
#pragma unroll
        for (int u = 0; u < kUnits<E>; ++u) {
          const int r = register_of(u);
          const Gates<Maths> gates{raw[0].value[r], raw[1].value[r], raw[2].value[r], raw[3].value[r]};
          Kept<Maths> kept;
          out.set(u, forward_token<Maths>(cell, gates, states[group][u], kept));
          z.set(u, kept.z), o.set(u, kept.o), slope.set(u, kept.slope), decay.set(u, kept.decay);
        }
      });
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) {
        const States<Maths>& s = states[group][u];
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
      if (p.h_last && t + 1 == lane.length) {
        const int64_t state = lane.state(at);
        own.store(static_cast<E*>(p.h_last) + state, out, true);
        own.store(p.c_last + state, c, true);
        if (has_n) own.store(p.n_last + state, n, true), own.store(p.m_last + state, m, true);
      }
    }
    token += head_units;
    __syncthreads();
  }
}

template <class E, int kResident, int kGroups>
__global__ void __launch_bounds__((kThreads<E, kResident>)) cell_forward(XLSTM_PARAM ForwardParams p) {
  extern __shared__ __align__(16) char lds[];
  if constexpr (kHasKernel<E, kResident>) walk_forward<E, kResident, kGroups>(p, lds);
}

}  // namespace xlstm::gpu::slstm
