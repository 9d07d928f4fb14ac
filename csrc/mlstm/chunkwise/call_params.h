// SPDX-License-Identifier: Apache-2.0
// What the launches of a call share, whichever schedule it takes: the params of its tensors, the gates' workspace, and
// the launch that makes the gates' sums.
#pragma once

#include "base/arena.h"
#include "base/tensors.h"
#include "mlstm/chunkwise/launch.h"
#include "mlstm/chunkwise/stabilisers.h"
#include "mlstm/gpu/tensor_layout.h"

namespace xlstm::gpu::mlstm {

inline Tokens tokens(const xlstm_tensor& x, int64_t columns, const xlstm_mlstm& in) {
  const bool aligned = rows_aligned16(x, columns, in);
  return {x.data, {x.stride[0], x.stride[1], x.stride[2]}, int(columns), int(x.dtype), aligned};
}

// joined: of a packed row that is walked as one sequence.
inline Sequences sequences(const xlstm_mlstm& in, int chunk, bool joined) {
  Sequences s{};
  s.cu_seqlens = joined ? nullptr : in.cu_seqlens;
  s.length = in.length;
  s.heads = in.heads;
  s.sequences = s.cu_seqlens ? in.sequences : in.batch;
  s.rows = in.batch * in.heads;
  s.chunk = chunk;
  s.slots = s.cu_seqlens ? in.length / chunk + in.sequences : ceil_div(in.length, chunk);
  return s;
}

inline int64_t states(const Sequences& s) { return s.sequences * s.heads; }
inline int64_t chunks(const Sequences& s) { return s.rows * s.slots; }
inline int64_t padded_tokens(const Sequences& s) { return chunks(s) * s.chunk; }

inline const float* floats(const void* p) { return static_cast<const float*>(p); }
inline float* floats(void* p) { return static_cast<float*>(p); }

inline bool normalised(const xlstm_mlstm& in) { return in.gate == XLSTM_GATE_EXP || in.normalize; }

struct GateMemory {
  Sequences where;
  JoinedRow joined_row;
  StabiliserSums stabiliser_sums;
  double* m;

  GateMemory(Arena& arena, const xlstm_mlstm& in, int chunk, bool joined)
      : where(sequences(in, chunk, joined)),
        joined_row{},
        stabiliser_sums{arena.take<double>(padded_tokens(where)), arena.take<double>(padded_tokens(where)),
                        arena.take<double>(padded_tokens(where)), arena.take<double>(chunks(where)),
                        arena.take<double>(chunks(where)),        arena.take<double>(chunks(where))},
        m(arena.take<double>(padded_tokens(where))) {
    if (!joined) return;
    joined_row = {in.cu_seqlens, in.sequences, arena.take<int>(in.length)};
    where.sequence_begin = joined_row.sequence_begin;
  }
};

inline void launch_gates(const GateMemory& memory, const xlstm_mlstm& in, void* m_last, Stream stream) {
  const GateParams p{memory.where,   tokens(in.i, 1, in),    tokens(in.f, 1, in),           floats(in.m_initial),
                     floats(m_last), memory.stabiliser_sums, in.gate == XLSTM_GATE_SIGMOID, memory.joined_row};
  launch("gates", memory.where.chunk > kTokenLanes ? chunk_gate_sums<2> : chunk_gate_sums<1>,
         {ceil_div(chunks(memory.where), kChunksPerBlock), kGateThreads, 0}, stream, p);
}

// What scores read.
inline ScoreParams gate_score_params(const GateMemory& memory, const xlstm_mlstm& in) {
  ScoreParams p{};
  p.where = memory.where;
  p.q = tokens(in.q, in.dqk, in);
  p.k = tokens(in.k, in.dqk, in);
  p.i = tokens(in.i, 1, in);
  p.f = tokens(in.f, 1, in);
  p.sums = memory.stabiliser_sums;
  p.m_initial = floats(in.m_initial);
  p.m = memory.m;
  p.sigmoid = in.gate == XLSTM_GATE_SIGMOID;
  p.normalize = normalised(in);
  p.normalizer_grad = in.normalizer_grad;
  p.eps = in.eps;
  p.scale = 1 / sqrt(double(in.dqk));
  return p;
}

}  // namespace xlstm::gpu::mlstm
