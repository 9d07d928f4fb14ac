// SPDX-License-Identifier: Apache-2.0
// The walk (chunk_walk.h) on CDNA, for tensors whose rows are vectors of 16 bytes: a pipeline without branches.
//
// a goes from memory to the registers that multiply it, each wave its rows of the state. x, y and the scores of the
// next chunk are loaded into registers while this chunk is multiplied, and stored in LDS after it. Loads check the
// bounds of tensors, so that a last chunk with fewer tokens takes the same path. Where a path of another layout joins,
// the compiler would wait for all loads under way.
//
// The walk for h makes the normalisers, from n before each chunk: the waves that have the same rows of the state share
// the products of q and n, which meet in LDS, where walks with gradients have a vector.
//
// A stage that has fewer units than the block has threads begins where the one before it ends, so that no wave stores
// them all.
//
// A chunk has two barriers: between its products and what overwrites their operands, and between that and the next
// products. There are two more where LDS holds the outputs only in place of x.
#pragma once

#include "mlstm/chunkwise/chunk_rows_cdna.h"
#include "mlstm/chunkwise/chunk_walk.h"

namespace xlstm::gpu::mlstm {

template <class E, int kRows, int kChunk, class Output>
struct CdnaWalk : Walk<E, kRows, kChunk, Output> {
  using Base = Walk<E, kRows, kChunk, Output>;
  using Operands = typename Base::Operands;
  using ChunkTiles = typename Base::ChunkTiles;
  using StageRows = typename Base::StageRows;
  using StageX = typename Operands::StageX;
  using StageY = typename Operands::StageY;
  using Base::in, Base::lane, Base::x0, Base::state, Base::pending_decay;
  using Base::kTerms, Base::kShape, Base::kY, Base::kThreads, Base::kXStrips, Base::kTStrips, Base::kYStrips;
  static constexpr int kAVectors = sizeof(E) == 2 ? 2 : 1;  // of a stream operand

  using Rows = ChunkRows<E, kChunk>;  // of this block; chunk 0 is the first of the sequence

  // What is under way for the next chunk.
  struct Loads {
    StageX x;
    StageY y;
    typename Operands::StageScores scores;
    typename Operands::StageTransposedScores transposed_scores;
    typename Operands::StageFactors factors;
    typename Operands::StageVector vector;
    float decay;
  };
  using StreamOfA = StreamOperand<E>[kXStrips][kTStrips];

  static constexpr bool kMakesN = kTerms.divides_by_n && makes_normalisers(kRows);
  // A wave has the tokens of one of a's vectors, and of the strips every kNStep-th. Each token has kNParts sums.
  static constexpr int kNStep = kShape.waves_y / kAVectors, kNStrips = (kXStrips + kNStep - 1) / kNStep;
  static constexpr int kNParts = kShape.waves_x * kNStep, kNVectors = kVec16Elements<E> / 4;
  static_assert(!kMakesN || (kTStrips == 1 && kShape.waves_y % kAVectors == 0 && kNParts * kChunk <= 2 * kY));
  struct StageN {  // n, of the features that a lane has
    Vec16 n[kNStrips][kNVectors];
  };

  // The thread that has a stage's first unit.
  static constexpr int threads_of(int units) { return (units + kWave - 1) / kWave * kWave; }
  static constexpr int kFirstOfX = threads_of(StageY::kUnits) % kThreads;
  static constexpr int kFirstOfScores = (kFirstOfX + threads_of(StageX::kUnits)) % kThreads;
  static constexpr int kFirstOfFactors = (kFirstOfScores + threads_of(Operands::StageScores::kUnits)) % kThreads;

  // Where the state leaves registers, addresses in LDS are computed once, ahead of the loop.
  static constexpr bool kAddressesAhead = Base::kStateRegisters <= 32;

  const int tokens;           // of the sequence
  const uint32_t first_slot;  // of its first chunk
  float* l_rows = nullptr;    // where a wave stores l, from its lane's token on: scalar registers are few

  XLSTM_DEVICE CdnaWalk(const WalkParams* params, const Segment& where, int y_tile_index, char* memory)
      : Base(params, where, y_tile_index, memory),
        tokens(int(where.end - where.begin)),
        first_slot(uint32_t(where.slot_of(params->where, 0))) {
    if constexpr (kMakesN) {
      const bool stores = params->l && y_tile_index == 0 && wave_id() == kThreads / kWave - 1;
      l_rows = opaque(stores ? params->l + (where.row * params->where.length + where.begin) + lane_id() : nullptr);
    }
  }

  XLSTM_DEVICE static int this_thread() { return kAddressesAhead ? int(threadIdx.x) : opaque_thread(); }
  XLSTM_DEVICE static int thread_from(int first) { return (this_thread() + kThreads - first) % kThreads; }

  XLSTM_DEVICE void run() {
    this->load_state();
    walk_chunks();
    this->store_state();
  }

  // ---- loads

  XLSTM_DEVICE int valid_of(int chunk) const {
    const int left = tokens - chunk * kChunk;
    return left < kChunk ? left : kChunk;
  }
  XLSTM_DEVICE void fetch_a(StreamOfA& a, const Rows& rows, int n) {
    const int chunk = in.chunk_at(n);
    const MemoryRange from = rows.chunk(chunk, valid_of(chunk));
    const int lane16 = lane_id() % 16, token = sizeof(E) == 2 ? interleaved_row(lane16, 0) : lane16;
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs) {
      const uint32_t offset = rows.offset(token, x0 + xs * kStep<E> + lane_id() / 16 * kVec16Elements<E>);
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
        for (int j = 0; j < kAVectors; ++j)
          a[xs][ts].k[j] = load_vec16(from, offset + (ts * kStep<E> + interleaved_row(0, j)) * rows.stride);
    }
  }
  template <class AnyStage>
  XLSTM_DEVICE static void fetch_rows(AnyStage& stage, const Rows& rows, int chunk, int valid, int first) {
    const int thread = (int(threadIdx.x) + kThreads - first) % kThreads;
    const uint32_t offset = rows.offset(AnyStage::first_token(thread), AnyStage::first_column(thread));
    stage.fetch_range(rows.chunk(chunk, valid), rows.stride, thread < AnyStage::kUnits ? offset : kBeyond);
  }
  template <class AnyStage, class Any>
  XLSTM_DEVICE static void fetch_contiguous(AnyStage& stage, const Any* from, int count, int first) {
    static_assert(AnyStage::kEach == 1);
    const int thread = (int(threadIdx.x) + kThreads - first) % kThreads;
    stage.fetch_range({reinterpret_cast<const char*>(from), count * uint32_t(sizeof(Any))}, 0,
                      thread < AnyStage::kUnits ? thread * 16 : kBeyond);
  }
  XLSTM_DEVICE void fetch_rest(Loads& s, const Rows& x, const Rows& y, int n) {
    const int chunk = in.chunk_at(n), valid = valid_of(chunk);
    const uint64_t slot = first_slot + uint32_t(chunk);
    const WalkParams* p = in.p;
    fetch_contiguous(s.factors, global(p->factors) + slot * (kFactors * kChunk), kFactors * kChunk, kFirstOfFactors);
    s.decay = global(p->decay)[slot];
    fetch_rows(s.x, x, chunk, valid, kFirstOfX);
    fetch_rows(s.y, y, chunk, valid, 0);
    if constexpr (kTerms.gradient_terms)
      s.vector.fetch_clamped(global(p->vector) + slot * uint32_t(p->y.columns) + in.tile * kY, y.columns);
    if constexpr (!kTerms.states_only) {
      const E* scores = global(static_cast<const E*>(p->scores)) + slot * (kChunk * kChunk);
      if constexpr (kTerms.reverse)
        s.transposed_scores.fetch(scores, thread_from(kFirstOfScores));
      else
        fetch_contiguous(s.scores, scores, kChunk * kChunk, kFirstOfScores);
    }
  }
  XLSTM_DEVICE void store_rest(Loads& s, const ChunkTiles& tiles) {
    s.factors.store_fetched({tiles.factors}, thread_from(kFirstOfFactors));
    s.y.store_fetched(tiles.y, this_thread());
    if constexpr (kTerms.gradient_terms) s.vector.store(tiles.vector());
    if constexpr (kTerms.states_only) return;
    if constexpr (kTerms.reverse)
      s.transposed_scores.store(tiles.scores, thread_from(kFirstOfScores));
    else
      s.scores.store_fetched(tiles.scores, thread_from(kFirstOfScores));
  }
  XLSTM_DEVICE void store_x(Loads& s, const ChunkTiles& tiles) { s.x.store_fetched(tiles.x, thread_from(kFirstOfX)); }

  // ---- normalisers

  XLSTM_DEVICE static uint32_t wave_y() { return uint32_t(wave_id()) / kShape.waves_x; }
  XLSTM_DEVICE static uint32_t n_strip(uint32_t i) { return wave_y() / kAVectors + i * kNStep; }
  XLSTM_DEVICE void fetch_n(StageN& s, int n) {
    const uint32_t columns = in.p->a.columns, slot = first_slot + uint32_t(in.chunk_at(n));
    const MemoryRange from{reinterpret_cast<const char*>(global(in.p->vector) + uint64_t(slot) * columns), columns * 4};
#pragma unroll
    for (int i = 0; i < kNStrips; ++i) {
      const int feature = x0 + n_strip(i) * kStep<E> + lane_id() / 16 * kVec16Elements<E>;
      const uint32_t offset = kXStrips % kNStep == 0 || n_strip(i) < kXStrips ? feature * 4 : kBeyond;
#pragma unroll
      for (int v = 0; v < kNVectors; ++v) s.n[i][v] = load_vec16(from, offset + v * 16);
    }
  }
  // Where sum `part` of q n of a token lies.
  XLSTM_DEVICE float* n_sum(uint32_t token, uint32_t part) const {
    const uint32_t at = token * kNParts + part;
    return in.chunk_tiles(0).vector() + at + at / kY * (kShape.factor_floats - kY);
  }
  XLSTM_DEVICE void multiply_n(const StreamOfA& a, const StageN& s) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kNStrips; ++i)
#pragma unroll
      for (int y = 0; y < kShape.waves_y; ++y) {  // registers have constant indices
        const int xs = y / kAVectors + i * kNStep;
        if (xs < kXStrips && wave_y() == uint32_t(y))
#pragma unroll
          for (int e = 0; e < kVec16Elements<E>; ++e)
            sum += element<E>(a[xs][0].k[y % kAVectors], e) * as_float(s.n[i][e / 4].word[e % 4]);
      }
    sum += shuffle_xor(sum, 16);
    sum += shuffle_xor(sum, 32);
    const int lane16 = lane % 16, token = sizeof(E) == 2 ? interleaved_row(lane16, wave_y() % kAVectors) : lane16;
    if (lane < 16) *n_sum(token, uint32_t(wave_id()) % kShape.waves_x * kNStep + n_strip(0)) = sum;
  }
  XLSTM_DEVICE float l_of(const ChunkTiles& tiles, int t) const {
    float qn = 0;
#pragma unroll
    for (int part = 0; part < kNParts; ++part) qn += *n_sum(t, part);
    return tiles.factor(kInter)[t] * qn + tiles.factor(kRowSum)[t];
  }
  XLSTM_DEVICE float inverse_n(const ChunkTiles& tiles, int t, const WalkParams* p) const {
    if (!p->normalize) return 1;
    const float l = fabsf(l_of(tiles, t)), least = tiles.factor(kLeastN)[t];
    return reciprocal((l <= least ? least : l) + p->eps);  // a NaN of l stays
  }
  // By one wave, of the first tile.
  XLSTM_DEVICE void store_l(const ChunkTiles& tiles, int chunk) const {
    if (l_rows && lane < valid_of(chunk)) l_rows[uint32_t(chunk * kChunk)] = l_of(tiles, lane);
  }

  // ---- products

  // out = f (a C)
  XLSTM_DEVICE void multiply_state(Strip<E> (&out)[kTStrips][kYStrips], const StreamOfA& a, const ChunkTiles& tiles) {
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) out[ts][ys].zero();
    const float state_scale = this->operand_scale();
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) {
        const ChainOperand<E> chain = as_chain(state[xs][ys], state_scale);
#pragma unroll
        for (int ts = 0; ts < kTStrips; ++ts) multiply<false, true>(out[ts][ys], a[xs][ts], chain);
      }
    this->scale_by_factors(out, tiles, pending_decay / state_scale);
  }

  // ---- outputs

  struct OutputInputs {  // what the outputs are multiplied with
    StageRows dot_with, y;
  };
  XLSTM_DEVICE void fetch_output_inputs(OutputInputs& s, const Rows& dot_with, const Rows& y, int n) {
    if constexpr (!kTerms.gradient_terms) return;
    const int chunk = in.chunk_at(n), valid = valid_of(chunk);
    fetch_rows(s.dot_with, dot_with, chunk, valid, 0);
    fetch_rows(s.y, y, chunk, valid, 0);
  }
  XLSTM_DEVICE void write_rows(const ChunkTiles& tiles, const OutputInputs& s, const Rows& to, int n) {
    const int chunk = in.chunk_at(n);
    const MemoryRange range = to.chunk(chunk, valid_of(chunk));
    const int thread = this_thread();
    const int64_t slots = int64_t(uint64_t(first_slot + uint32_t(chunk)) * kChunk);
    float* dots = kTerms.gradient_terms ? this->dots_of(slots) : nullptr;
    if constexpr (kMakesN) store_l(tiles, chunk);
    [[maybe_unused]] const WalkParams* p = reload_params(in.p);
#pragma unroll
    for (int i = 0; i < StageRows::kEach; ++i) {
      constexpr int kRowUnits = StageRows::kRowUnits;
      const int t = thread / kRowUnits + i * (kThreads / kRowUnits), column = thread % kRowUnits * kVec16Elements<E>;
      if (StageRows::kUnits % kThreads != 0 && t >= kChunk) break;  // the same for all lanes of a wave
      float value[kVec16Elements<E>];
      this->add_parts(tiles, t, column, value);
      if constexpr (kTerms.divides_by_n)
        this->scale(value, kMakesN ? inverse_n(tiles, t, p) : tiles.factor(kInverseN)[t]);
      if constexpr (kTerms.gradient_terms)
        this->add_gradient_terms(tiles, t, column, value, s.dot_with.fetched[i], s.y.fetched[i], dots);
      store_vec16(range, to.offset(t, column), __builtin_bit_cast(Vec16, pack_elements<E>(value)));
    }
  }

  // ---- the mainloop

  XLSTM_DEVICE void walk_chunks() {
    const int64_t begin = in.segment.begin;
    const Rows a(in.slice_rows(in.p->a), begin), x(in.slice_rows(in.p->x), begin), y(in.tile_rows(in.p->y), begin),
        dot_with(in.tile_rows(in.p->dot_with), begin), out_rows(in.tile_rows(in.p->out), begin);
    const int chunks = in.segment.last_chunk - in.segment.first_chunk;
    Loads next;
    StreamOfA stream;
    StageN n_values;
    fetch_rest(next, x, y, 0);
    if constexpr (!kTerms.states_only) fetch_a(stream, a, 0);
    if constexpr (kMakesN) fetch_n(n_values, 0);
    float decay = uniform(next.decay);
    store_rest(next, in.chunk_tiles(0));
    store_x(next, in.chunk_tiles(0));
    __syncthreads();
    for (int n = 0; n < chunks; ++n) {
      lane = this_thread() % kWave;
      const int then = n + 1 < chunks ? n + 1 : n;  // a load again costs less than a branch
      if constexpr (kTerms.gradient_terms && !kTerms.reverse)
        if (n + 1 == chunks) this->store_before_last();
      const ChunkTiles tiles = in.chunk_tiles(n);
      OutputInputs output_inputs;
      fetch_output_inputs(output_inputs, dot_with, y, n);
      fetch_rest(next, x, y, then);
      sched_barrier();                   // the loads are issued ahead of the products
      Strip<E> out[kTStrips][kYStrips];  // unused where the walk has no outputs
      if constexpr (!kTerms.states_only) {
        multiply_state(out, stream, tiles);
        if constexpr (kMakesN) {
          multiply_n(stream, n_values);
          fetch_n(n_values, then);
        }
        fetch_a(stream, a, then);
      }
      this->add_chunk(out, tiles, decay);
      sched_barrier();
      const ChunkTiles then_tiles = in.chunk_tiles(n + 1);
      if constexpr (kTerms.states_only) {
        __syncthreads();  // all waves have read x and y
        store_rest(next, then_tiles);
        store_x(next, then_tiles);
      } else {
        if (!kShape.out_apart) __syncthreads();  // all waves have read x
        this->store_parts(out, tiles);
        __syncthreads();
        store_rest(next, then_tiles);
        if (kShape.out_apart) store_x(next, then_tiles);
        write_rows(tiles, output_inputs, out_rows, n);
        if (!kShape.out_apart) {
          __syncthreads();  // all waves have read the outputs
          store_x(next, then_tiles);
        }
      }
      decay = uniform(next.decay);
      __syncthreads();
    }
  }
};

template <class E, int kRows, int kChunk, class Output>
__global__ __launch_bounds__(
    walk_shape(kFamily, sizeof(E), kRows, kChunk).threads,
    walk_shape(kFamily, sizeof(E), kRows, kChunk).blocks) void chunk_walk_cdna(const WalkParams params) {
  if constexpr (kFamily == Family::cdna && has_walk(kFamily, sizeof(E), kRows, kChunk))
    walk_segment<CdnaWalk<E, kRows, kChunk, Output>>(reload_params(kernel_params(params)));
}

}  // namespace xlstm::gpu::mlstm
