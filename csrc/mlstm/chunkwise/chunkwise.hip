// SPDX-License-Identifier: Apache-2.0
// The chunkwise mLSTM on a GPU: the order of the kernels, and their workspace.
//   forward    gates - scores - states of segments, n before each chunk - their scan, normalisers - walk; or, where the
//              walk makes scores, n and normalisers itself, gates - gate terms - walk
//   backward   gates - scores - states of segments, n, dn before each chunk - their scan - walks dq, dk, dv - flows,
//              gates
// A walk without segments has the vectors and the normalisers in launches of their own. The Hopper schedule makes the
// states between segments with each walk. The parallel schedule of CDNA has no walks (parallel.hip).
#include <algorithm>
#include <bit>

#include "mlstm/chunkwise/call_params.h"
#include "mlstm/chunkwise/chunkwise_call.h"
#include "mlstm/chunkwise/gate_gradients.h"
#include "mlstm/chunkwise/gate_gradients_scan.h"
#include "mlstm/chunkwise/launch.h"
#include "mlstm/chunkwise/normalisers.h"
#include "mlstm/chunkwise/scores.h"
#include "mlstm/chunkwise/scores_cdna.h"

namespace xlstm::gpu::mlstm {
namespace {

// Calls f(E) with the element type of q.
template <class F>
auto with_element(const xlstm_mlstm& in, F&& f) {
  return in.q.dtype == XLSTM_FLOAT32 ? f(float{}) : in.q.dtype == XLSTM_BFLOAT16 ? f(BFloat16{}) : f(Float16{});
}

template <class E, bool kBackward>
void launch_scores(const ScoreParams& p, const Chip& chip, Stream stream) {
  if constexpr (kHasHopperKernels && __is_same(E, BFloat16))
    if (p.where.chunk == kHopperChunk) return launch_scores_hopper<kBackward>(p, stream);
  if constexpr (!kAsyncCopies)
    if (chip.family == Family::cdna && rows_are_vectors(p, kBackward))
      return launch("scores", chunk_scores_cdna<E, strip_step(Family::cdna, sizeof(E)), kBackward>,
                    {chunks(p.where), kScoresCdnaThreads, 0}, stream, p);
  const Grid grid{chunks(p.where), scores_threads(chip.family),
                  scores_lds_bytes(chip.family, sizeof(E), p.where.chunk, kBackward)};
  if (p.where.chunk == 32)
    launch("scores", chunk_scores<E, 32, kBackward>, grid, stream, p);
  else
    launch("scores", chunk_scores<E, 16, kBackward>, grid, stream, p);
}

// n, and dn where there is one, before each chunk.
void launch_vectors(const VectorParams& n, const VectorParams* dn, Stream stream) {
  const VectorsParams p{{n, dn ? *dn : VectorParams{}}, uint32_t(vector_blocks(n))};
  launch("vectors", scan_normaliser_states<0>, {vector_blocks(n) + (dn ? vector_blocks(*dn) : 0), kVectorThreads, 0},
         stream, p);
}

// Whether the states between segments have launches of their own. (The Hopper schedule makes them with each walk.)
bool has_states_before(const WalkPlan& plan) { return plan.schedule == Schedule::common && plan.segments > 1; }

// Workspace of the gates, in forward and in backward.
struct CommonMemory : GateMemory {
  void* scores;
  float *factors, *decay, *chunk_n;

  // scores_in_memory: false where no kernel writes scores to memory, nor n before each chunk.
  CommonMemory(Arena& arena, const xlstm_mlstm& in, int chunk, bool joined, bool scores_in_memory = true)
      : GateMemory(arena, in, chunk, joined),
        scores(arena.take<char>(scores_in_memory ? padded_tokens(where) * chunk * element_bytes(in.q) : 0)),
        factors(arena.take<float>(kFactors * padded_tokens(where))),
        decay(arena.take<float>(chunks(where))),
        chunk_n(arena.take<float>(scores_in_memory ? chunks(where) * in.dqk : 0)) {}
};

ScoreParams score_params(const CommonMemory& memory, const xlstm_mlstm& in) {
  ScoreParams p = gate_score_params(memory, in);
  p.scores = memory.scores;
  p.factors = memory.factors;
  p.decay = memory.decay;
  p.chunk_n = memory.chunk_n;
  return p;
}

WalkParams walk_params(const CommonMemory& memory, const WalkPlan& plan, const Tokens& a, const Tokens& x,
                       const Tokens& y, const Tokens& out, float* segment_states) {
  WalkParams p{};
  p.where = memory.where;
  p.a = a;
  p.x = x;
  p.y = y;
  p.out = out;
  p.factors = memory.factors;
  p.decay = memory.decay;
  p.segment_states = segment_states;
  p.segments = plan.segments;
  p.segment_chunks = plan.segment_chunks;
  p.tiles = plan.tiles;
  p.slices = plan.slices;
  return p;
}

// ---- forward

struct ForwardMemory : CommonMemory {
  float *row_sums, *gate_terms, *segment_states, *segment_n;

  ForwardMemory(Arena& arena, const xlstm_mlstm& in, const ForwardPlan& plan)
      : CommonMemory(arena, in, plan.walk.chunk, plan.joined, !plan.walk.makes_scores),
        row_sums(arena.take<float>(plan.walk.makes_scores ? 0 : padded_tokens(where))),
        gate_terms(arena.take<float>(plan.walk.makes_scores ? chunks(where) * kGateTermFloats : 0)),
        segment_states(arena.take<float>(segment_state_floats(plan.walk, states(where)))),
        segment_n(arena.take<float>(plan.walk.makes_scores ? states(where) * (plan.walk.segments - 1) * plan.walk.rows
                                                           : 0)) {}
};

template <class E>
void run_forward(const xlstm_mlstm_forward& call, const ForwardPlan& plan, const ForwardMemory& memory, Stream stream) {
  const xlstm_mlstm& in = call.in;
  const Chip& chip = plan.chip;
  launch_gates(memory, in, call.m_last, stream);
  ScoreParams scores = score_params(memory, in);
  scores.m_last = floats(call.m_last);
  const ScoringParams scoring{memory.gate_terms, floats(in.n_initial), floats(call.n_last), floats(call.l),
                              memory.segment_n,  float(scores.scale),  float(in.eps),       normalised(in)};
  WalkParams p = walk_params(memory, plan.walk, scores.q, scores.k, tokens(in.v, in.dhv, in),
                             tokens(call.h, in.dhv, in), memory.segment_states);
  p.scores = memory.scores;
  p.state_in = floats(in.c_initial);
  p.state_out = floats(call.c_last);
  p.state_x = in.dhv;
  p.state_y = 1;
  if (plan.walk.makes_scores) {
    if constexpr (kHasHopperKernels) launch_gate_terms_hopper(scores, memory.gate_terms, stream);
  } else {
    const bool walk_divides = chip.family == Family::cdna && plan.walk.slices == 1 &&
                              makes_normalisers(walk_class(plan.walk)) && rows_are_vectors(p, output::h::kTerms);
    if (walk_divides) {
      p.vector = memory.chunk_n;
      p.l = floats(call.l);
      p.eps = float(in.eps);
      p.normalize = normalised(in);
    } else {
      scores.row_sums = memory.row_sums;
    }
    launch_scores<E, false>(scores, chip, stream);
    const VectorParams n{memory.where,        memory.chunk_n, memory.decay, floats(in.n_initial),
                         floats(call.n_last), int(in.dqk),    false};
    const NormaliserParams normaliser{memory.where,   scores.q,       memory.row_sums, memory.chunk_n, memory.m,
                                      floats(call.l), memory.factors, in.eps,          normalised(in)};
    if (has_states_before(plan.walk)) {
      launch_before_walks<E>(plan.walk, chip, {&p, nullptr, &n, nullptr, walk_divides ? nullptr : &normaliser}, stream);
    } else {
      launch_vectors(n, nullptr, stream);
      if (!walk_divides)
        launch("normalisers", normalisers<E>, {chunks(memory.where), kNormaliserThreads, 0}, stream, normaliser);
    }
  }
  if constexpr (kHasHopperKernels && __is_same(E, BFloat16))
    if (plan.walk.schedule == Schedule::hopper)
      return launch_walk_hopper<output::h>(plan.walk, p, plan.walk.makes_scores ? &scoring : nullptr, nullptr, nullptr,
                                           stream);
  launch_forward_walk<E>(plan.walk, chip, p, stream);
}

// ---- backward

struct BackwardMemory : CommonMemory {
  void* d_scores;
  TokenFlows flows;
  FlowSums sums;
  float *chunk_dn, *q_dots, *k_dots, *state_dots, *states_dq, *states_dk, *states_dv, *state_before_last;
  double* border_flows;

  BackwardMemory(Arena& arena, const xlstm_mlstm& in, const BackwardPlan& plan, bool has_dc_last)
      : CommonMemory(arena, in, plan.dq.chunk, plan.joined) {
    const int64_t all_tokens = padded_tokens(where), all_chunks = chunks(where);
    d_scores = arena.take<char>(all_tokens * where.chunk * element_bytes(in.q));
    for (float** x : {&flows.diagonal_flow, &flows.state_share, &flows.across, &flows.leaving, &flows.walk_reaching,
                      &flows.walk_leaving})
      *x = arena.take<float>(all_tokens);
    for (double** x : {&flows.dm, &sums.local, &sums.noise_from, &sums.noise_before})
      *x = arena.take<double>(all_tokens);
    for (double** x :
         {&sums.reaching, &sums.entering, &sums.reaching_noise, &sums.entering_noise, &sums.crossing, &sums.dm_before,
          &sums.dm_after, &sums.noise_since_known, &sums.correction, &sums.correction_after})
      *x = arena.take<double>(all_chunks);
    sums.stops = arena.take<int>(all_chunks);
    chunk_dn = arena.take<float>(all_chunks * in.dqk);
    q_dots = arena.take<float>(plan.dq.tiles * all_tokens);
    k_dots = arena.take<float>(plan.dk.tiles * all_tokens);
    state_dots = arena.take<float>(plan.dq.tiles * plan.dq.slices * states(where));
    // The states between segments stay for the flows across their borders, which operands of two bytes need.
    states_dq = arena.take<float>(segment_state_floats(plan.dq, states(where)));
    states_dk = arena.take<float>(segment_state_floats(plan.dk, states(where)));
    states_dv = plan.dv.reads_transposed ? states_dk : arena.take<float>(segment_state_floats(plan.dv, states(where)));
    const int64_t borders = element_bytes(in.q) == 2 ? states(where) * (plan.dq.segments - 1) : 0;
    border_flows = borders ? arena.take<double>(borders * plan.dq.tiles * kBorderParts) : nullptr;
    const int64_t last = states(where) * plan.dq.tiles * plan.dq.slices * plan.dq.rows * plan.dq.y_tile;
    state_before_last = arena.take<float>(has_dc_last ? last : 0);
  }
};

ScoreParams backward_score_params(const xlstm_mlstm_backward& call, const BackwardMemory& memory) {
  const xlstm_mlstm& in = call.in;
  ScoreParams p = score_params(memory, in);
  p.v = tokens(in.v, in.dhv, in);
  p.h = tokens(call.h, in.dhv, in);
  p.dh = tokens(call.dh, in.dhv, in);
  p.l_saved = floats(call.l);
  p.d_scores = memory.d_scores;
  p.chunk_dn = memory.chunk_dn;
  p.flows = memory.flows;
  return p;
}

WalkParams dq_walk_params(const xlstm_mlstm_backward& call, const WalkPlan& plan, const BackwardMemory& memory,
                          const ScoreParams& s) {
  const Tokens dq = tokens(call.dq, call.in.dqk, call.in);
  WalkParams p = walk_params(memory, plan, s.dh, s.v, s.k, dq, memory.states_dq);
  p.scores = memory.d_scores;
  p.vector = memory.chunk_n;
  p.dot_with = s.q;
  p.dots = memory.q_dots;
  p.state_in = floats(call.in.c_initial);
  p.state_x = 1;
  p.state_y = call.in.dhv;
  p.state_before_last = call.dc_last ? memory.state_before_last : nullptr;
  return p;
}

WalkParams dk_walk_params(const xlstm_mlstm_backward& call, const WalkPlan& plan, const BackwardMemory& memory,
                          const ScoreParams& s) {
  const Tokens dk = tokens(call.dk, call.in.dqk, call.in);
  WalkParams p = walk_params(memory, plan, s.v, s.dh, s.q, dk, memory.states_dk);
  p.scores = memory.d_scores;
  p.vector = memory.chunk_dn;
  p.dot_with = s.k;
  p.dots = memory.k_dots;
  p.state_in = floats(call.dc_last);
  p.state_x = 1;
  p.state_y = call.in.dhv;
  return p;
}

// How the walk for dk, whose states between segments the walk for dv reads, lays them out.
StateTiles state_tiles(const WalkPlan& dk, const Chip& chip, int bytes) {
  const WalkShape shape = walk_shape(chip.family, bytes, walk_class(dk), dk.chunk);
  const auto bits = [](int power_of_two) { return int(std::bit_width(unsigned(power_of_two))) - 1; };
  return {bits(shape.x_per_wave), bits(shape.y_tile), shape.waves_x, shape.threads, dk.tiles};
}

WalkParams dv_walk_params(const xlstm_mlstm_backward& call, const BackwardPlan& plans, const BackwardMemory& memory,
                          const ScoreParams& s) {
  const WalkPlan& plan = plans.dv;
  const Tokens dv = tokens(call.dv, call.in.dhv, call.in);
  WalkParams p = walk_params(memory, plan, s.k, s.q, s.dh, dv, memory.states_dv);
  p.scores = memory.scores;
  p.state_in = floats(call.dc_last);
  p.state_out = floats(call.dc_initial);
  p.state_x = call.in.dhv;
  p.state_y = 1;
  if (plan.reads_transposed) p.transposed = state_tiles(plans.dk, plans.chip, element_bytes(call.in.q));
  return p;
}

BorderParams border_params(const WalkPlan& plan, const BackwardMemory& memory, int dqk) {
  return {memory.where,
          memory.states_dq,
          memory.states_dk,
          memory.chunk_n,
          memory.chunk_dn,
          memory.border_flows,
          plan.segments,
          plan.segment_chunks,
          plan.tiles,
          plan.rows * plan.y_tile,
          dqk};
}

FlowParams flow_params(const xlstm_mlstm_backward& call, const BackwardPlan& plan, const BackwardMemory& memory,
                       const ScoreParams& s) {
  const xlstm_mlstm& in = call.in;
  FlowParams p{};
  p.where = memory.where;
  p.i = s.i;
  p.f = s.f;
  p.di = tokens(call.di, 1, in);
  p.df = tokens(call.df, 1, in);
  p.m = memory.m;
  p.factors = memory.factors;
  p.decay = memory.decay;
  p.flows = memory.flows;
  p.sums = memory.sums;
  p.q_dots = memory.q_dots;
  p.k_dots = memory.k_dots;
  p.q_tiles = plan.dq.tiles;
  p.k_tiles = plan.dk.tiles;
  p.state_tiles = plan.dq.tiles * plan.dq.slices;
  p.state_dots = call.dc_last ? memory.state_dots : nullptr;
  p.border_flows = memory.border_flows;
  p.segments = plan.dq.segments;
  p.segment_chunks = plan.dq.segment_chunks;
  p.dn_last = floats(call.dn_last);
  p.chunk_n = memory.chunk_n;
  p.dm_last = floats(call.dm_last);
  p.dc_initial = floats(call.dc_initial);
  p.dn_initial = floats(call.dn_initial);
  p.c_initial = floats(in.c_initial);
  p.n_initial = floats(in.n_initial);
  p.dm_initial = floats(call.dm_initial);
  p.dqk = in.dqk;
  p.dhv = in.dhv;
  p.sigmoid = in.gate == XLSTM_GATE_SIGMOID;
  p.normalizer_grad = in.normalizer_grad;
  p.has_initial = in.c_initial;
  return p;
}

void launch_gate_gradients(const FlowParams& p, const BorderParams& borders, Stream stream) {
  const int64_t flow_blocks = ceil_div(chunks(p.where), kFlowsPerBlock);
  const bool two_tokens_per_lane = p.where.chunk > kTokenLanes;
  const int64_t border_blocks =
      p.border_flows ? states(p.where) * (borders.segments - 1) * borders.tiles * kBorderParts : 0;
  launch("flows of chunks", two_tokens_per_lane ? chunk_gate_flows<2> : chunk_gate_flows<1>,
         {flow_blocks + border_blocks, kFlowThreads, 0}, stream, ChunkFlowParams{p, borders, uint32_t(flow_blocks)});
  launch("flows between chunks", scan_gate_flows<0>, {states(p.where), kFlowScanThreads, 0}, stream, p);
  launch("gate gradients", two_tokens_per_lane ? gate_gradients<2> : gate_gradients<1>, {flow_blocks, kFlowThreads, 0},
         stream, p);
}

template <class E>
void run_walks(const BackwardPlan& plan, const BackwardWalks& walks, Stream stream) {
  if constexpr (kHasHopperKernels && __is_same(E, BFloat16))
    if (plan.dq.schedule == Schedule::hopper) {
      launch_walk_hopper<output::dq>(plan.dq, walks.dq, nullptr, walks.dc_last, walks.dots, stream);
      launch_walk_hopper<output::dk>(plan.dk, walks.dk, nullptr, nullptr, nullptr, stream);
      return launch_walk_hopper<output::dv>(plan.dv, walks.dv, nullptr, nullptr, nullptr, stream);
    }
  launch_backward_walks<E>(plan, walks, stream);
}

template <class E>
void run_backward(const xlstm_mlstm_backward& call, const BackwardPlan& plan, const BackwardMemory& memory,
                  Stream stream) {
  const xlstm_mlstm& in = call.in;
  const Chip& chip = plan.chip;
  const int dqk = int(in.dqk);
  const float* dn_last = in.normalizer_grad ? floats(call.dn_last) : nullptr;  // else n counts as a constant, as N does
  launch_gates(memory, in, nullptr, stream);
  const ScoreParams scores = backward_score_params(call, memory);
  launch_scores<E, true>(scores, chip, stream);
  const VectorParams n{memory.where, memory.chunk_n, memory.decay, floats(in.n_initial), nullptr, dqk, false};
  const VectorParams dn{memory.where, memory.chunk_dn, memory.decay, dn_last, floats(call.dn_initial), dqk, true};
  const WalkParams dq = dq_walk_params(call, plan.dq, memory, scores),
                   dk = dk_walk_params(call, plan.dk, memory, scores);
  const WalkParams dv = dv_walk_params(call, plan, memory, scores);
  if (has_states_before(plan.dq))
    launch_before_walks<E>(plan.dq, chip, {&dq, &dk, &n, &dn, nullptr}, stream);
  else
    launch_vectors(n, &dn, stream);
  if (has_states_before(plan.dv) && !plan.dv.reads_transposed)
    launch_before_walks<E>(plan.dv, chip, {nullptr, &dv, nullptr, nullptr, nullptr}, stream);
  run_walks<E>(plan, {dq, dk, dv, floats(call.dc_last), memory.state_dots}, stream);
  launch_gate_gradients(flow_params(call, plan, memory, scores), border_params(plan.dq, memory, dqk), stream);
}

}  // namespace

size_t chunkwise_workspace(const xlstm_mlstm_forward& call, const ForwardPlan& plan) {
  if (is_parallel(plan.walk)) return parallel_workspace(call);
  Arena counter(nullptr);
  ForwardMemory(counter, call.in, plan);
  return counter.used();
}
void chunkwise(const xlstm_mlstm_forward& call, const ForwardPlan& plan, void* workspace, void* stream) {
  if (is_parallel(plan.walk)) return run_parallel(call, workspace, static_cast<Stream>(stream));
  Arena arena(workspace);
  const ForwardMemory memory(arena, call.in, plan);
  with_element(call.in, [&](auto e) { run_forward<decltype(e)>(call, plan, memory, static_cast<Stream>(stream)); });
}

size_t backward_workspace(const xlstm_mlstm_backward& call, const BackwardPlan& plan) {
  if (is_parallel(plan.dq)) return parallel_workspace(call);
  Arena counter(nullptr);
  BackwardMemory(counter, call.in, plan, call.dc_last);
  return counter.used();
}
void backward(const xlstm_mlstm_backward& call, const BackwardPlan& plan, void* workspace, void* stream) {
  if (is_parallel(plan.dq)) return run_parallel(call, workspace, static_cast<Stream>(stream));
  Arena arena(workspace);
  const BackwardMemory memory(arena, call.in, plan, call.dc_last);
  with_element(call.in, [&](auto e) { run_backward<decltype(e)>(call, plan, memory, static_cast<Stream>(stream)); });
}

}  // namespace xlstm::gpu::mlstm
