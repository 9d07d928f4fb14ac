// SPDX-License-Identifier: Apache-2.0
// sLSTM and LSTM backward on a GPU: the blocks of forward, from the last token to the first.
//
//   dh(t) = dh from outside + R^T draw(t + 1)      P by 4 P, by matrix instructions
//   draw(t), carry(t) = cell's gradient
//
//   wave w        the units that it has in forward: one strip of dh, and the carried gradients in registers
//   LDS           draw of the block's sequences, all four gates, twice; one barrier a token
//   registers     resident: the wave's rows of R^T, 4 P of k: as many as in forward
//
// The gates of a token are read back from what forward kept. Bound as forward is, by the chain through a token; each
// wave reads all of draw from LDS, four times what forward reads.
#pragma once

#include "slstm/gpu/lane_units.h"

namespace xlstm::gpu::slstm {

template <class E, int kResident, int kGroups>
XLSTM_DEVICE void walk_backward(const BackwardParams& p, char* lds) {
  using Maths = FloatMaths<E>;
  constexpr int kStepUnits = kUnit<E>, kGateUnits = kResident / kStepUnits;
  constexpr int kResidentSteps = kResident ? kResident / kStep<E> : 1;
  const CellShape& at = p.at;
  const LaneSequence lane(at);
  const int head = lane.head;
  const int padded = kResident ? kResident : at.padded, row_bytes = lds_row_bytes(kFamily, sizeof(E), kGates * padded);
  const int waves = int(blockDim.x) / kWave;
  const int64_t head_units = int64_t(at.heads) * at.units;
  const bool has_n = at.cell != XLSTM_CELL_LSTM;
  const auto wave_unit = [&](int group) { return (group * waves + wave_id()) * kStep<E>; };

  // The rows of R^T of a wave's units, for the k of one gate.
  const auto rows_of_gate = [&](int unit, int gate) {
    const E* matrix = static_cast<const E*>(p.recurrent) + int64_t(head) * kGates * at.padded * at.padded;
    return MatrixRows<E>{matrix + int64_t(unit) * kGates * at.padded + gate * at.padded, int64_t(kGates) * at.padded};
  };
  StreamOperand<E> resident[kGates][kResidentSteps];
  if constexpr (kResident > 0) {
#pragma unroll
    for (int g = 0; g < kGates; ++g)
#pragma unroll
      for (int u = 0; u < kGateUnits; ++u)
        rows_of_gate(wave_unit(0), g).each_step_of(u, [&](int s, const StreamOperand<E>& operand) {
          resident[g][u * kUnitSteps<E> + s] = operand;
        });
  }

  // The lane's sequence: the unit of the token that is computed next, the last one first. It waits at its last token
  // until the block comes to it.
  const bool has_row = lane.column < at.rows;
  int64_t unit_of_token = lane.token(at, lane.length > 0 ? lane.length - 1 : 0);

  struct Token {  // what a lane loads of a token
    Units<E, E> z, o, slope, dh;
    Units<float, E> decay, c_before, n_before;
  };
  struct Unit {  // what it carries: c and n after the token that is next
    float c, n;
    Carry<Maths> carry;
  };
  Token token[kGroups];
  Unit carried[kGroups][kUnits<E>];
  float dbias[kGroups][kGates][kUnits<E>];
  Strip<E> dh_recurrent[kGroups];
  // is_first: of its sequence. Without initial states c and n before it are read from anywhere, and not used.
  const auto load_token = [&](const LaneUnits<E>& own, int64_t unit, bool is_first) {
    const int64_t kept = lane.among_values(at, kKept, unit);
    const E* gates = static_cast<const E*>(p.gates) + kept;
    const float* memory = p.memory + kept;
    const float *c_before = memory - (kKept - 1) * head_units, *n_before = memory - (kKept - 2) * head_units;
    if (is_first) {
      c_before = p.c_initial ? p.c_initial + lane.state(at) : memory;
      n_before = p.n_initial ? p.n_initial + lane.state(at) : memory;
    }
    return Token{own.load(gates),
                 own.load(gates + head_units),
                 own.load(gates + 2 * head_units),
                 own.load(static_cast<const E*>(p.dh) + unit),
                 own.load(memory),
                 own.load(c_before),
                 own.load(n_before)};
  };

#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if (kGroups > 1 && wave_unit(group) >= padded) continue;
    const LaneUnits<E> own(at, wave_unit(group));
    dh_recurrent[group].zero();
    const float* memory = p.memory + lane.among_values(at, kKept, unit_of_token);
    const auto c = own.load(memory + head_units), n = own.load(memory + 2 * head_units);
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u) {
      carried[group][u] = {c.at(u), n.at(u), {}};
#pragma unroll
      for (int g = 0; g < kGates; ++g) dbias[group][g][u] = 0;
    }
    token[group] = load_token(own, unit_of_token, lane.length <= 1);
  }

  for (int t = LaneSequence::longest(at) - 1; t >= 0; --t) {
    char* buffer = lds + (t & 1) * at.rows * row_bytes;
    const bool is_token = t < lane.length;
    const int64_t before_token = t > 0 && is_token ? unit_of_token - head_units : unit_of_token;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int unit = wave_unit(group);
      if (kGroups > 1 && unit >= padded) continue;
      const LaneUnits<E> own(at, unit);
      if (p.dc || p.dc_last) {  // gradients of the states from outside
        Units<float, E> dc{}, dn{}, dm{};
        const auto add = [&](Units<float, E>& to, const float* of_tokens, const float* of_last) {
          if (of_tokens) to = own.load(of_tokens + unit_of_token);
          if (of_last && t + 1 == lane.length) {
            const auto more = own.load(of_last + lane.state(at));
#pragma unroll
            for (int u = 0; u < kUnits<E>; ++u) to.set(u, to.at(u) + more.at(u));
          }
        };
        add(dc, p.dc, p.dc_last), add(dn, p.dn, p.dn_last), add(dm, p.dm, p.dm_last);
#pragma unroll
        for (int u = 0; u < kUnits<E>; ++u) {
          Unit& of = carried[group][u];
          if (is_token) add_gradients<Maths>(of.carry, of.c, of.n, dc.at(u), dn.at(u), dm.at(u));
        }
      }
      const Token now = token[group];
      token[group] = load_token(own, before_token, t <= 1);
      Units<E, E> draw[kGates];
      Units<float, E> dlf;
      with_cell(at.cell, [&](auto cell) {
#pragma unroll
        for (int u = 0; u < kUnits<E>; ++u) {
          const Unit after = carried[group][u];
          const Kept<Maths> kept{now.z.at(u), now.o.at(u), now.slope.at(u), now.decay.at(u), after.c, after.n};
          const States<Maths> before{t > 0 || p.c_initial ? now.c_before.at(u) : 0.0f,
                                     t > 0 || p.n_initial ? now.n_before.at(u) : 0.0f, 0};
          Unit next{before.c, before.n, after.carry};
          float dlf_of_unit;
          const Gates<Maths> d = backward_token<Maths>(
              cell, kept, before, now.dh.at(u) + dh_recurrent[group].value[register_of(u)], next.carry, dlf_of_unit);
          const float each[kGates] = {d.i, d.f, d.z, d.o};
#pragma unroll
          for (int g = 0; g < kGates; ++g) {
            const float value = is_token ? each[g] : 0.0f;
            draw[g].set(u, value);
            dbias[group][g][u] += value;
          }
          dlf.set(u, dlf_of_unit);
          if (is_token) carried[group][u] = next;
        }
      });
      E* dx = static_cast<E*>(p.dx) + lane.among_values(at, kGates, unit_of_token);
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        if (has_row) own.store_lds(reinterpret_cast<E*>(buffer + lane.column * row_bytes) + g * padded, draw[g]);
        own.store(dx + g * head_units, draw[g], is_token);
      }
      if (t == 0 && p.dm_initial) own.store(p.dm_initial + lane.state(at), dlf, is_token);
    }
    unit_of_token = before_token;
    __syncthreads();

    const SequenceRows<E> rows{buffer, row_bytes, at.rows};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int unit = wave_unit(group);
      if (kGroups > 1 && unit >= padded) continue;
      Strip<E> sum[kGates];  // of each gate: chains of products that do not wait for each other
#pragma unroll
      for (int g = 0; g < kGates; ++g) sum[g].zero();
      if constexpr (kResident > 0) {
#pragma unroll
        for (int g = 0; g < kGates; ++g)
          rows.each_step(g * kGateUnits, kGateUnits,
                         [&](int s, const ChainOperand<E>& operand) { multiply(sum[g], resident[g][s], operand); });
      } else {
        for (int k = 0; k < padded / kStepUnits; ++k)
#pragma unroll
          for (int g = 0; g < kGates; ++g) {
            ChainOperand<E> of_k[kUnitSteps<E>];
            rows.each_step(g * (padded / kStepUnits) + k, 1,
                           [&](int s, const ChainOperand<E>& operand) { of_k[s] = operand; });
            rows_of_gate(unit, g).each_step_of(
                k, [&](int s, const StreamOperand<E>& operand) { multiply(sum[g], operand, of_k[s]); });
          }
      }
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) {
        const int r = register_of(u);
        dh_recurrent[group].value[r] = (sum[0].value[r] + sum[1].value[r]) + (sum[2].value[r] + sum[3].value[r]);
      }
    }
  }

  const bool exists = lane.length > 0;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if (kGroups > 1 && wave_unit(group) >= padded) continue;
    const LaneUnits<E> own(at, wave_unit(group));
    Units<float, E> sums, dh, dc, dn;
#pragma unroll
    for (int g = 0; p.dbias && g < kGates; ++g) {
#pragma unroll
      for (int u = 0; u < kUnits<E>; ++u) sums.set(u, dbias[group][g][u]);
      own.store(p.dbias + ((lane.sequence * kGates + g) * at.heads + head) * at.units, sums, exists);
    }
    if (!p.dh_initial) continue;
#pragma unroll
    for (int u = 0; u < kUnits<E>; ++u) {
      dh.set(u, dh_recurrent[group].value[register_of(u)]);
      dc.set(u, carried[group][u].carry.dc), dn.set(u, carried[group][u].carry.dn);
    }
    const int64_t state = lane.state(at);
    own.store(p.dh_initial + state, dh, exists);
    own.store(p.dc_initial + state, dc, exists);
    if (has_n) own.store(p.dn_initial + state, dn, exists);
  }
}

template <class E, int kResident, int kGroups>
__global__ void __launch_bounds__((kThreads<E, kResident>)) cell_backward(XLSTM_PARAM BackwardParams p) {
  extern __shared__ __align__(16) char lds[];
  if constexpr (kHasKernel<E, kResident>) walk_backward<E, kResident, kGroups>(p, lds);
}

}  // namespace xlstm::gpu::slstm
