// SPDX-License-Identifier: Apache-2.0
// y = W x for up to kBatch x's on matrix units, with what stands before and after it in a step (decode/rows_gpu.h).
//
// A block makes kRows rows of W for all x's of its pass, so that memory gives each weight once: passes of one block's
// weights follow each other in the grid, and the second finds them in L2. Four waves share rows and take 64 features in
// turns; weights go from memory to registers, kDepth steps ahead of their use, and x's through LDS, 256 features at a
// time, made anew by every block (decode/matrix_inputs_gpu.h). Of x's 16 bits are multiplied, an error of 2^-17 of each
// at most; weights are exact, sums are float. A single x lies in LDS as a whole, so that no wave waits for another.
//
// RMS norms are a factor of each row of the batch, found while x's go by and applied to sums; a norm of heads, or one
// with a bias, measures x's first, while weights are on their way.
//
// Sums are made in one order of features for every kBatch and kRows: a row of the batch has the same result in any
// company of such a kernel.
#pragma once

#include "decode/matrix_inputs_gpu.h"

namespace xlstm::gpu {

template <int kBatch>
XLSTM_DEVICE int passes(const ProductParams& p) {
  return (p.batch + kBatch - 1) / kBatch;
}

// The weights of a block: kRows of a piece, or half of them of each of the first two.
struct BlockRows {
  int piece, first;
};
template <int kBatch, int kRows>
XLSTM_DEVICE BlockRows rows_of_block(const ProductParams& p) {
  int block = int(blockIdx.x) / passes<kBatch>(p), piece = 0;
  if (p.output == Output::swiglu) return {0, block * (kRows / 2)};
  for (; piece + 1 < p.pieces; ++piece) {
    const int blocks = (p.linear[piece].rows + kRows - 1) / kRows;
    if (block < blocks) break;
    block -= blocks;
  }
  return {piece, block * kRows};
}

template <class Weights, int kBatch, int kRows>
struct MatrixProduct {
  using E = BFloat16;
  using Shape = MatrixShape<Weights, kBatch, kRows>;
  static constexpr bool kWhole = Shape::kWhole;
  static constexpr int kChains = Shape::kChains, kStrips = Shape::kStrips, kUnits = Shape::kUnits;
  static constexpr int kSplit = Shape::kSplit, kSides = Shape::kSides;
  static constexpr int kLaneRows = Shape::kLaneRows, kLoads = Shape::kLoads, kColumns = Shape::kColumns;
  static constexpr int kTileSteps = Shape::kTileSteps, kStepBytes = Shape::kStepBytes, kDepth = Shape::kDepth;

  struct Step {
    typename Weights::Load load[kChains][kLaneRows][kLoads];
    uint32_t scale[Weights::kGroups ? kChains : 1][kColumns], offset[Weights::kGroups ? kChains : 1][kColumns];
  };

  const ProductParams& p;
  MatrixInputs<Weights, Shape> inputs;
  int piece, row0;                    // as BlockRows
  uint32_t from[kChains][kLaneRows];  // bytes from the weights' begin to a lane's first
  uint32_t groups_at[Weights::kGroups ? kChains : 1][kColumns];
  Strip<E> sum[kChains][kStrips];

  XLSTM_DEVICE static int across() { return wave_id() / kAlong; }
  XLSTM_DEVICE static int along() { return wave_id() % kAlong; }

  // Where a row of the block is: beyond a piece's last, the last again.
  struct Place {
    int piece, row;
  };
  XLSTM_DEVICE Place place(int slot) const {
    const bool both = p.output == Output::swiglu;
    const int of = both ? piece + slot / (kRows / 2) : piece, row = row0 + (both ? slot % (kRows / 2) : slot);
    const int rows = p.linear[of].rows;
    return {of, row < rows ? row : rows - 1};
  }

  XLSTM_DEVICE static int first_row(const ProductParams& p) { return int(blockIdx.x) % passes<kBatch>(p) * kBatch; }
  XLSTM_DEVICE static int rows_from(const ProductParams& p, int first) {
    return p.batch - first < kBatch ? p.batch - first : kBatch;
  }

  XLSTM_DEVICE MatrixProduct(const ProductParams& params, const BlockRows& rows, typename Shape::Memory& lds,
                             char* whole)
      : p(params),
        inputs(params, lds, whole, first_row(params), rows_from(params, first_row(params))),
        piece(rows.piece),
        row0(rows.first) {
    const int lane = lane_id();
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int slot = (across() * kChains + c) * kStripColumns;
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const Place at = place(slot + row_of_lane(kFamily, lane, j));
        const DeviceLinear& w = p.linear[at.piece];
        const int first_load = along() * kStepBytes + load_offset(kFamily, Weights::kBits, lane, 0);
        from[c][j] = made_here(uint32_t(at.row) * uint32_t(w.row_bytes) + uint32_t(first_load));
      }
      if constexpr (Weights::kGroups)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const Place at = place(slot + Columns::position(j));
          groups_at[c][j] = made_here(uint32_t(at.row) * uint32_t(p.linear[at.piece].groups));
        }
    }
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
  XLSTM_DEVICE const DeviceLinear& linear_of(int chain) const {
    const bool second = p.output == Output::swiglu && (across() * kChains + chain) * kStripColumns >= kRows / 2;
    return p.linear[second ? 1 : piece];
  }

  XLSTM_DEVICE void fetch(Step& step, int tile) const {
    const DeviceLinear& w = p.linear[piece];
    const bool all = (tile + 1) * kTileFeatures <= p.columns;
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const char* const base = static_cast<const char*>(linear_of(c).data);
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j)
#pragma unroll
        for (int l = 0; l < kLoads; ++l) {
          constexpr int kNext = load_offset(kFamily, Weights::kBits, 0, 1);
          uint32_t at = from[c][j] + uint32_t(tile * (kTileSteps * kStepBytes) + l * kNext);
          if (!all) {  // what lies beyond the columns is met by zeros: the first weights stand in for it
            const int own = tile * (kTileSteps * kStepBytes) + along() * kStepBytes;
            at = own + load_offset(kFamily, Weights::kBits, lane_id(), l) < int(w.row_bytes) ? at : 0;
          }
          step.load[c][j][l] = read_load(base, at);
        }
    }
    if constexpr (Weights::kGroups) {
      int group = (tile * kTileSteps + along()) >> (w.group_size > kStepFeatures ? 1 : 0);
      group = group < w.groups ? group : 0;
      with_dtype(w.dtype, [&](auto element) {
        using T = decltype(element);
#pragma unroll
        for (int c = 0; c < kChains; ++c)
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            const DeviceLinear& own = linear_of(c);
            const uint32_t at = groups_at[c][j] + uint32_t(group);
            step.scale[c][j] = element_bits(static_cast<const T*>(own.scales)[at]);
            if (own.offsets) step.offset[c][j] = element_bits(static_cast<const T*>(own.offsets)[at]);
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

  // Step `at` of those in the buffer.
  XLSTM_DEVICE void multiply_step(const Step& step, int buffer, int at) {
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
          const PiecePosition own = stream_piece(kFamily, sizeof(E), lane, j);
          stream[j] = read_piece(inputs.slot(buffer, at * kUnits + u, s, own.row, own.feature / kEight));
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
      const DeviceLinear& w = p.linear[piece];
      const float* const all = inputs.step_sums(buffer, at);
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
              to = __builtin_fmaf(offset, all[kWhole ? 0 : s * 2 * kSplit + row], to);
          }
      }
  }

  XLSTM_DEVICE void run() {
    constexpr int kBuffers = Shape::kBuffers;
    const int tiles = tiles_of(p.columns);
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s) sum[c][s].zero();
    Step held[kDepth];
    if constexpr (!kWhole) inputs.fetch(0);
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (d < tiles) fetch(held[d], d);
    inputs.measure_rows();
    if constexpr (kWhole) {
      for (int tile = int(threadIdx.x) / Shape::kRowEights; tile < tiles; tile += kProductThreads / Shape::kRowEights) {
        inputs.fetch(tile);
        inputs.store(tile, 0);
      }
    } else {
      inputs.store(0, 0);
    }
    __syncthreads();
    for (int begin = 0; begin < tiles; begin += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int tile = begin + d;
        if (tile < tiles) {
          const bool more = !kWhole && tile + 1 < tiles;
          if (more) inputs.fetch(tile + 1);
          multiply_step(held[d], kWhole ? 0 : tile % kBuffers, along() + (kWhole ? tile * kTileSteps : 0));
          if (tile + kDepth < tiles) fetch(held[d], tile + kDepth);
          if constexpr (!kWhole) {
            if constexpr (kBuffers == 1) __syncthreads();
            if (more) inputs.store(tile + 1, (tile + 1) % kBuffers);
            __syncthreads();
          }
        }
      }
    }
    if constexpr (kWhole) __syncthreads();
    finish();
  }

  // ---- sums of the waves, one after the other, and what becomes of them

  XLSTM_DEVICE void finish() {
    float* const all = reinterpret_cast<float*>(inputs.memory);
    inputs.make_inverses();
    for (int wave = 0; wave < kAlong; ++wave) {
      if (wave == along())
#pragma unroll
        for (int c = 0; c < kChains; ++c)
#pragma unroll
          for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int r = 0; r < Strip<E>::kRegisters; ++r) {
              const StripPosition at = Strip<E>::position(r);
              float& to = all[(s * 2 * kSplit + at.row) * kRows + (across() * kChains + c) * kStripColumns + at.column];
              to = wave == 0 ? sum[c][s].value[r] : to + sum[c][s].value[r];
            }
      __syncthreads();
    }
    const bool both = p.output == Output::swiglu;
    const int own = both ? kRows / 2 : kRows;
    for (int n = threadIdx.x; n < own * inputs.count; n += kProductThreads) {
      const int slot = n % own, b = n / own, row = row0 + slot;
      if (row >= p.linear[piece].rows) continue;
      const auto product = [&](int of, int slot) {
        const float* const at = all + (b / kSplit * (2 * kSplit) + b % kSplit) * kRows + slot;
        const DeviceLinear& w = p.linear[of];
        const float y = (at[0] + at[kSplit * kRows]) * (inputs.late() ? inputs.inverses()[b] : 1.0f);
        return w.bias.data ? y + value_of(w.bias, row) : y;
      };
      const float y = product(piece, slot);
      put(p, p.output, piece, row, inputs.first + b, both ? swiglu(y, product(1, slot + own)) : y);
    }
  }
};

template <class Weights, int kBatch, int kRows>
XLSTM_DEVICE void run_matrix_product(const ProductParams& p, const BlockRows& rows, char* lds, char* whole) {
  using Product = MatrixProduct<Weights, kBatch, kRows>;
  Product(p, rows, *reinterpret_cast<typename Product::Shape::Memory*>(lds), whole).run();
}

// Of a CU: where rows are few, so are blocks, each with more weights on their way.
template <class Weights>
constexpr int blocks_at_least(int batch, int rows) {
  return rows == 32 || batch > 8 || (batch > 1 && Weights::kGroups) ? 1 : batch > 1 || Weights::kGroups ? 2 : 3;
}

template <class Weights, int kBatch, int kRows>
__global__ __launch_bounds__(kProductThreads, blocks_at_least<Weights>(kBatch, kRows)) void matrix_products(
    const XLSTM_READ_IN_PLACE ProductParams given) {
  if constexpr (has_matrix_kernel(kFamily, kBatch, Weights::kConverted)) {
    const ProductParams& p = *only_param(given);
    const BlockRows rows = rows_of_block<kBatch, kRows>(p);
    // What groups need is more than what others do.
    __shared__ __align__(16) char lds[sizeof(typename MatrixShape<Weights, kBatch, kRows>::Memory)];
    extern __shared__ __align__(128) char whole[];
    if constexpr (Weights::kGroups)  // gates stay as they were
      if (p.linear[rows.piece].bits == 0)
        return run_matrix_product<Bfloat16Weights, kBatch, kRows>(p, rows, lds, whole);
    run_matrix_product<Weights, kBatch, kRows>(p, rows, lds, whole);
  }
}

}  // namespace xlstm::gpu
