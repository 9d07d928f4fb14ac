// SPDX-License-Identifier: Apache-2.0
// y = W x for up to kBatch x's on matrix units, with what stands before and after it in a step
// (engine/prologue_epilogue.h).
//
// A block stays: it brings x's into LDS once (engine/gemm_mma/gemm_mma_inputs.h), then takes units of kRows rows of W
// in turn, so that memory gives each weight once. All its waves share a unit's rows and take 64 features in turns;
// weights are asked for kDepth steps ahead of their use and on into the next unit
// (engine/gemm_mma/gemm_mma_weight_loads.h), so that they keep coming while waves meet to add up their sums. The first
// ones are asked for before the kernel waits for the one before it, and for x's. Where LDS does not hold all of x's,
// they come in stages, anew for each unit; passes over more of the batch are blocks of their own, which find the
// weights in L2. Of x's 16 bits are multiplied, an error of 2^-17 of each at most; weights are exact, sums are float.
//
// RMS norms are a factor of each row of the batch, found while x's go by and applied to sums.
//
// Sums are made in one order of features for every kBatch and kRows: a row of the batch has the same result in any
// company of such a kernel.
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "engine/gemm_mma/gemm_mma_weight_loads.h"

namespace xlstm::gpu::engine {

template <int kBatch>
XLSTM_DEVICE int passes(const ProductParams& p) {
  return (p.batch + kBatch - 1) / kBatch;
}

template <class Weights, int kBatch, int kRows, int kMostDepth = 64>
struct MatrixProduct {
  using E = BFloat16;
  using Shape = MatrixShape<Weights, kBatch, kRows, kMostDepth != 64>;
  static constexpr bool kWhole = Shape::kWhole;
  static constexpr int kChains = Shape::kChains, kStrips = Shape::kStrips, kUnits = Shape::kUnits;
  static constexpr int kSplit = Shape::kSplit, kSumRows = Shape::kSumRows;
  static constexpr int kLaneRows = Shape::kLaneRows, kColumns = Shape::kColumns, kAlong = Shape::kAlong;
  static constexpr int kDepth = Shape::kDepth < kMostDepth ? Shape::kDepth : kMostDepth;
  static constexpr bool kQuantised = Weights::kGroups;

  using Step = MatrixStep<Weights, Shape>;
  using Rows = LaneRows<Weights, Shape>;

  const ProductParams& p;
  MatrixInputs<Weights, Shape> inputs;
  float* sums;  // two places for those of kTogether waves
  int place = 0;
  UnitRows own;  // of the unit that is multiplied
  Strip<E> sum[kChains][kStrips];

  XLSTM_DEVICE static int along() { return wave_id(); }
  XLSTM_DEVICE static int first_row(const ProductParams& p) { return int(blockIdx.x) % passes<kBatch>(p) * kBatch; }
  XLSTM_DEVICE static int rows_from(const ProductParams& p, int first) {
    return p.batch - first < kBatch ? p.batch - first : kBatch;
  }

  XLSTM_DEVICE MatrixProduct(const ProductParams& params, typename Shape::Facts& facts, char* lds)
      : p(params),
        inputs(params, facts, lds, first_row(params), rows_from(params, first_row(params))),
        sums(reinterpret_cast<float*>(lds +
                                      params.stage_tiles * matrix_tile_bytes(kFamily, kBatch, Weights::kGroups))) {}

  // ---- products

  // Step `at` of those in LDS, with groups of this kind.
  XLSTM_DEVICE void multiply_step(const Step& step, const GroupKind& groups, int at) {
    constexpr int kEights = load_eights(Weights::kBits);
    const int lane = lane_id();
    Strip<E> part[Weights::kGroups ? kChains : 1][Weights::kGroups ? kStrips : 1];
    if constexpr (Weights::kGroups)
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int s = 0; s < kStrips; ++s) part[c][s].zero();
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      Vec16 chain[kChains][Weights::kParts][kChainVec16s<E>];
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int j = 0; j < kChainVec16s<E>; ++j) {
          const int row = kLaneRows == 1 ? 0 : j, eight = u * unit_eights(kFamily) + (kLaneRows == 1 ? j : 0);
          Vec16 parts[Weights::kParts];
          Weights::eight(step.load[c][row][eight / kEights], eight % kEights, parts);
#pragma unroll
          for (int h = 0; h < Weights::kParts; ++h) chain[c][h][j] = parts[h];
        }
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        Vec16 stream[kStreamVec16s<E>] = {};
#pragma unroll
        for (int j = 0; j < Shape::kStreamReads; ++j) {
          const Vec16Position from = stream_vec16(kFamily, sizeof(E), lane, j);
          stream[j] = read_vec16(inputs.slot_of_step(at, u, s, from.row, from.feature / kEight));
        }
#pragma unroll
        for (int k = 0; k < kUnitSteps<E>; ++k) {
          const StreamOperand<E> b = stream_of<E>(stream, k);
#pragma unroll
          for (int c = 0; c < kChains; ++c)
#pragma unroll
            for (int h = 0; h < Weights::kParts; ++h) {
              const ChainOperand<E> a = chain_of_vec16s<E>(chain[c][h], k);
              if constexpr (Weights::kGroups)
                multiply<Shape::kHalf>(part[c][s], b, a);
              else
                multiply<Shape::kHalf>(sum[c][s], b, a);
            }
        }
      }
    }
    if constexpr (Shape::kDealt) {
      float upper = part[0][0].value[0], lower = part[0][0].value[1];
#pragma unroll
      for (int n = 1; n < Shape::kDealtColumns; ++n) {
        const bool own = n == Shape::own_column();
        const float* const of = part[n / kColumns][0].value + 2 * (n % kColumns);
        upper = own ? of[0] : upper, lower = own ? of[1] : lower;
      }
      const bool brain = groups.dtype == XLSTM_BFLOAT16;
      const auto number = [&](uint32_t bits) {
        return brain ? low_float(BFloat16{}, bits) : low_float(Float16{}, bits);
      };
      const float scale = number(step.scale[0][0]);
      const float above = groups.offsets ? Weights::kZero : Weights::kZero - Weights::kMiddle;
      const float offset = __builtin_fmaf(above, scale, groups.offsets ? number(step.offset[0][0]) : 0.0f);
      float(&own)[Strip<E>::kRegisters] = sum[0][0].value;
      own[0] = __builtin_fmaf(scale, upper, own[0]);
      own[1] = __builtin_fmaf(scale, lower, own[1]);
      own[0] = __builtin_fmaf(offset, inputs.step_sums(at)[0], own[0]);
    } else if constexpr (Weights::kGroups) {
      const float* const all = inputs.step_sums(at);
      with_dtype(groups.dtype, [&](auto element) {
        if (groups.offsets)
          add_parts<true>(element, step, part, all);
        else
          add_parts<false>(element, step, part, all);
      });
    }
  }

  template <bool kOffsets, class T, class Parts>
  XLSTM_DEVICE void add_parts(T element, const Step& step, const Parts& part, const float* all) {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float scale = low_float(element, step.scale[c][j]);
        const float offset = kOffsets ? __builtin_fmaf(Weights::kZero, scale, low_float(element, step.offset[c][j]))
                                      : (Weights::kZero - Weights::kMiddle) * scale;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
          for (int r = 0; r < Shape::kRegisters; ++r) {
            if (Columns::of(r) != j) continue;
            float& to = sum[c][s].value[r];
            to = __builtin_fmaf(scale, part[c][s].value[r], to);
            const int row = Strip<E>::position(r).row;
            const bool upper = kWhole ? whole_part(kFamily, row) == 0 : row < kSplit;  // the lower parts are in it
            if ((kOffsets || Weights::kZero != Weights::kMiddle) && upper)
              to = __builtin_fmaf(offset, all[kWhole ? 0 : s * kSplit + row], to);
          }
      }
  }

  // Units in turn, the first blocks first; from_behind: the last ones, which may have fewer units of another kind.
  struct Turns {
    int begin, end, stride;
  };
  XLSTM_DEVICE Turns turns(bool from_behind) const {
    const int blocks = p.blocks / passes<kBatch>(p), block = int(blockIdx.x) / passes<kBatch>(p);
    return {from_behind ? blocks - 1 - block : block, units_of<kRows>(p, kQuantised), blocks};
  }
  XLSTM_DEVICE void run(bool from_behind = false) {
    const Turns turn = turns(from_behind);
    if (turn.begin >= turn.end) return;
    if constexpr (Shape::kRing)
      run_ring(turn);
    else
      run_held(turn);
  }

  // What stands before the products of a unit's stage: its x's are in LDS. ready() stands before the barrier.
  template <class Ready>
  XLSTM_DEVICE void bring(int stage, int stages, bool first, bool more, Ready&& ready) {
    if (!first && stages == 1) return;
    if (!first || stage) __syncthreads();  // all have read what was there
    if (!Shape::kAhead && !(first && stage == 0)) inputs.fetch_first(stage);
    inputs.store_stage(stage, first);
    ready();
    __syncthreads();
    if (first) inputs.add_squares(stage);
    if (Shape::kAhead && stages > 1 && (more || stage + 1 < stages))
      inputs.fetch_first(stage + 1 < stages ? stage + 1 : 0);
  }
  XLSTM_DEVICE void clear_sums() {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s) sum[c][s].zero();
  }

  XLSTM_DEVICE void run_held(const Turns& turn) {
    const int tiles = tiles_of(kFamily, p.columns), stages = (tiles + p.stage_tiles - 1) / p.stage_tiles;
    Rows rows = Rows::at(p, turn.begin);
    Step held[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (d < tiles) held[d].fetch(p, rows, d);
    pdl_wait();
    inputs.fetch_first(0);
    for (int unit = turn.begin; unit < turn.end; unit += turn.stride) {
      const bool first = unit == turn.begin, more = unit + turn.stride < turn.end;
      const Rows next = Rows::at(p, more ? unit + turn.stride : unit);
      own = rows.unit;
      clear_sums();
      for (int stage = 0; stage < stages; ++stage) {
        const int from = stage * p.stage_tiles, to = from + p.stage_tiles < tiles ? from + p.stage_tiles : tiles;
        bring(stage, stages, first, more, [] {});
        for (int round = from; round < to; round += kDepth) {
#pragma unroll
          for (int d = 0; d < kDepth; ++d) {
            const int tile = round + d;
            if (tile < to) {
              multiply_step(held[d], GroupKind::of(p.linear[own.piece]), along() + (tile - from) * kAlong);
              if (tile + kDepth < tiles)
                held[d].fetch(p, rows, tile + kDepth);
              else if (more && d < tiles)
                held[d].fetch(p, next, d);
            }
          }
        }
      }
      if (first) inputs.make_inverses();
      finish();
      rows = next;
    }
  }

  XLSTM_DEVICE void run_ring(const Turns& turn) {
    const int tiles = tiles_of(kFamily, p.columns), stages = (tiles + p.stage_tiles - 1) / p.stage_tiles;
    char* const behind = reinterpret_cast<char*>(sums) + matrix_sum_bytes(kFamily, kBatch, kRows);
    inputs.fetch_weights(0, 0);  // first, since memory gives them after what was asked for before
    MatrixRing<Weights, Shape, kDepth> ring(p, behind, turn.begin, turn.end, turn.stride);
    pdl_wait();
    inputs.fetch_inputs(0, 0);
    for (int unit = turn.begin; unit < turn.end; unit += turn.stride) {
      const bool first = unit == turn.begin, more = unit + turn.stride < turn.end;
      own = rows_of_unit<kRows>(p, kQuantised, unit);
      ring.begin_unit(own.piece, unit + turn.stride);
      clear_sums();
      for (int stage = 0; stage < stages; ++stage) {
        const int from = stage * p.stage_tiles, to = from + p.stage_tiles < tiles ? from + p.stage_tiles : tiles;
        bring(stage, stages, first, more, [&] { ring.first_arrived(); });
        for (int at = along(), end = at + (to - from) * kAlong; at < end; at += kAlong) {
          Step step;
          ring.get(step);
          multiply_step(step, ring.kind, at);
          ring.done();
        }
      }
      ring.end_unit();
      if (first) inputs.make_inverses();
      finish();
    }
  }

  // ---- sums of the waves, one after the other, and what becomes of them

  XLSTM_DEVICE void finish() {
    constexpr int kTogether = Shape::kTogether, kOutputs = (kRows * kBatch + kProductThreads - 1) / kProductThreads;
    const ProductParams& p = *reload_params(&this->p);
    const bool both = p.output == Output::swiglu;
    float total[2][kOutputs][2] = {};  // of the piece, and of SwiGLU's other; upper and lower parts
#pragma unroll 1
    for (int wave = 0; wave < kAlong; wave += kTogether) {
      float* const all = sums + place * (kTogether * kSumRows * kRows);
      place ^= 1;
      if (along() >= wave && along() < wave + kTogether) {
        float* const mine = all + (along() - wave) * (kSumRows * kRows);
        if constexpr (Shape::kDealt) {
          const int row = Shape::row_of_column(Shape::own_column());
          if (place_in_row(kFamily, lane_id()) < Shape::kDealtColumns)
            mine[row] = sum[0][0].value[0], mine[kRows + row] = sum[0][0].value[1];
        }
#pragma unroll
        for (int c = 0; c < (Shape::kDealt ? 0 : kChains); ++c)
#pragma unroll
          for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int r = 0; r < Shape::kRegisters; ++r) {
              const StripPosition at = Strip<E>::position(r);
              const int part = whole_part(kFamily, at.row), row = kWhole ? part : s * 2 * kSplit + at.row;
              if (!kWhole || at.row == whole_row(kFamily, part))
                mine[row * kRows + c * kStripColumns + at.column] = sum[c][s].value[r];
            }
      }
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) {
        const int at = int(threadIdx.x) + n * kProductThreads, slot = both ? at % (kRows / 2) : at % kRows,
                  b = both ? at / (kRows / 2) : at / kRows;
        if (b >= inputs.count) continue;
        const int row = kWhole ? 0 : b / kSplit * (2 * kSplit) + b % kSplit;
#pragma unroll
        for (int w = 0; w < kTogether; ++w)
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            const float* const from = all + ((w * kSumRows) + row + part * (kWhole ? 1 : kSplit)) * kRows + slot;
            total[0][n][part] += from[0];
            if (both) total[1][n][part] += from[kRows / 2];
          }
      }
    }
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      const int at = int(threadIdx.x) + n * kProductThreads, slot = both ? at % (kRows / 2) : at % kRows,
                b = both ? at / (kRows / 2) : at / kRows;
      const int row = own.first + slot;
      if (b >= inputs.count || row >= p.linear[own.piece].rows) continue;
      const float factor = inputs.normed() ? inputs.inverses()[b] : 1.0f;
      const auto product = [&](int of, const float(&parts)[2]) {
        const DeviceLinear& w = p.linear[of];
        const float y = (parts[0] + parts[1]) * factor;
        return w.bias.data ? y + value_of(w.bias, row) : y;
      };
      const float y = product(own.piece, total[0][n]);
      put(p, p.output, own.piece, row, inputs.first + b, both ? swiglu(y, product(1, total[1][n])) : y);
    }
  }
};

template <class Weights, int kBatch, int kRows>
__global__ __launch_bounds__(kProductThreads,
                             matrix_blocks_of_cu(kFamily,
                                                 kBatch)) void matrix_products(XLSTM_PARAM ProductParams given) {
  if constexpr (has_matrix_kernel(kFamily, kBatch, Weights::kConverted) &&
                has_matrix_rows(kFamily, kBatch, kRows, Weights::kGroups)) {
    using Shape = MatrixShape<Weights, kBatch, kRows>;
    const ProductParams& p = *kernel_params(given);
    __shared__ typename Shape::Facts facts;
    extern __shared__ __align__(128) char lds[];
    pdl_trigger();
    MatrixProduct<Weights, kBatch, kRows>(p, facts, lds).run();
    if constexpr (Weights::kGroups) {
      using Gates = MatrixProduct<Bfloat16Weights, kBatch, kStripColumns, (Shape::kDepth < 2 ? 1 : 2)>;  // few rows
      static_assert(Shape::kRing || kBatch == 1 || Shape::kDepth % Gates::kDepth == 0);  // stages are of whole rounds
      if (p.output != Output::store) return;
      __syncthreads();
      Gates(p, reinterpret_cast<typename Gates::Shape::Facts&>(facts), lds).run(true);
    }
  }
}

}  // namespace xlstm::gpu::engine
