// SPDX-License-Identifier: Apache-2.0
// Attention forward (prefill, training) on a GPU, for CDNA, RDNA and NVIDIA.
//
//   S^T = K Q^T     m' = max(m, max_j S)     P^T = 2^(S^T - m')     O^T = O^T 2^(m - m') + V^T P^T
//   and the row sums l like O: an online softmax.
//
// The query heads of one key head are one matrix of rows (attention/layout.h), so GQA and MQA share K and V. Every
// product is transposed: K is the stream operand, along the features, and Q the chain operand. The strips of S have
// keys down and rows across. The strips of weights are the chain operand of V^T P^T in the registers where they are.
// The maximum and the sum of a row are therefore those of a column.
//
// Who owns what: a block has `rows` rows of one key head and walks tiles of keys. Each wave has 16 or 32 of the rows,
// with O in accumulators and Q in registers (in LDS where registers do not suffice). K and V have an LDS buffer each;
// one is loaded while the other is multiplied: through registers on AMD, by cp.async on NVIDIA. The block skips tiles
// that none of its rows sees, a wave skips the products of tiles that none of its rows sees, and a wave applies masks
// only to tiles that are not fully visible to it.
//
// O and l are rescaled only when a maximum has grown by more than 2^8 since they were rescaled last: weights are at
// most 256, and their rounding is relative.
//
// Floor: 2 (dqk + dv) flops for each row and key. In addition a score costs one exp, a fused multiply-add, a maximum, a
// sum and half a packing. On sm_90a a tile takes 3.3 instructions per mma with 128 features, 4.8 with 64.
#pragma once

#include "attention/forward/forward_params.h"
#include "attention/forward/plain_tiles.h"
#include "attention/gpu/epilogue.h"
#include "attention/gpu/score_rules.h"

namespace xlstm::gpu::attention {

template <class E, class Key, int kDqk, int kDv, bool kHasScoreMod>
struct Forward {
  static constexpr ForwardShape kShape = forward_shape(kFamily, sizeof(E), {kDqk, kDv}, kHasScoreMod);
  static constexpr int kThreads = kShape.threads, kKeys = kShape.keys, kStrips = kShape.strips;
  static constexpr int kKeyStrips = kKeys / kStep<E>, kDepths = kDqk / kStep<E>, kFeatureStrips = kDv / kStep<E>;
  static constexpr int kParts = kDqk / kKeyPart, kPartDepths = kKeyPart / kStep<E>;
  static constexpr int kWaveRows = kStrips * kStripColumns, n = kVec16Elements<E>;
  // So many next operands are read from LDS while this one is multiplied: two where no other wave of the SIMD works
  // while one waits (CDNA), none where an operand takes too many registers.
  static constexpr int kOperandsAhead = sizeof(StreamOperand<E>) > 32                              ? 0
                                        : kShape.plain_walk && !kHasScoreMod && kShape.blocks == 1 ? 2
                                                                                                   : 1;
  static constexpr int kStreams = kOperandsAhead + 1;
  // The next operand's reads are issued ahead of the products, if registers suffice.
  static constexpr bool kReadsFirst = !(kHasScoreMod && kDv > 128);
  // Values are prefetched where registers suffice: those of the widest kernel hold no bytes beside its modified scores.
  static constexpr bool kValuesAhead = kShape.ahead && !(kIsFloat8<Key> && kHasScoreMod && kDv > 128);

  using Tokens = HeadTokens<E, Key>;
  using StageK = KeyStage<E, Key, kKeys, kKeyPart, false, kThreads, kShape.ahead>;
  using StageV = KeyStage<E, Key, kKeys, kDv, true, kThreads, kValuesAhead>;
  using TileQ = Tile<E, kShape.rows, kKeyPart>;

  const ForwardParams* p;
  int sequence, key_head, split, rows, keys;
  int block_first, first_row;  // first row of the block, and of the wave
  char* lds;
  VisibleKeys visible;  // of the wave's rows
  RowInfo<kStrips> row_info;
  ChainOperand<E> q[kShape.q_in_lds ? 1 : kDepths][kStrips];
  Strip<E> out[kFeatureStrips][kStrips];
  Columns row_max[kStrips], row_sum[kStrips];

  XLSTM_DEVICE Forward(const ForwardParams* params, const ForwardBlock& block, char* memory)
      : p(params),
        sequence(int(block.at.index)),
        key_head(int(block.key_head)),
        split(int(block.coord.split)),
        rows(int(block.at.rows())),
        keys(int(block.at.keys)),
        block_first(int(block.first)),
        first_row(block_first + wave_id() * kWaveRows),
        lds(memory),
        visible(visible_to(block.at, first_row, kWaveRows)),
        row_info(block.at, key_head, first_row) {}

  // Rows beyond the last one repeat it.
  XLSTM_DEVICE int clamp_row(int row) const { return row < rows ? row : rows - 1; }
  XLSTM_DEVICE VisibleKeys visible_to(const AttentionLayout& at, int first, int count) const {
    return {at, clamp_row(first), clamp_row(first + count - 1) - clamp_row(first) + 1};
  }

  XLSTM_DEVICE TileQ tile_q(int part) const { return {reinterpret_cast<E*>(lds) + part * (kShape.rows * kKeyPart)}; }
  XLSTM_DEVICE typename StageK::Storage tile_k(int part) const {
    return {reinterpret_cast<E*>(lds + kShape.q_bytes) + part * (kKeys * kKeyPart)};
  }
  XLSTM_DEVICE typename StageV::Storage tile_v() const {
    return {reinterpret_cast<E*>(lds + kShape.q_bytes + (kShape.kv_share_buffer ? 0 : kShape.k_bytes))};
  }

  XLSTM_DEVICE ScoreRules score_rules(const AttentionLayout& at) const {
    ScoreRules rules(at.in);
    if constexpr (kIsFloat8<Key>) rules.scale_keys(key_descale<Key>(at.in.k_descale, at, key_head));
    return rules;
  }

  XLSTM_DEVICE void load_q(const AttentionLayout& at) {
    const uint32_t group = uint32_t(at.group());
    const auto q_row = [&](int row) {
      const QueryRow<uint32_t> of = query_row(uint32_t(key_head), uint32_t(clamp_row(row)), group);
      return static_cast<const E*>(at.in.q.data) + at.query(at.in.q, of);
    };
    const auto q_vec16 = [&](int row, int column) {
      return TokenRows<E>{q_row(row), 0, int(at.in.dqk), p->q_aligned16}.vec16(0, column, true);
    };
    if constexpr (kShape.q_bytes > 0) {
      constexpr int kRowVec16s = kDqk / n;
#pragma unroll 4  // loads in flight together
      for (int unit = threadIdx.x; unit < kShape.rows * kRowVec16s; unit += kThreads) {
        const int row = unit / kRowVec16s, column = unit % kRowVec16s * n;
        E* to = tile_q(column / kKeyPart).at(row, column % kKeyPart);
        if constexpr (kAsyncCopies)
          if (p->q_aligned16) {
            copy_row_vec16(to, q_row(block_first + row), column, int(at.in.dqk));
            continue;
          }
        *reinterpret_cast<Vec16*>(to) = q_vec16(block_first + row, column);
      }
    }
    if constexpr (!kShape.q_in_lds) {
      if constexpr (kAsyncCopies) {
        arrive_free([] {});
#pragma unroll
        for (int d = 0; d < kDepths; ++d)
#pragma unroll
          for (int c = 0; c < kStrips; ++c) q[d][c] = q_operand(d, c);
      } else {
#pragma unroll
        for (int c = 0; c < kStrips; ++c)
#pragma unroll
          for (int d = 0; d < kDepths; ++d)
            q[d][c] = chain_of<E>([&](int column, int k) { return q_vec16(first_row + c * kStripColumns + column, k); },
                                  d * kStep<E>);
      }
    }
  }
  XLSTM_DEVICE ChainOperand<E> q_operand(int depth, int c, int lane = lane_id()) const {
    const int row = wave_id() * kWaveRows + c * kStripColumns;
    return load_chain_along<E>(tile_q(depth / kPartDepths), row, depth % kPartDepths * kStep<E>, lane);
  }

  XLSTM_DEVICE StreamOperand<E> key_operand(int step, int lane) const {
    const int depth = step / kKeyStrips, k = step % kKeyStrips;
    return load_stream<true, E>(tile_k(depth / kPartDepths), k * kStep<E>, depth % kPartDepths * kStep<E>, lane);
  }
  XLSTM_DEVICE StreamOperand<E> value_operand(int step, int lane) const {
    return load_stream<false, E>(tile_v(), step % kFeatureStrips * kStep<E>, step / kFeatureStrips * kStep<E>, lane);
  }

  using Scores = Strip<E>[kKeyStrips][kStrips];

  // Where the compiler would keep addresses from tile to tile and registers are too few, each tile recomputes them.
  XLSTM_DEVICE static int lane_of_tile() { return kHasScoreMod || kShape.q_in_lds ? opaque_lane() : lane_id(); }

  static constexpr int kKeySteps = kDepths * kKeyStrips, kValueSteps = kKeyStrips * kFeatureStrips;
  struct Nothing {
    XLSTM_DEVICE void operator()(int) const {}
  };

  // s = K Q^T; between(step) is issued after the products of each step.
  template <class Between = Nothing>
  XLSTM_DEVICE void multiply_keys(Scores& s, Between&& between = {}) {
#pragma unroll
    for (int k = 0; k < kKeyStrips; ++k)
#pragma unroll
      for (int c = 0; c < kStrips; ++c) s[k][c].zero();
    const int lane = lane_of_tile();
    StreamOperand<E> stream[kStreams];  // of this step and of the next ones
#pragma unroll
    for (int step = 0; step < kOperandsAhead; ++step) stream[step] = key_operand(step, lane);
#pragma unroll
    for (int depth = 0; depth < kDepths; ++depth) {
      if constexpr (kShape.q_in_lds)
#pragma unroll
        for (int c = 0; c < kStrips; ++c) q[0][c] = q_operand(depth, c, lane);
#pragma unroll
      for (int k = 0; k < kKeyStrips; ++k) {
        const int step = depth * kKeyStrips + k;
        sched_barrier();
        if (const int next = step + kOperandsAhead; next < kKeySteps) stream[next % kStreams] = key_operand(next, lane);
        if constexpr (kReadsFirst) sched_barrier();
#pragma unroll
        for (int c = 0; c < kStrips; ++c)
          multiply<false, !kShape.q_in_lds>(s[k][c], stream[step % kStreams], q[kShape.q_in_lds ? 0 : depth][c]);
        between(step);
      }
    }
  }

  // f(strip, which column of strips, its first key)
  template <class F>
  XLSTM_DEVICE static void each_strip(Scores& s, int first, F&& f) {
#pragma unroll
    for (int c = 0; c < kStrips; ++c)
#pragma unroll
      for (int k = 0; k < kKeyStrips; ++k) f(s[k][c], c, first + k * kStep<E>);
  }

  // Online softmax: turns products into weights, and updates the row maxima, the row sums and O.
  XLSTM_DEVICE void online_softmax(Scores& s, const ScoreRules& rules, int first) {
    const bool masked = !visible.fully(first, kKeys);
    const float unit = kHasScoreMod ? 1.0f : rules.scale;
    bool grew = false;
    if constexpr (kHasScoreMod)
      each_strip(s, first, [&](Strip<E>& strip, int c, int key) { rules.apply_score_mod(strip, row_info, c, key); });
    if (masked) each_strip(s, first, [&](Strip<E>& strip, int c, int key) { row_info.mask(strip, c, key); });
    // Whether a maximum grew is a vote of the lanes, each with the scores that it holds: lanes exchange maxima only
    // then.
    Columns lane_max[kStrips];
#pragma unroll
    for (int c = 0; c < kStrips; ++c) {
      lane_max[c] = Columns::all(-__builtin_inff());
#pragma unroll
      for (int k = 0; k < kKeyStrips; ++k) lane_max[c].take_in(s[k][c], [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
      for (int j = 0; j < Columns::kEach; ++j) {
        lane_max[c].value[j] *= unit;
        grew = grew || lane_max[c].value[j] > row_max[c].value[j] + kRescaleThreshold;
      }
    }
    if (any_lane(grew))
#pragma unroll
      for (int c = 0; c < kStrips; ++c) {
        lane_max[c].over_rows([](float a, float b) { return fmaxf(a, b); });
        const Columns rescale = update_row_max(row_max[c], row_sum[c], lane_max[c]);
#pragma unroll
        for (int v = 0; v < kFeatureStrips; ++v) scale_columns(out[v][c], rescale);
      }
#pragma unroll
    for (int c = 0; c < kStrips; ++c)
#pragma unroll
      for (int k = 0; k < kKeyStrips; ++k) {
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; ++r)
          s[k][c].value[r] = exp2_fast(__builtin_fmaf(s[k][c].value[r], unit, -row_max[c].value[Columns::of(r)]));
        row_sum[c].add(s[k][c]);
        if constexpr (kHasScoreMod)
          if (rules.drops)
            rules.each_draw<E>(row_info, c, first + k * kStep<E>,
                               [&](int r, bool keeps) { s[k][c].value[r] = keeps ? s[k][c].value[r] : 0.0f; });
      }
  }

  // O^T += V^T P^T
  template <class Between = Nothing>
  XLSTM_DEVICE void multiply_values(Scores& s, Between&& between = {}) {
    const int lane = lane_of_tile();
    StreamOperand<E> stream[kStreams];
#pragma unroll
    for (int step = 0; step < kOperandsAhead; ++step) stream[step] = value_operand(step, lane);
#pragma unroll
    for (int k = 0; k < kKeyStrips; ++k) {
      ChainOperand<E> weights[kStrips];
#pragma unroll
      for (int c = 0; c < kStrips; ++c) weights[c] = as_chain(s[k][c], 1.0f);
#pragma unroll
      for (int v = 0; v < kFeatureStrips; ++v) {
        const int step = k * kFeatureStrips + v;
        sched_barrier();
        if (const int next = step + kOperandsAhead; next < kValueSteps)
          stream[next % kStreams] = value_operand(next, lane);
        if constexpr (kReadsFirst) sched_barrier();
#pragma unroll
        for (int c = 0; c < kStrips; ++c) multiply<false, true>(out[v][c], stream[step % kStreams], weights[c]);
        between(step);
      }
    }
  }

  // The row in column j of strip c.
  XLSTM_DEVICE int row_of(int c, int j) const { return first_row + c * kStripColumns + Columns::position(j); }
  XLSTM_DEVICE bool inside(int c, int j) const { return row_of(c, j) < rows; }

  XLSTM_DEVICE void store() {
    p = reload_params(p);
    const xlstm_attention& in = p->call.in;
    const AttentionLayout at(in, sequence);
    const ForwardEpilogue<E, ForwardParams> epilogue{*p, at, split};
    const uint32_t group = uint32_t(at.group());
    const float keep_scale = kHasScoreMod && in.dropout_p > 0 ? float(dropout_scale(in.dropout_p)) : 1.0f;
    const float out_scale = keep_scale * key_descale<Key>(in.v_descale, at, key_head);
#pragma unroll
    for (int c = 0; c < kStrips; ++c) {
      row_sum[c].over_rows([](float a, float b) { return a + b; });
      Columns factor;
      int64_t offset[Columns::kEach];
#pragma unroll
      for (int j = 0; j < Columns::kEach; ++j) {
        const auto [head, i] = query_row(uint32_t(key_head), uint32_t(clamp_row(row_of(c, j))), group);
        const auto row = epilogue.finish(row_max[c].value[j], row_sum[c].value[j], head, out_scale);
        const auto to = epilogue.offset(head, i);
        factor.value[j] = row.factor;
        offset[j] = to.out;
        if (inside(c, j) && (lane_id() & row_lanes(kFamily)) == 0)
          epilogue.store_lse(to, row.lse);  // one lane per column
      }
#pragma unroll
      for (int v = 0; v < kFeatureStrips; ++v) {
        sched_barrier();
        scale_columns(out[v][c], factor);
        each_run(out[v][c], [&](int first, int j, const float(&value)[kRun<E>]) {
          if (inside(c, j)) epilogue.store(offset[j], v * kStep<E> + first, int(in.dv), value, in.dv % kRun<E> == 0);
        });
      }
    }
  }

  // Tiles that some row of the block sees, of this split's part of the keys.
  struct Tiles {
    int from, to;

    XLSTM_DEVICE Tiles(const Forward& f, const AttentionLayout& at) {
      const VisibleKeys all = f.visible_to(at, f.block_first, kShape.rows);
      const int begin = all.begin / kKeys, count = all.end > all.begin ? (all.end + kKeys - 1) / kKeys - begin : 0;
      const int splits = int(f.p->splits);
      from = begin, to = begin + count;
      if (splits == 1) return;
      from = begin + int(int64_t(count) * f.split / splits), to = begin + int(int64_t(count) * (f.split + 1) / splits);
    }
  };
  XLSTM_DEVICE int valid(int first) const { return keys - first < kKeys ? keys - first : kKeys; }
  XLSTM_DEVICE void fetch_k(StageK (&stage)[kParts], const Tokens& from, int first) const {
    StageK::fetch_parts(stage, [&](int part) { return tile_k(part); }, from, first, valid(first));
  }
  XLSTM_DEVICE void store_k(StageK (&stage)[kParts], const Tokens& from, int first) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      stage[part].store(tile_k(part), from, first, valid(first), part * kKeyPart);
  }
  // Makes the next tile visible in an LDS buffer that K and V may share.
  template <class Store>
  XLSTM_DEVICE static void arrive_in_turn(Store&& store) {
    if constexpr (kShape.kv_share_buffer)
      arrive(store);
    else
      arrive_free(store);
  }

  // Tiles [from, to) that suit PlainTiles (AMD). The next tile's loads are spread over a product's steps, and what has
  // arrived goes into LDS in the middle of a product, once no wave reads that buffer any more: keys come with the
  // scores and go with O, values the other way round. The loop has no branches for other layouts, where the compiler
  // would wait for loads as soon as it has issued them.
  XLSTM_DEVICE void walk_plain(const Tokens& k, const Tokens& v, const ScoreRules& rules, int from, int to) {
    using Plain = PlainTiles<E, StageK, StageV, kParts, kKeys>;
    Plain plain(k, v, from);
    const auto store_keys = [&] { plain.store_keys([&](int part) { return tile_k(part); }); };
    const auto between_keys = [&](int step) {
      spread<Plain::kVectorsK, kKeySteps>(step, [&](int j) { plain.fetch_key(j); });
      if (step == kKeySteps * 3 / 4 - 1) plain.store_values(tile_v());
    };
    bool is_last = false;
    const auto between_values = [&](int step) {
      spread<Plain::kVectorsV, kValueSteps>(step, [&](int j) { plain.fetch_value(j); });
      if (step == kValueSteps * 3 / 4 - 1 && !is_last) store_keys();
    };
#pragma unroll
    for (int j = 0; j < Plain::kVectorsK; ++j) plain.fetch_key(j);
#pragma unroll
    for (int j = 0; j < Plain::kVectorsV; ++j) plain.fetch_value(j);
    store_keys();
    __syncthreads();
#pragma unroll 1
    for (int tile = from; tile < to; ++tile) {
      const int first = tile * kKeys;
      // Where O lies in accumulation registers, no path goes around its products: the compiler would move it to others.
      const bool wave_sees = kShape.blocks == 1 || visible.any(first, kKeys);
      is_last = tile + 1 == to;
      if (!is_last) plain.advance();  // the last tile is loaded twice: a condition would wait for the loads
      Scores s;
      set_wave_priority<1>();  // products first: the SIMD's other wave computes weights meanwhile
      if (wave_sees)
        multiply_keys(s, between_keys);
      else
        each_step<kKeySteps>(between_keys);
      set_wave_priority<0>();
      __syncthreads();
      if (wave_sees) online_softmax(s, rules, first);
      set_wave_priority<1>();
      if (wave_sees)
        multiply_values(s, between_values);
      else
        each_step<kValueSteps>(between_values);
      set_wave_priority<0>();
      __syncthreads();
    }
  }
  // Spreads f(0) to f(kCount - 1) over the first half of a product's steps.
  template <int kCount, int kSteps, class F>
  XLSTM_DEVICE static void spread(int step, F&& f) {
    constexpr int kEach = ceil_div(2 * kCount, kSteps);
#pragma unroll
    for (int j = step * kEach; j < kCount && j < (step + 1) * kEach; ++j) f(j);
  }
  template <int kSteps, class F>
  XLSTM_DEVICE static void each_step(F&& f) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) f(step);
  }

  // Tiles [from, to), of any layout.
  XLSTM_DEVICE void walk(Tokens& k, Tokens& v, const ScoreRules& rules, StageK (&stage_k)[kParts], int from, int to) {
    StageV stage_v[1];
    if (!kAsyncCopies) fetch_k(stage_k, k, from * kKeys);
    for (int tile = from; tile < to; ++tile) {
      p = reload_params(p);
      k.in = v.in = &p->call.in, k.x = &p->call.in.k, v.x = &p->call.in.v;
      const int first = tile * kKeys;
      // Uniform in a wave; any_lane() tells NVIDIA's compiler so.
      const bool wave_sees = kAsyncCopies ? any_lane(visible.any(first, kKeys)) : visible.any(first, kKeys);
      const auto store_values = [&] { stage_v[0].store(tile_v(), v, first, valid(first), 0); };
      const auto fetch_next = [&] {
        if (tile + 1 < to) fetch_k(stage_k, k, first + kKeys);
      };
      arrive_in_turn([&] { store_k(stage_k, k, first); });
      StageV::fetch_parts(stage_v, [&](int) { return tile_v(); }, v, first, valid(first));
      // All waves run the same path, because a barrier belongs to one point of the code. NVIDIA's compiler would keep
      // scores that are defined on one path only in registers from tile to tile; so both paths define them.
      Scores s;
      if (wave_sees)
        multiply_keys(s);
      else if (kAsyncCopies)
        each_strip(s, first, [](Strip<E>& strip, int, int) { strip.zero_on_this_path(); });
      arrive_in_turn(store_values);
      // On AMD, registers for the next keys are free once scores have become weights.
      if (kAsyncCopies) fetch_next();
      if (wave_sees) online_softmax(s, rules, first);
      if (!kAsyncCopies) fetch_next();
      if (wave_sees) multiply_values(s);
    }
  }

  // walk() behind walk_plain(), which has no scalar registers for what is needed here only: it is computed again.
  XLSTM_DEVICE void walk_others(int from, int to) {
    p = reload_params(p);
    const AttentionLayout at(p->call.in, sequence);
    Tokens k(at, at.in.k, key_head, at.in.dqk, p->k_aligned16), v(at, at.in.v, key_head, at.in.dv, p->v_aligned16);
    StageK stage_k[kParts];
    walk(k, v, score_rules(at), stage_k, from, to);
  }

  XLSTM_DEVICE void run(const AttentionLayout& at) {
    Tiles tiles(*this, at);
    Tokens k(at, at.in.k, key_head, at.in.dqk, p->k_aligned16), v(at, at.in.v, key_head, at.in.dv, p->v_aligned16);
    StageK stage_k[kParts];
    if (kAsyncCopies && tiles.from < tiles.to)
      fetch_k(stage_k, k, tiles.from * kKeys);  // AMD: later, the loads take registers
    load_q(at);
#pragma unroll
    for (int c = 0; c < kStrips; ++c) {
      row_max[c] = Columns::all(kLowestMax);
      row_sum[c] = Columns::all(0);
#pragma unroll
      for (int v = 0; v < kFeatureStrips; ++v) out[v][c].zero();
    }
    if (tiles.from < tiles.to) {
      const ScoreRules rules = score_rules(at);
      if constexpr (kShape.plain_walk && !kHasScoreMod && !kIsFloat8<Key>) {
        using Plain = PlainTiles<E, StageK, StageV, kParts, kKeys>;
        const int full = keys / kKeys < tiles.to ? keys / kKeys : tiles.to;
        if (tiles.from < full && Plain::suits(k, kDqk) && Plain::suits(v, kDv)) {
          walk_plain(k, v, rules, uniform(tiles.from), uniform(full));
          tiles.from = full;
        }
        if (tiles.from < tiles.to) walk_others(tiles.from, tiles.to);
      } else {
        walk(k, v, rules, stage_k, tiles.from, tiles.to);
      }
    }
    store();
  }
};

template <class Elements, int kDqk, int kDv, bool kHasScoreMod>
__global__ __launch_bounds__(forward_shape(kFamily, sizeof(QueryOf<Elements>), {kDqk, kDv}, kHasScoreMod).threads,
                             forward_shape(kFamily, sizeof(QueryOf<Elements>), {kDqk, kDv}, kHasScoreMod)
                                 .blocks) void forward_kernel(XLSTM_PARAM ForwardParams p) {
  using Kernel = Forward<QueryOf<Elements>, KeyOf<Elements>, kDqk, kDv, kHasScoreMod>;
  extern __shared__ __align__(128) char lds[];
  const ForwardBlock block(p, Kernel::kShape.rows);
  if (!block.empty()) Kernel(kernel_params(p), block, lds).run(block.at);
}

}  // namespace xlstm::gpu::attention
