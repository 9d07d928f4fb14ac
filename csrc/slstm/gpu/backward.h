// SPDX-License-Identifier: Apache-2.0
// sLSTM and LSTM backward on a GPU: the blocks of forward (forward.h), from the last token to the first.
//
//   dh(t) = dh from outside + R^T draw(t + 1)      P by 4 P, by matrix instructions
//   draw(t), carry(t) = cell's gradient
//
//   wave w        the units that it has in forward: one strip of dh
//   LDS           draw of the block's sequences, all four gates, twice; one barrier a token
//
// The gates of a token are read back from what forward kept. Resident: the wave's rows of R^T, as many registers as in
// forward, and the carried gradients stay in registers, and a token's values are loaded while the products before it
// run. Streamed: both are in memory. Bound as forward is, by the chain through a token; each wave reads all of draw
// from LDS, four times what forward reads.
#pragma once

#include "slstm/gpu/lane_units.h"

namespace xlstm::gpu::slstm {

template <class E>
struct TokenValues {  // what forward kept of a token, c and n before it, and its dh
  Units<E, E> z, o, slope, dh;
  Units<float, E> decay, c_before, n_before;
};
template <class E>
struct CarriedUnit {  // c and n after the token
  float c, n;
  Carry<FloatMaths<E>> carry;
  float dbias[kGates];
};

template <class E, int kResident>
XLSTM_DEVICE void walk_backward(const BackwardParams& p, char* lds) {
  using Maths = FloatMaths<E>;
  constexpr int kStepUnits = kUnit<E>, kGateUnits = kResident / kStepUnits;
  const CellShape& at = p.at;
  const LaneSequence lane(at);
  const int padded = kResident ? kResident : at.padded, row_bytes = lds_row_bytes(kFamily, sizeof(E), kGates * padded);
  const int64_t head_units = int64_t(at.heads) * at.units, state = lane.state(at);
  const int64_t all_states = at.sequences * head_units;
  const bool has_n = at.cell != XLSTM_CELL_LSTM, has_row = lane.column < at.rows, exists = lane.length > 0;
  const auto buffer_of = [&](int t) { return lds + (t & 1) * at.rows * row_bytes; };

  // The rows of R^T of a wave's units, for the k of one gate.
  const auto rows_of_gate = [&](int unit, int gate) {
    const E* matrix = static_cast<const E*>(p.recurrent) + int64_t(lane.head) * kGates * at.padded * at.padded;
    return MatrixRows<E>{matrix + int64_t(unit) * kGates * at.padded + gate * at.padded, int64_t(kGates) * at.padded};
  };
  // The unit of the token that is computed next, the last one first. A sequence waits at its last token until the block
  // comes to it.
  int64_t token = lane.token(at, exists ? lane.length - 1 : 0);

  // is_first: of its sequence. Without initial states c and n before it are read from anywhere, and not used.
  const auto load_token = [&](const LaneUnits<E>& own, int64_t unit, bool is_first) {
    const int64_t kept = lane.among_values(at, kKept, unit);
    const E* gates = static_cast<const E*>(p.gates) + kept;
    const float* memory = p.memory + kept;
    const float *c_before = memory - (kKept - 1) * head_units, *n_before = memory - (kKept - 2) * head_units;
    if (is_first) {
      c_before = p.c_initial ? p.c_initial + state : memory;
      n_before = p.n_initial ? p.n_initial + state : memory;
    }
    return TokenValues<E>{own.load(gates),
                          own.load(gates + head_units),
                          own.load(gates + 2 * head_units),
                          own.load(static_cast<const E*>(p.dh) + unit),
                          own.load(memory),
                          own.load(c_before),
                          own.load(n_before)};
  };
  // c and n after the lane's token, and nothing carried.
  const auto load_after = [&](const LaneUnits<E>& own, CarriedUnit<E>(&to)[kUnits<E>]) {
    const float* memory = p.memory + lane.among_values(at, kKept, token);
    const auto c = own.load(memory + head_units), n = own.load(memory + 2 * head_units);
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u) to[u] = {c.at(u), n.at(u), {}, {}};
  };
  // Gradients of the states of token t from outside.
  const auto add_outside = [&](const LaneUnits<E>& own, CarriedUnit<E>(&to)[kUnits<E>], int t) {
    if (!p.dc && !p.dc_last) return;
    Units<float, E> dc{}, dn{}, dm{};
    const auto add = [&](Units<float, E>& sum, const float* of_tokens, const float* of_last) {
      if (of_tokens) sum = own.load(of_tokens + token);
      if (of_last && t + 1 == lane.length) {
        const auto more = own.load(of_last + state);
#pragma unroll
        for (int u = 0; u < kUnits<E>; ++u) sum.set(u, sum.at(u) + more.at(u));
      }
    };
    add(dc, p.dc, p.dc_last), add(dn, p.dn, p.dn_last), add(dm, p.dm, p.dm_last);
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u)
      if (t < lane.length) add_gradients<Maths>(to[u].carry, to[u].c, to[u].n, dc.at(u), dn.at(u), dm.at(u));
  };
  const auto dbias_of = [&](int g) {
    return p.dbias + ((lane.sequence * kGates + g) * at.heads + lane.head) * at.units;
  };
  // The gradients of token t's gates, to LDS and memory.
  const auto finish = [&](const LaneUnits<E>& own, const TokenValues<E>& now, CarriedUnit<E>(&carried)[kUnits<E>],
                          const Strip<E>& dh_recurrent, int t) {
    const bool is_token = t < lane.length;
    Units<E, E> draw[kGates];
    with_cell(at.cell, [&](auto cell) {
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) {
        CarriedUnit<E>& of = carried[u];
        const Kept<Maths> kept{now.z.at(u), now.o.at(u), now.slope.at(u), now.decay.at(u), of.c, of.n};
        const States<Maths> before{t > 0 || p.c_initial ? now.c_before.at(u) : 0.0f,
                                   t > 0 || p.n_initial ? now.n_before.at(u) : 0.0f, 0};
        Carry<Maths> carry = of.carry;
        float dlf_of_unit;
        const Gates<Maths> d = backward_token<Maths>(
            cell, kept, before, now.dh.at(u) + dh_recurrent.value[register_of(u)], carry, dlf_of_unit);
        const float each[kGates] = {d.i, d.f, d.z, d.o};
#pragma unroll
        for (int g = 0; g < kGates; ++g) {
          const float value = is_token ? each[g] : 0.0f;
          draw[g].set(u, value);
          if constexpr (kResident > 0) of.dbias[g] += value;
        }
        if (t == 0) carry.du = dlf_of_unit;  // the gradient of the first m
        if (is_token) of.c = before.c, of.n = before.n, of.carry = carry;
        if constexpr (kResident == 0) load_barrier();  // registers of one unit after the other
      }
    });
    E* dx = static_cast<E*>(p.dx) + lane.among_values(at, kGates, token);
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      if (has_row) own.store_lds(reinterpret_cast<E*>(buffer_of(t) + lane.column * row_bytes) + g * padded, draw[g]);
      own.store(dx + g * head_units, draw[g], is_token);
      if constexpr (kResident == 0)
        if (p.dbias) {  // as rounded, in memory: registers are few here
          Units<float, E> sums{};
          if (t + 1 < lane.length) sums = own.load(dbias_of(g));
#pragma unroll
          for (int u = 0; u < kUnits<E>; ++u) sums.set(u, sums.at(u) + draw[g].at(u));
          own.store(dbias_of(g), sums, is_token);
        }
    }
  };
  // Results of a sequence, after its first token.
  const auto store_results = [&](const LaneUnits<E>& own, const CarriedUnit<E>(&carried)[kUnits<E>],
                                 const Strip<E>& dh_recurrent) {
    Units<float, E> sums, dh, dc, dn, dm;
#pragma unroll
    for (int g = 0; kResident > 0 && p.dbias && g < kGates; ++g) {
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) sums.set(u, carried[u].dbias[g]);
      own.store(dbias_of(g), sums, exists);
    }
    if (!p.dh_initial) return;
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u) {
      dh.set(u, dh_recurrent.value[register_of(u)]);
      dc.set(u, carried[u].carry.dc), dn.set(u, carried[u].carry.dn), dm.set(u, carried[u].carry.du);
    }
    own.store(p.dh_initial + state, dh, exists);
    own.store(p.dc_initial + state, dc, exists);
    if (has_n) own.store(p.dn_initial + state, dn, exists), own.store(p.dm_initial + state, dm, exists);
  };
  // The products of each gate are chains that do not wait for each other.
  const auto add_gates = [](const Strip<E>(&sum)[kGates], Strip<E>& dh) {
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u) {
      const int r = register_of(u);
      dh.value[r] = (sum[0].value[r] + sum[1].value[r]) + (sum[2].value[r] + sum[3].value[r]);
    }
  };

  const int longest = LaneSequence::longest(at);
  if constexpr (kResident > 0) {
    const int unit = wave_id() * kStep<E>;
    StreamOperand<E> matrix[kGates][kResident / kStep<E>];
#pragma unroll
    for (int g = 0; g < kGates; ++g)
#pragma unroll
      for (int k = 0; k < kGateUnits; ++k)
        rows_of_gate(unit, g).each_step_of(
            k, [&](int s, const StreamOperand<E>& operand) { matrix[g][k * kUnitSteps<E> + s] = operand; });
    const LaneUnits<E> own(at, unit);
    Strip<E> dh_recurrent;
    dh_recurrent.zero();
    CarriedUnit<E> carried[kUnits<E>];
    load_after(own, carried);
    TokenValues<E> next = load_token(own, token, lane.length <= 1);  // a lane that waits has its last token
    for (int t = longest - 1; t >= 0; --t) {
      const int64_t before = t > 0 && t < lane.length ? token - head_units : token;
      const TokenValues<E> now = next;
      next = load_token(own, before, t <= 1 || lane.length <= 1);
      add_outside(own, carried, t);
      finish(own, now, carried, dh_recurrent, t);
      token = before;
      __syncthreads();
      const SequenceRows<E> rows{buffer_of(t), row_bytes, at.rows};
      Strip<E> sum[kGates];
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        sum[g].zero();
        rows.each_step(g * kGateUnits, kGateUnits,
                       [&](int s, const ChainOperand<E>& operand) { multiply(sum[g], matrix[g][s], operand); });
      }
      add_gates(sum, dh_recurrent);
    }
    store_results(own, carried, dh_recurrent);
  } else {
    // The wave's units of R^T times draw(t): k runs over all gates, which lie behind each other on both sides.
    const auto product = [&](int unit, int t) {
      const SequenceRows<E> rows{buffer_of(t), row_bytes, at.rows};
      const MatrixRows<E> matrix = rows_of_gate(unit, 0);
      Strip<E> dh;
      dh.zero();
#pragma unroll 1
      for (int k = 0; k < kGates * padded / kStepUnits; ++k) {
        ChainOperand<E> of_k[kUnitSteps<E>];
        rows.each_step(k, 1, [&](int s, const ChainOperand<E>& operand) { of_k[s] = operand; });
        matrix.each_step_of(k,
                            [&](int s, const StreamOperand<E>& operand) { multiply_in_parts(dh, operand, of_k[s]); });
      }
      return dh;
    };
    // What is carried lies in memory: dc, dn and du.
    const auto carried_at = [&](int value) { return p.carried + value * all_states + state; };
    const auto load_carried = [&](const LaneUnits<E>& own, CarriedUnit<E>(&to)[kUnits<E>]) {
      const auto dc = own.load(carried_at(0)), dn = own.load(carried_at(1)), du = own.load(carried_at(2));
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) to[u].carry = {dc.at(u), dn.at(u), du.at(u)};
    };
    const auto store_carried = [&](const LaneUnits<E>& own, const CarriedUnit<E>(&from)[kUnits<E>]) {
      Units<float, E> dc, dn, du;
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u)
        dc.set(u, from[u].carry.dc), dn.set(u, from[u].carry.dn), du.set(u, from[u].carry.du);
      own.store(carried_at(0), dc, exists), own.store(carried_at(1), dn, exists), own.store(carried_at(2), du, exists);
    };
    for (int t = longest - 1; t >= -1; --t) {
      const bool is_token = t < lane.length;
#pragma unroll 1
      for (int unit = wave_id() * kStep<E>; unit < padded; unit += int(blockDim.x) / kWave * kStep<E>) {
        const LaneUnits<E> own(at, unit);
        Strip<E> dh_recurrent;
        dh_recurrent.zero();
        if (t + 1 < longest) dh_recurrent = product(unit, t + 1);
        CarriedUnit<E> carried[kUnits<E>];
        load_after(own, carried);
        if (t + 1 < lane.length) load_carried(own, carried);
        if (t < 0) {
          store_results(own, carried, dh_recurrent);
          continue;
        }
        add_outside(own, carried, t);
        load_barrier();  // registers of one part after the other
        finish(own, load_token(own, token, t == 0 || lane.length <= 1), carried, dh_recurrent, t);
        if (is_token) store_carried(own, carried);
      }
      if (t > 0 && is_token) token -= head_units;
      __syncthreads();
    }
  }
}

template <class E, int kResident>
__global__ __launch_bounds__((kThreads<E, kResident, true>)) void cell_backward(XLSTM_PARAM BackwardParams p) {
  extern __shared__ __align__(16) char lds[];
  if constexpr (kHasKernel<E, kResident>) walk_backward<E, kResident>(p, lds);
}

}  // namespace xlstm::gpu::slstm
