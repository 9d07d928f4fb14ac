// SPDX-License-Identifier: Apache-2.0
// The launches of the parallel schedule (parallel_scores.h), and their workspace.
#include "mlstm/chunkwise/call_params.h"
#include "mlstm/chunkwise/parallel_gates.h"
#include "mlstm/chunkwise/parallel_products.h"
#include "mlstm/chunkwise/parallel_scores.h"

namespace xlstm::gpu::mlstm {
namespace {

using E = BFloat16;

struct ParallelMemory : GateMemory {
  void* scores;

  ParallelMemory(Arena& arena, const xlstm_mlstm& in)
      : GateMemory(arena, in, kParallelChunk, false), scores(take_matrix(arena)) {}
  // Of all pairs of chunks, the upper half unused: a head has few chunks.
  void* take_matrix(Arena& arena) const {
    return arena.take<E>(chunks(where) * where.slots * (kParallelChunk * kParallelChunk));
  }
};

struct ParallelForwardMemory : ParallelMemory {
  float* row_sums;

  ParallelForwardMemory(Arena& arena, const xlstm_mlstm& in)
      : ParallelMemory(arena, in), row_sums(arena.take<float>(padded_tokens(where) * score_groups(where.slots))) {}
};

struct ParallelBackwardMemory : ParallelMemory {
  void *d_scores, *transposed_scores;
  TokenFlows inside;
  PairFlows between;

  ParallelBackwardMemory(Arena& arena, const xlstm_mlstm& in)
      : ParallelMemory(arena, in),
        d_scores(take_matrix(arena)),
        transposed_scores(take_matrix(arena)),
        inside{},
        between{arena.take<float>(padded_tokens(where) * score_groups(where.slots)),
                arena.take<float>(padded_tokens(where) * where.slots), arena.take<float>(chunks(where) * where.slots)} {
    inside.dm = arena.take<double>(padded_tokens(where));
    for (float** x : {&inside.diagonal_flow, &inside.across, &inside.leaving})
      *x = arena.take<float>(padded_tokens(where));
  }
};

template <bool kBackward>
void launch_parallel_scores(const ParallelScoreParams& p, Stream stream) {
  if constexpr (!kAsyncCopies)
    launch(
        "scores", parallel_scores<E, kBackward>,
        {chunks(p.base.where) * score_groups(p.base.where.slots), kScoreThreads, parallel_score_lds_bytes(kBackward)},
        stream, p);
}

void launch_parallel_products(ParallelProductParams p, Stream stream) {
  int64_t blocks = 0;
  for (ParallelProduct& x : p.products) {
    x.tiles = int(ceil_div(x.out.columns, kProductColumns));
    blocks += x.blocks = uint32_t(p.where.rows * x.tiles * ceil_div(p.where.slots, 2));
  }
  if constexpr (!kAsyncCopies)
    launch("products", parallel_products<E>, {blocks, kProductThreads, kProductLds}, stream, p);
}

void launch_parallel_gates(const ParallelGateParams& p, Stream stream) {
  if constexpr (!kAsyncCopies)
    launch("gate gradients", parallel_gate_gradients<0>, {p.where.rows, int(p.where.slots) * kTokenLanes, 0}, stream,
           p);
}

}  // namespace

size_t parallel_workspace(const xlstm_mlstm_forward& call) {
  Arena counter(nullptr);
  ParallelForwardMemory(counter, call.in);
  return counter.used();
}
void run_parallel(const xlstm_mlstm_forward& call, void* workspace, Stream stream) {
  const xlstm_mlstm& in = call.in;
  Arena arena(workspace);
  const ParallelForwardMemory memory(arena, in);
  launch_gates(memory, in, nullptr, stream);
  ParallelScoreParams scores{};
  scores.base = gate_score_params(memory, in);
  scores.base.scores = memory.scores;
  scores.row_sums = memory.row_sums;
  launch_parallel_scores<false>(scores, stream);
  launch_parallel_products({memory.where,
                            memory.row_sums,
                            memory.m,
                            floats(call.l),
                            in.eps,
                            normalised(in),
                            {{tokens(in.v, in.dhv, in), tokens(call.h, in.dhv, in), memory.scores}}},
                           stream);
}

size_t parallel_workspace(const xlstm_mlstm_backward& call) {
  Arena counter(nullptr);
  ParallelBackwardMemory(counter, call.in);
  return counter.used();
}
void run_parallel(const xlstm_mlstm_backward& call, void* workspace, Stream stream) {
  const xlstm_mlstm& in = call.in;
  Arena arena(workspace);
  const ParallelBackwardMemory memory(arena, in);
  launch_gates(memory, in, nullptr, stream);
  ParallelScoreParams scores{};
  scores.base = gate_score_params(memory, in);
  ScoreParams& p = scores.base;
  p.scores = memory.scores;
  p.d_scores = memory.d_scores;
  p.v = tokens(in.v, in.dhv, in);
  p.h = tokens(call.h, in.dhv, in);
  p.dh = tokens(call.dh, in.dhv, in);
  p.l_saved = floats(call.l);
  p.flows = memory.inside;
  scores.transposed_scores = memory.transposed_scores;
  scores.flows = memory.between;
  launch_parallel_scores<true>(scores, stream);
  ParallelProductParams products{};
  products.where = memory.where;
  products.products[0] = {p.k, tokens(call.dq, in.dqk, in), memory.d_scores};
  products.products[1] = {p.q, tokens(call.dk, in.dqk, in), memory.transposed_scores, true};
  products.products[2] = {p.dh, tokens(call.dv, in.dhv, in), memory.scores, true};
  launch_parallel_products(products, stream);
  launch_parallel_gates({memory.where, p.i, p.f, tokens(call.di, 1, in), tokens(call.df, 1, in), memory.m,
                         memory.inside, memory.between, p.sigmoid, p.normalizer_grad},
                        stream);
}

}  // namespace xlstm::gpu::mlstm
