// SPDX-License-Identifier: Apache-2.0
// Attention forward on a GPU.
//
//   S^T = K Q^T     m' = max(m, max_j S)     P^T = 2^(S^T - m')     O^T = O^T 2^(m - m') + V^T P^T     l likewise
//
// The query heads of one key head are one matrix of rows (attention/layout.h), so GQA and MQA share K and V. Everything
// is transposed: K is the stream operand, along the features, Q the chain; the strips of S have keys down and rows
// across, and once they are weights they are the chain operand of V^T P^T as they lie. A row's maximum and sum are those
// of a column.
//
// Who owns what: a block has `rows` rows of one key head, each of its waves 16 or 32 of them with O in accumulators and
// Q in registers (in LDS where they would not fit), and walks tiles of keys. K and V have a room each in LDS; the one
// comes while the other is multiplied: through registers on AMD, by asynchronous copies on NVIDIA. Tiles that no row of
// the block sees are not visited, those that a wave does not see it does not multiply, and masks are applied where a
// wave does not see the whole tile.
//
// O and l are scaled only when a maximum has grown by more than 2^8 since they last were: weights are at most 256, and
// their rounding is relative.
//
// Floor: 2 (dqk + dv) flops for each row and key. Beside them a score costs one exp, a fused multiply-add, a maximum, a
// sum and half a packing.
#pragma once

#include "attention/keys_gpu.h"
#include "attention/plan_gpu.h"
#include "attention/scores_gpu.h"

namespace xlstm::gpu {

struct ForwardParams {
  xlstm_attention_forward call;
  int64_t blocks, splits;  // of the plan
  bool whole_q, whole_k, whole_v, whole_out;  // rows are whole pieces of 16 bytes, at multiples of 16
  float *out_parts, *lse_parts;               // with splits: (splits, B, HQ, length_q, DV) and without DV

  XLSTM_HOST_DEVICE static int64_t part(const xlstm_attention& in) { return in.batch * in.heads_q * in.length_q; }
};

template <class E, int kDqk, int kDv, bool kFull>
struct Forward {
  static constexpr ForwardShape kShape = forward_shape(kFamily, sizeof(E), {kDqk, kDv});
  static constexpr int kThreads = kShape.threads, kKeys = kShape.keys, kStrips = kShape.strips;
  static constexpr int kKeyStrips = kKeys / kStep<E>, kDepths = kDqk / kStep<E>, kFeatureStrips = kDv / kStep<E>;
  static constexpr int kParts = kDqk / kKeyPart, kPartDepths = kKeyPart / kStep<E>;
  static constexpr int kWaveRows = kStrips * kStripColumns, n = kPieceElements<E>;
  static constexpr float kGrowth = 8;  // of a maximum, to base 2, before sums are scaled
  static constexpr float kLowest = -0x1p126f;

  using StageK = KeyStage<E, kKeys, kKeyPart, false, kThreads>;
  using StageV = KeyStage<E, kKeys, kDv, true, kThreads>;
  using TileQ = Tile<E, kShape.rows, kKeyPart>;

  const ForwardParams& p;
  AttentionLayout at;
  int64_t key_head, split, first_row;  // of the wave
  char* lds;
  RowsSee see;
  RowFacts<kStrips> facts;
  ChainOperand<E> q[kShape.q_in_lds ? 1 : kDepths][kStrips];
  Strip<E> out[kFeatureStrips][kStrips];
  Columns most[kStrips], sum[kStrips];

  XLSTM_DEVICE Forward(const ForwardParams& params, const AttentionLayout& layout, int64_t key_head, int64_t split,
                       int64_t first, char* memory)
      : p(params),
        at(layout),
        key_head(key_head),
        split(split),
        first_row(first + wave_id() * kWaveRows),
        lds(memory),
        see(at, live(first_row), live(first_row + kWaveRows - 1) - live(first_row) + 1),
        facts(at, key_head, first_row) {}

  // Rows beyond the last one repeat it.
  XLSTM_DEVICE int64_t live(int64_t row) const { return row < at.rows() ? row : at.rows() - 1; }

  XLSTM_DEVICE TileQ tile_q(int part) const { return {reinterpret_cast<E*>(lds) + part * (kShape.rows * kKeyPart)}; }
  XLSTM_DEVICE typename StageK::Storage tile_k(int part) const {
    return {reinterpret_cast<E*>(lds + kShape.q_bytes) + part * (kKeys * kKeyPart)};
  }
  XLSTM_DEVICE typename StageV::Storage tile_v() const {
    return {reinterpret_cast<E*>(lds + kShape.q_bytes + (kShape.take_turns ? 0 : kShape.k_bytes))};
  }

  XLSTM_DEVICE Piece q_piece(int64_t row, int column) const {
    const E* from = static_cast<const E*>(p.call.in.q.data) + at.row(p.call.in.q, key_head, live(row));
    return TokenRows<E>{from, 0, int(p.call.in.dqk), p.whole_q}.piece(0, column, true);
  }
  XLSTM_DEVICE void load_q() {
    if constexpr (kShape.q_bytes > 0) {
      constexpr int kRowPieces = kDqk / n;
      const int64_t first = first_row - wave_id() * kWaveRows;
#pragma unroll 1
      for (int unit = threadIdx.x; unit < kShape.rows * kRowPieces; unit += kThreads) {
        const int row = unit / kRowPieces, column = unit % kRowPieces * n;
        *reinterpret_cast<Piece*>(tile_q(column / kKeyPart).at(row, column % kKeyPart)) = q_piece(first + row, column);
      }
    }
    if constexpr (!kShape.q_in_lds) {
      if constexpr (kAsyncCopies) {
        __syncthreads();
#pragma unroll
        for (int d = 0; d < kDepths; ++d)
#pragma unroll
          for (int c = 0; c < kStrips; ++c) q[d][c] = q_operand(d, c);
      } else {
#pragma unroll
        for (int c = 0; c < kStrips; ++c)
#pragma unroll
          for (int d = 0; d < kDepths; ++d)
            q[d][c] = chain_of<E>(
                [&](int column, int k) { return q_piece(first_row + c * kStripColumns + column, k); }, d * kStep<E>);
      }
    }
  }
  XLSTM_DEVICE ChainOperand<E> q_operand(int depth, int c) const {
    const int row = wave_id() * kWaveRows + c * kStripColumns;
    return load_chain_along<E>(tile_q(depth / kPartDepths), row, depth % kPartDepths * kStep<E>);
  }

  using Scores = Strip<E>[kKeyStrips][kStrips];

  // s = K Q^T
  XLSTM_DEVICE void multiply_keys(Scores& s) {
#pragma unroll
    for (int k = 0; k < kKeyStrips; ++k)
#pragma unroll
      for (int c = 0; c < kStrips; ++c) s[k][c].zero();
    const auto load = [&](int step) {
      const int depth = step / kKeyStrips, k = step % kKeyStrips;
      return load_stream<true, E>(tile_k(depth / kPartDepths), k * kStep<E>, depth % kPartDepths * kStep<E>);
    };
    StreamOperand<E> stream[2];  // of this step and the next
    stream[0] = load(0);
#pragma unroll
    for (int step = 0; step < kDepths * kKeyStrips; ++step) {
      const int depth = step / kKeyStrips;
      in_order();
      if (step + 1 < kDepths * kKeyStrips) stream[(step + 1) % 2] = load(step + 1);
      if (kShape.q_in_lds && step % kKeyStrips == 0)
#pragma unroll
        for (int c = 0; c < kStrips; ++c) q[0][c] = q_operand(depth, c);
#pragma unroll
      for (int c = 0; c < kStrips; ++c)
        multiply(s[step % kKeyStrips][c], stream[step % 2], q[kShape.q_in_lds ? 0 : depth][c]);
    }
  }

  // Products to weights; the maximum, the sums and what there is of O follow.
  XLSTM_DEVICE void weigh(Scores& s, const ScoreRules& rules, int first) {
    const bool masked = !see.whole(first, kKeys);
    const float unit = kFull ? 1.0f : rules.scale;
    bool grew = false;
    Columns high[kStrips];
#pragma unroll
    for (int c = 0; c < kStrips; ++c) {
      high[c] = Columns::all(-__builtin_inff());
#pragma unroll
      for (int k = 0; k < kKeyStrips; ++k) {
        const int key = first + k * kStep<E>;
        if constexpr (kFull) rules.bend(s[k][c], facts, c, key);
        if (masked) facts.mask(s[k][c], c, key);
        high[c].take_in(s[k][c], [](float a, float b) { return fmaxf(a, b); });
      }
      high[c].over_rows([](float a, float b) { return fmaxf(a, b); });
#pragma unroll
      for (int j = 0; j < Columns::kEach; ++j) {
        high[c].value[j] *= unit;
        grew = grew || high[c].value[j] > most[c].value[j] + kGrowth;
      }
    }
    if (any_lane(grew))
#pragma unroll
      for (int c = 0; c < kStrips; ++c) {
        Columns shrink;
#pragma unroll
        for (int j = 0; j < Columns::kEach; ++j) {
          const float next = fmaxf(most[c].value[j], high[c].value[j]);
          shrink.value[j] = exp2_fast(most[c].value[j] - next);
          most[c].value[j] = next;
          sum[c].value[j] *= shrink.value[j];
        }
#pragma unroll
        for (int v = 0; v < kFeatureStrips; ++v) scale_columns(out[v][c], shrink);
      }
#pragma unroll
    for (int c = 0; c < kStrips; ++c)
#pragma unroll
      for (int k = 0; k < kKeyStrips; ++k) {
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; ++r)
          s[k][c].value[r] = exp2_fast(__builtin_fmaf(s[k][c].value[r], unit, -most[c].value[Columns::of(r)]));
        sum[c].take_in(s[k][c], [](float a, float b) { return a + b; });
        if constexpr (kFull)
          if (rules.drops)
            rules.each_draw<E>(facts, c, first + k * kStep<E>,
                               [&](int r, bool kept) { s[k][c].value[r] = kept ? s[k][c].value[r] : 0.0f; });
      }
  }

  // O^T += V^T P^T
  XLSTM_DEVICE void multiply_values(Scores& s) {
    const auto load = [&](int step) {
      return load_stream<false, E>(tile_v(), step % kFeatureStrips * kStep<E>, step / kFeatureStrips * kStep<E>);
    };
    StreamOperand<E> stream[2];
    stream[0] = load(0);
    ChainOperand<E> weights[kStrips];
#pragma unroll
    for (int step = 0; step < kKeyStrips * kFeatureStrips; ++step) {
      const int v = step % kFeatureStrips;
      in_order();
      if (step + 1 < kKeyStrips * kFeatureStrips) stream[(step + 1) % 2] = load(step + 1);
#pragma unroll
      for (int c = 0; c < kStrips; ++c) {
        if (v == 0) weights[c] = as_chain(s[step / kFeatureStrips][c], 1.0f);
        multiply(out[v][c], stream[step % 2], weights[c]);
      }
    }
  }

  // A run of a row's features from `column` on.
  template <class T>
  XLSTM_DEVICE static void store_run(T* row, int column, int columns, bool whole, const float (&value)[kRun<E>]) {
    constexpr int kWords = kRun<E> * int(sizeof(T)) / 4;
    uint32_t word[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (sizeof(T) == 4)
        word[w] = as_bits(value[w]);
      else
        word[w] = pack_exact(T{}, value[2 * w], value[2 * w + 1]);
    }
    if (whole && column + kRun<E> <= columns) {
      struct alignas(kWords < 4 ? kWords * 4 : 16) Run {
        uint32_t word[kWords];
      } run;
#pragma unroll
      for (int w = 0; w < kWords; ++w) run.word[w] = word[w];
      *reinterpret_cast<Run*>(row + column) = run;
      return;
    }
#pragma unroll
    for (int j = 0; j < kRun<E>; ++j)
      if (column + j < columns) row[column + j] = from_float<T>(value[j]);
  }

  XLSTM_DEVICE void store() {
    const xlstm_attention& in = p.call.in;
    const int columns = int(in.dv);
    const float kept = in.dropout_p > 0 ? float(dropout_scale(in.dropout_p)) : 1.0f;
#pragma unroll
    for (int c = 0; c < kStrips; ++c) {
      sum[c].over_rows([](float a, float b) { return a + b; });
      Columns factor;
      E* row[Columns::kEach];
      float* part[Columns::kEach];
      bool inside[Columns::kEach];
#pragma unroll
      for (int j = 0; j < Columns::kEach; ++j) {
        const int64_t r = first_row + c * kStripColumns + Columns::position(j);
        const int64_t group = at.group(), i = live(r) / group, head = key_head * group + live(r) % group;
        inside[j] = r < at.rows();
        row[j] = static_cast<E*>(p.call.out.data) + at.query(p.call.out, head, i);
        part[j] = nullptr;
        const float l = sum[c].value[j], m = most[c].value[j], lse = m + log2f(l);
        float* lse_to;
        float lse_of;
        factor.value[j] = l > 0 ? kept / l : 0;
        if (l != l) factor.value[j] = l;
        if (p.splits > 1) {
          const int64_t place =
              split * ForwardParams::part(in) + (at.index * in.heads_q + head) * in.length_q + i;
          part[j] = p.out_parts + place * in.dv;
          lse_to = p.lse_parts + place;
          lse_of = l == 0 ? -__builtin_inff() : lse * kLn2;
        } else {
          float seen = lse;
          if (in.sink) {
            const float sink = static_cast<const float*>(in.sink)[head] * kLog2E, top = fmaxf(m, sink);
            const float whole = l * exp2_fast(m - top) + exp2_fast(sink - top);
            factor.value[j] = whole == 0 ? 0 : kept * exp2_fast(m - top) / whole;
            if (p.call.lse_with_sink) seen = whole == 0 ? -__builtin_inff() : top + log2f(whole);
          }
          lse_to = static_cast<float*>(p.call.lse.data) + at.query(p.call.lse, head, i);
          lse_of = seen == -__builtin_inff() ? __builtin_inff() : seen * kLn2;
        }
        if (inside[j] && lane_writes(j)) *lse_to = lse_of;
      }
#pragma unroll
      for (int v = 0; v < kFeatureStrips; ++v) {
        in_order();
        scale_columns(out[v][c], factor);
        each_run(out[v][c], [&](int first, int j, const float(&value)[kRun<E>]) {
          if (!inside[j]) return;
          if (p.splits > 1)
            store_run(part[j], v * kStep<E> + first, columns, in.dv % 4 == 0, value);
          else
            store_run(row[j], v * kStep<E> + first, columns, p.whole_out, value);
        });
      }
    }
  }
  // One lane for each column.
  XLSTM_DEVICE static bool lane_writes(int) { return (lane_id() & row_lanes(kFamily)) == 0; }

  XLSTM_DEVICE void run(int64_t block_rows_first) {
    const xlstm_attention& in = p.call.in;
    load_q();
#pragma unroll
    for (int c = 0; c < kStrips; ++c) {
      most[c] = Columns::all(kLowest);
      sum[c] = Columns::all(0);
#pragma unroll
      for (int v = 0; v < kFeatureStrips; ++v) out[v][c].zero();
    }
    // Tiles that some row of the block sees, of this part of the keys.
    const RowsSee all(at, block_rows_first, live(block_rows_first + kShape.rows - 1) - block_rows_first + 1);
    const int tile0 = all.begin / kKeys, tiles = all.end > all.begin ? (all.end + kKeys - 1) / kKeys - tile0 : 0;
    const int from = tile0 + int(tiles * split / p.splits), to = tile0 + int(tiles * (split + 1) / p.splits);
    if (from < to) {
      const HeadTokens<E> keys(at, in.k, key_head, in.dqk, p.whole_k), values(at, in.v, key_head, in.dv, p.whole_v);
      const ScoreRules rules(in);
      StageK stage_k[kParts];
      StageV stage_v;
      const auto valid = [&](int first) { return int(at.keys) - first < kKeys ? int(at.keys) - first : kKeys; };
      const auto fetch_k = [&](int first) {
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          stage_k[part].fetch(tile_k(part), keys, first, valid(first), part * kKeyPart);
      };
      const auto arrive_in_turn = [&](auto&& store) {
        if constexpr (kShape.take_turns)
          arrive(store);
        else
          arrive_free(store);
      };
      fetch_k(from * kKeys);
      for (int tile = from; tile < to; ++tile) {
        const int first = tile * kKeys;
        const bool seen = see.some(first, kKeys);
        arrive_in_turn([&] {
#pragma unroll
          for (int part = 0; part < kParts; ++part) stage_k[part].store(tile_k(part));
        });
        stage_v.fetch(tile_v(), values, first, valid(first), 0);
        Scores s;
        if (seen) multiply_keys(s);
        arrive_in_turn([&] { stage_v.store(tile_v()); });
        if (tile + 1 < to) fetch_k(first + kKeys);
        if (seen) {
          weigh(s, rules, first);
          multiply_values(s);
        }
      }
    }
    store();
  }
};

template <class E, int kDqk, int kDv, bool kFull>
__global__ __launch_bounds__(forward_shape(kFamily, sizeof(E), {kDqk, kDv}).threads,
                             forward_shape(kFamily, sizeof(E), {kDqk, kDv}).blocks) void attend(const ForwardParams p) {
  extern __shared__ __align__(128) char lds[];
  const xlstm_attention& in = p.call.in;
  const ForwardPlace place = forward_place(blockIdx.x, in.batch * in.heads_k, p.splits, p.blocks);
  const AttentionLayout at(in, place.head / in.heads_k);
  const int64_t first = place.rows * Forward<E, kDqk, kDv, kFull>::kShape.rows;
  if (first >= at.rows()) return;
  Forward<E, kDqk, kDv, kFull>(p, at, place.head % in.heads_k, place.split, first, lds).run(first);
}

}  // namespace xlstm::gpu
