// SPDX-License-Identifier: Apache-2.0
// y = W x for up to kBatch x's on matrix units, with what stands before and after it in a step (decode/rows_gpu.h).
//
// A block stays: it brings x's into LDS once (decode/matrix_inputs_gpu.h), then takes units of kRows rows of W in turn,
// so that memory gives each weight once. All its waves share a unit's rows and take 64 features in turns; weights go
// from memory to registers, kDepth steps ahead of their use and on into the next unit, so that they keep coming while
// waves meet to add up their sums. The first ones are asked for before the kernel waits for the one before it, and for
// x's. Where LDS does not hold all of x's, they come in stages, anew for each unit; passes over more of the batch are
// blocks of their own, which find the weights in L2. Of x's 16 bits are multiplied, an error of 2^-17 of each at most;
// weights are exact, sums are float.
//
// RMS norms are a factor of each row of the batch, found while x's go by and applied to sums; a norm of heads, or one
// with a bias, measures x's first, while weights are on their way.
//
// Sums are made in one order of features for every kBatch and kRows: a row of the batch has the same result in any
// company of such a kernel.
#pragma once

#include "arch/overlap.h"
#include "decode/matrix_inputs_gpu.h"

namespace xlstm::gpu {

template <int kBatch>
XLSTM_DEVICE int passes(const ProductParams& p) {
  return (p.batch + kBatch - 1) / kBatch;
}

// The weights of a unit: kRows of a piece, or half of them of each of the first two.
struct UnitRows {
  int piece, first;
};
// Pieces are of two kinds: quantised, and gates that stayed as they were beside such.
XLSTM_DEVICE bool of_kind(const DeviceLinear& w, bool quantised) { return (w.bits != 0) == quantised; }
template <int kRows>
XLSTM_DEVICE int units_of(const ProductParams& p, bool quantised) {
  if (p.output == Output::swiglu) return (p.linear[0].rows + kRows / 2 - 1) / (kRows / 2);
  int units = 0;
  for (int piece = 0; piece < p.pieces; ++piece)
    if (of_kind(p.linear[piece], quantised)) units += (p.linear[piece].rows + kRows - 1) / kRows;
  return units;
}
template <int kRows>
XLSTM_DEVICE UnitRows rows_of_unit(const ProductParams& p, bool quantised, int unit) {
  if (p.output == Output::swiglu) return {0, unit * (kRows / 2)};
  int piece = 0, last = 0;
  for (; piece < p.pieces; ++piece) {
    if (!of_kind(p.linear[piece], quantised)) continue;
    const int units = (p.linear[piece].rows + kRows - 1) / kRows;
    last = piece;
    if (unit < units) break;
    unit -= units;
  }
  return {last, unit * kRows};
}

template <class Weights, int kBatch, int kRows, int kMostDepth = 8>
struct MatrixProduct {
  using E = BFloat16;
  using Shape = MatrixShape<Weights, kBatch, kRows>;
  static constexpr bool kWhole = Shape::kWhole;
  static constexpr int kChains = Shape::kChains, kStrips = Shape::kStrips, kUnits = Shape::kUnits;
  static constexpr int kSplit = Shape::kSplit, kSumRows = Shape::kSumRows;
  static constexpr int kLaneRows = Shape::kLaneRows, kLoads = Shape::kLoads, kColumns = Shape::kColumns;
  static constexpr int kAlong = Shape::kAlong, kStepBytes = Shape::kStepBytes;
  static constexpr int kDepth = Shape::kDepth < kMostDepth ? Shape::kDepth : kMostDepth;
  static constexpr bool kQuantised = Weights::kGroups;

  struct Step {
    typename Weights::Load load[kChains][kLaneRows][kLoads];
    uint32_t scale[Weights::kGroups ? kChains : 1][kColumns], offset[Weights::kGroups ? kChains : 1][kColumns];
  };
  // A unit's rows, and where this lane reads them.
  struct Rows {
    int piece, row0;                    // as UnitRows
    uint32_t from[kChains][kLaneRows];  // bytes from the weights' begin to a lane's first
    uint32_t groups_at[Weights::kGroups ? kChains : 1][kColumns];
  };

  const ProductParams& p;
  MatrixInputs<Weights, Shape> inputs;
  float* sums;  // two places for those of kTogether waves
  int place = 0;
  Rows own;
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

  // Where a row of a unit is: beyond a piece's last, the last again.
  struct Place {
    int piece, row;
  };
  XLSTM_DEVICE Place place_of(const UnitRows& unit, int slot) const {
    const bool both = p.output == Output::swiglu;
    const int of = both ? slot / (kRows / 2) : unit.piece, row = unit.first + (both ? slot % (kRows / 2) : slot);
    const int rows = p.linear[of].rows;
    return {of, row < rows ? row : rows - 1};
  }
  XLSTM_DEVICE Rows rows_at(int unit) const {
    const ProductParams& p = *read_here(&this->p);
    const UnitRows at = rows_of_unit<kRows>(p, kQuantised, unit);
    Rows rows;
    rows.piece = at.piece, rows.row0 = at.first;
    const int lane = lane_id();
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int slot = c * kStripColumns;
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const Place row = place_of(at, slot + row_of_lane(kFamily, lane, j));
        const DeviceLinear& w = p.linear[row.piece];
        const int first_load = along() * kStepBytes + load_offset(kFamily, Weights::kBits, lane, 0);
        rows.from[c][j] = made_here(uint32_t(row.row) * uint32_t(w.row_bytes) + uint32_t(first_load));
      }
      if constexpr (Weights::kGroups)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const Place row = place_of(at, slot + Columns::position(j));
          rows.groups_at[c][j] = made_here(uint32_t(row.row) * uint32_t(p.linear[row.piece].groups));
        }
    }
    return rows;
  }

  // ---- weights

  // f(element) for the dtype of scales and offsets: one branch for all of a step's.
  template <class F>
  XLSTM_DEVICE static void with_dtype(xlstm_dtype dtype, F&& f) {
    if (dtype == XLSTM_BFLOAT16)
      f(BFloat16{});
    else
      f(Float16{});
  }

  // The piece that a chain's rows are of: the same in every lane.
  XLSTM_DEVICE const DeviceLinear& linear_of(const Rows& rows, int chain) const {
    const bool second = p.output == Output::swiglu && chain * kStripColumns >= kRows / 2;
    return p.linear[second ? 1 : rows.piece];
  }

  XLSTM_DEVICE void fetch(Step& step, const Rows& rows, int tile) const {
    const DeviceLinear& w = p.linear[rows.piece];
    const bool all = (tile + 1) * Shape::kTileFeatures <= p.columns;
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const char* const base = static_cast<const char*>(linear_of(rows, c).data);
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j)
#pragma unroll
        for (int l = 0; l < kLoads; ++l) {
          constexpr int kNext = load_offset(kFamily, Weights::kBits, 0, 1);
          uint32_t at = rows.from[c][j] + uint32_t(tile * (kAlong * kStepBytes) + l * kNext);
          if (!all) {  // what lies beyond the columns is met by zeros: the first weights stand in for it
            const int inside = tile * (kAlong * kStepBytes) + along() * kStepBytes;
            at = inside + load_offset(kFamily, Weights::kBits, lane_id(), l) < int(w.row_bytes) ? at : 0;
          }
          step.load[c][j][l] = read_load(base, at);
        }
    }
    if constexpr (Weights::kGroups) {
      int group = (tile * kAlong + along()) >> (w.group_size > kStepFeatures ? 1 : 0);
      group = group < w.groups ? group : 0;
      with_dtype(w.dtype, [&](auto element) {
        using T = decltype(element);
#pragma unroll
        for (int c = 0; c < kChains; ++c)
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            const DeviceLinear& of = linear_of(rows, c);
            const uint32_t at = rows.groups_at[c][j] + uint32_t(group);
            step.scale[c][j] = element_bits(static_cast<const T*>(of.scales)[at]);
            if (of.offsets) step.offset[c][j] = element_bits(static_cast<const T*>(of.offsets)[at]);
          }
      });
    }
  }
  XLSTM_DEVICE static typename Weights::Load read_load(const char* base, uint32_t at) {
    if constexpr (sizeof(typename Weights::Load) == 16)
      return load_piece(base, at);
    else
      return __builtin_bit_cast(typename Weights::Load, *reinterpret_cast<const uint64_t*>(base + at));
  }

  // ---- products

  // Step `at` of those in LDS.
  XLSTM_DEVICE void multiply_step(const Step& step, int at) {
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
      Piece chain[kChains][Weights::kParts][kChainPieces<E>];
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int j = 0; j < kChainPieces<E>; ++j) {
          const int row = kLaneRows == 1 ? 0 : j, eight = u * unit_eights(kFamily) + (kLaneRows == 1 ? j : 0);
          Piece parts[Weights::kParts];
          Weights::eight(step.load[c][row][eight / kEights], eight % kEights, parts);
#pragma unroll
          for (int h = 0; h < Weights::kParts; ++h) chain[c][h][j] = parts[h];
        }
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        Piece stream[kStreamPieces<E>];
#pragma unroll
        for (int j = 0; j < kStreamPieces<E>; ++j) {
          const PiecePosition from = stream_piece(kFamily, sizeof(E), lane, j);
          stream[j] = read_piece(inputs.slot(at * kUnits + u, s, from.row, from.feature / kEight));
        }
#pragma unroll
        for (int k = 0; k < kUnitSteps<E>; ++k) {
          const StreamOperand<E> b = stream_of<E>(stream, k);
#pragma unroll
          for (int c = 0; c < kChains; ++c)
#pragma unroll
            for (int h = 0; h < Weights::kParts; ++h) {
              const ChainOperand<E> a = chain_of_pieces<E>(chain[c][h], k);
              if constexpr (Weights::kGroups)
                multiply(part[c][s], b, a);
              else
                multiply(sum[c][s], b, a);
            }
        }
      }
    }
    if constexpr (Weights::kGroups) {
      const DeviceLinear& w = p.linear[own.piece];
      const float* const all = inputs.step_sums(at);
      with_dtype(w.dtype, [&](auto element) {
        if (w.offsets)
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
        const float offset = kOffsets ? low_float(element, step.offset[c][j]) + Weights::kZero * scale : 0.0f;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
          for (int r = 0; r < Strip<E>::kRegisters; ++r) {
            if (Columns::of(r) != j) continue;
            float& to = sum[c][s].value[r];
            to = __builtin_fmaf(scale, part[c][s].value[r], to);
            const int row = Strip<E>::position(r).row;
            if (kOffsets && row < kSplit)  // the lower parts are in it
              to = __builtin_fmaf(offset, all[kWhole ? 0 : s * kSplit + row], to);
          }
      }
  }

  // Units in turn, the first blocks first; from_behind: the last ones, which may have fewer units of another kind.
  XLSTM_DEVICE void run(bool from_behind = false) {
    const int tiles = tiles_of(kFamily, p.columns), stages = (tiles + p.stage_tiles - 1) / p.stage_tiles;
    const int blocks = p.blocks / passes<kBatch>(p), block = int(blockIdx.x) / passes<kBatch>(p);
    const int units = units_of<kRows>(p, kQuantised);
    const int begin = from_behind ? blocks - 1 - block : block;
    if (begin >= units) return;
    own = rows_at(begin);
    Step held[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (d < tiles) fetch(held[d], own, d);
    wait_for_earlier_kernels();
    inputs.fetch_first(0);
    inputs.measure_rows();
    for (int unit = begin; unit < units; unit += blocks) {
      const bool first = unit == begin, more = unit + blocks < units;
      const Rows next = rows_at(more ? unit + blocks : unit);
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int s = 0; s < kStrips; ++s) sum[c][s].zero();
      for (int stage = 0; stage < stages; ++stage) {
        const int from = stage * p.stage_tiles, to = from + p.stage_tiles < tiles ? from + p.stage_tiles : tiles;
        if (first || stages > 1) {
          if (!first || stage) __syncthreads();  // all have read what was there
          if (!Shape::kAhead && !(first && stage == 0)) inputs.fetch_first(stage);
          inputs.store_stage(stage);
          __syncthreads();
          if (first) inputs.add_squares(stage);
          if (Shape::kAhead && stages > 1 && (more || stage + 1 < stages))
            inputs.fetch_first(stage + 1 < stages ? stage + 1 : 0);
        }
        for (int round = from; round < to; round += kDepth) {
#pragma unroll
          for (int d = 0; d < kDepth; ++d) {
            const int tile = round + d;
            if (tile < to) {
              multiply_step(held[d], along() + (tile - from) * kAlong);
              if (tile + kDepth < tiles)
                fetch(held[d], own, tile + kDepth);
              else if (more && d < tiles)
                fetch(held[d], next, d);
            }
          }
        }
      }
      if (first) inputs.make_inverses();
      finish();
      own = next;
    }
  }

  // ---- sums of the waves, one after the other, and what becomes of them

  XLSTM_DEVICE void finish() {
    constexpr int kTogether = Shape::kTogether, kOutputs = (kRows * kBatch + kProductThreads - 1) / kProductThreads;
    const ProductParams& p = *read_here(&this->p);
    const bool both = p.output == Output::swiglu;
    float total[2][kOutputs][2] = {};  // of the piece, and of SwiGLU's other; upper and lower parts
#pragma unroll 1
    for (int wave = 0; wave < kAlong; wave += kTogether) {
      float* const all = sums + place * (kTogether * kSumRows * kRows);
      place ^= 1;
      if (along() >= wave && along() < wave + kTogether) {
        float* const mine = all + (along() - wave) * (kSumRows * kRows);
#pragma unroll
        for (int c = 0; c < kChains; ++c)
#pragma unroll
          for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int r = 0; r < Strip<E>::kRegisters; ++r) {
              const StripPosition at = Strip<E>::position(r);
              const int row = kWhole ? at.row / kSplit : s * 2 * kSplit + at.row;
              if (!kWhole || at.row % kSplit == 0)
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
      const int row = own.row0 + slot;
      if (b >= inputs.count || row >= p.linear[own.piece].rows) continue;
      const float factor = inputs.late() ? inputs.inverses()[b] : 1.0f;
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
    const ProductParams& p = *only_param(given);
    __shared__ typename Shape::Facts facts;
    extern __shared__ __align__(128) char lds[];
    let_next_kernel_begin();
    MatrixProduct<Weights, kBatch, kRows>(p, facts, lds).run();
    if constexpr (Weights::kGroups) {
      using Gates = MatrixProduct<Bfloat16Weights, kBatch, kStripColumns, (Shape::kDepth < 2 ? 1 : 2)>;  // few rows
      static_assert(kBatch == 1 || Shape::kDepth % Gates::kDepth == 0);  // stages are of whole rounds
      if (p.output != Output::store) return;
      __syncthreads();
      Gates(p, reinterpret_cast<typename Gates::Shape::Facts&>(facts), lds).run(true);
    }
  }
}

}  // namespace xlstm::gpu
