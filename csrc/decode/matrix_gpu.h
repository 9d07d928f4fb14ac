// SPDX-License-Identifier: Apache-2.0
// y = W x for up to kBatch x's on matrix units, with what stands before and after it in a step (decode/rows_gpu.h).
//
// A block makes kRows rows of W for all x's of its pass, so that memory gives each weight once: passes of one block's
// weights follow each other in the grid, and the second finds them in L2. Four waves share rows and take 64 features in
// turns; weights go from memory to registers, kHeld bytes of a lane ahead of their use, and x's through LDS, 256
// features at a time, made anew by every block and split into two bfloat16 (decode/matrix_shape.h). Both keep 16 bits
// of a float, weights are exact, sums are float: an error of 2^-18 of each x at most.
//
// RMS norms are a factor of each row of the batch, found while x's go by and applied to sums; a norm of heads, or one
// with a bias, measures x's first, while weights are on their way.
//
// Sums are made in one order of features for every kBatch and kRows: a row of the batch has the same result in any
// company of such a kernel.
#pragma once

#include "decode/matrix_weights_gpu.h"
#include "decode/rows_gpu.h"
#include "tile/columns.h"

namespace xlstm::gpu {

static_assert(kMatrixThreads == kProductThreads);

template <class Weights, int kBatch, int kRows>
struct MatrixProduct {
  using E = BFloat16;
  static constexpr int kChains = chains(kFamily, kRows), kStrips = kBatch / split_rows(kFamily);
  static constexpr int kSplit = split_rows(kFamily), kSides = 2 * kBatch;
  static constexpr int kLaneRows = lane_rows(kFamily), kLoads = lane_loads(kFamily, Weights::kBits);
  static constexpr int kColumns = Columns::kEach;
  static constexpr int kTileBytes = kTileFeatures * kSides * 2;
  static constexpr int kBuffers = kTileBytes <= 8 << 10 ? 2 : 1;
  // Weights on their way to a lane, in registers: steps ahead.
  static constexpr int kHeld = kRows > 32 ? 32 : 64;
  static constexpr int kStepWords = kChains * (kLaneRows * kLoads * int(sizeof(typename Weights::Load)) / 4 +
                                               (Weights::kGroups ? 2 * kColumns : 0));
  static constexpr int kDepth = kStepWords >= kHeld ? 1 : kHeld / kStepWords > 8 ? 8 : kHeld / kStepWords;
  static constexpr int kEach = kBatch / (kProductThreads / (kTileFeatures / kEight));  // eights of x's of a thread
  static constexpr int kTileSteps = kTileFeatures / kStepFeatures;

  struct Memory {
    alignas(16) char tile[kBuffers][kTileBytes];  // in the end sums, kRows of kSides
    float sums[kBuffers][Weights::kGroups ? kTileSteps : 1][kSides];  // of a step's x's
    Spread spread[kBatch * kMostMatrixHeads];
  };
  static_assert(kRows * kSides * 4 <= kBuffers * kTileBytes);

  struct Step {
    typename Weights::Load load[kChains][kLaneRows][kLoads];
    uint32_t scale[Weights::kGroups ? kChains : 1][kColumns], offset[Weights::kGroups ? kChains : 1][kColumns];
  };

  const ProductParams& p;
  Memory& lds;
  int first, count;  // rows of the batch
  int piece, row0;   // the block's rows: those of a piece, or half of them of each of the first two
  const char* from[kChains][kLaneRows];
  int64_t groups_at[Weights::kGroups ? kChains : 1][kColumns];
  Strip<E> sum[kChains][kStrips];
  float x[kEach][kEight], gate[kEach][kEight], squares[kEach];

  XLSTM_DEVICE static int across() { return wave_id() / kAlong; }
  XLSTM_DEVICE static int along() { return wave_id() % kAlong; }
  XLSTM_DEVICE bool late() const { return p.input == Input::rms && !p.bias.data; }

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

  XLSTM_DEVICE MatrixProduct(const ProductParams& params, Memory& memory) : p(params), lds(memory) {
    const int passes = (p.batch + kBatch - 1) / kBatch;
    first = int(blockIdx.x) % passes * kBatch;
    count = p.batch - first < kBatch ? p.batch - first : kBatch;
    int block = int(blockIdx.x) / passes;
    piece = 0;
    if (p.output == Output::swiglu) {
      row0 = block * (kRows / 2);
    } else {
      for (; piece + 1 < p.pieces; ++piece) {
        const int blocks = (p.linear[piece].rows + kRows - 1) / kRows;
        if (block < blocks) break;
        block -= blocks;
      }
      row0 = block * kRows;
    }
    const int lane = lane_id();
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int slot = (across() * kChains + c) * kStripColumns;
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const Place at = place(slot + row_of_lane(kFamily, lane, j));
        const DeviceLinear& w = p.linear[at.piece];
        from[c][j] = static_cast<const char*>(w.data) + int64_t(at.row) * w.row_bytes;
      }
      if constexpr (Weights::kGroups)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const Place at = place(slot + Columns::position(j));
          groups_at[c][j] = int64_t(at.row) * p.linear[at.piece].groups;
        }
#pragma unroll
      for (int s = 0; s < kStrips; ++s) sum[c][s].zero();
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) squares[j] = 0;
  }

  // ---- weights

  XLSTM_DEVICE static uint32_t half_at(const void* data, int64_t at) { return static_cast<const uint16_t*>(data)[at]; }
  XLSTM_DEVICE static float scale_of(xlstm_dtype dtype, uint32_t bits) {
    return dtype == XLSTM_FLOAT32    ? as_float(bits)
           : dtype == XLSTM_BFLOAT16 ? low_float(BFloat16{}, bits)
                                     : low_float(Float16{}, bits);
  }
  XLSTM_DEVICE static uint32_t scale_bits(const void* data, xlstm_dtype dtype, int64_t at) {
    return dtype == XLSTM_FLOAT32 ? static_cast<const uint32_t*>(data)[at] : half_at(data, at);
  }

  // What lies beyond the columns is met by zeros: the row's first bytes stand in for it.
  XLSTM_DEVICE void fetch(Step& step, int tile) const {
    const DeviceLinear& w = p.linear[piece];
    const int at = (tile * kTileSteps + along()) * (kStepFeatures * Weights::kBits / 8);
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      int offset = at + load_offset(kFamily, Weights::kBits, lane_id(), l);
      offset = offset < w.row_bytes ? offset : 0;
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int j = 0; j < kLaneRows; ++j) step.load[c][j][l] = read_load(from[c][j] + offset);
    }
    if constexpr (Weights::kGroups) {
      int group = (tile * kTileSteps + along()) * kStepFeatures / w.group_size;
      group = group < w.groups ? group : 0;
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const DeviceLinear& own = p.linear[place((across() * kChains + c) * kStripColumns).piece];
          step.scale[c][j] = scale_bits(own.scales, own.dtype, groups_at[c][j] + group);
          step.offset[c][j] = own.offsets ? scale_bits(own.offsets, own.dtype, groups_at[c][j] + group) : 0;
        }
    }
  }
  XLSTM_DEVICE static typename Weights::Load read_load(const char* from) {
    if constexpr (sizeof(typename Weights::Load) == 16)
      return read_piece(from);
    else
      return __builtin_bit_cast(typename Weights::Load, *reinterpret_cast<const uint64_t*>(from));
  }

  // ---- x's: a thread has eight features of every eighth row of the batch

  XLSTM_DEVICE static int own_eight() { return int(threadIdx.x) % (kTileFeatures / kEight); }
  XLSTM_DEVICE static int own_row(int j) {
    constexpr int kAtOnce = kProductThreads / (kTileFeatures / kEight);
    return int(threadIdx.x) / (kTileFeatures / kEight) + j * kAtOnce;
  }
  XLSTM_DEVICE static void read_eight(const float* from, float (&to)[kEight]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Piece four = read_piece(from + 4 * h);
#pragma unroll
      for (int e = 0; e < 4; ++e) to[4 * h + e] = as_float(four.word[e]);
    }
  }
  XLSTM_DEVICE static void read_eight(const DeviceVector& from, int k, float (&to)[kEight]) {
    if (from.dtype == XLSTM_FLOAT32) return read_eight(static_cast<const float*>(from.data) + k, to);
    const Piece eight = read_piece(static_cast<const uint16_t*>(from.data) + k);
    const bool brain = from.dtype == XLSTM_BFLOAT16;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      to[2 * w] = brain ? low_float(BFloat16{}, eight.word[w]) : low_float(Float16{}, eight.word[w]);
      to[2 * w + 1] = brain ? high_float(BFloat16{}, eight.word[w]) : high_float(Float16{}, eight.word[w]);
    }
  }
  XLSTM_DEVICE void fetch_inputs(int tile) {
    const int k = tile * kTileFeatures + own_eight() * kEight;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const bool there = own_row(j) < count && k < p.columns;
      const int64_t at = there ? int64_t(first + own_row(j)) * p.columns + k : 0;
      read_eight(p.x + at, x[j]);
      if (p.input == Input::heads) read_eight(p.gate + at, gate[j]);
    }
  }
  XLSTM_DEVICE void store_inputs(int tile, int buffer) {
    constexpr int kStepEights = kStepFeatures / kEight;
    const int k = tile * kTileFeatures + own_eight() * kEight;
    const bool inside = k < p.columns;
    float weight[kEight];
    if (p.input != Input::plain && inside) read_eight(p.weight, k, weight);
    const EightPlace at = eight_place(kFamily, Weights::kBits, own_eight() % kStepEights);
    const int unit = own_eight() / kStepEights * (tile_units(kFamily) / kTileSteps) + at.unit;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int b = own_row(j);
      float y[kEight], all = 0;
#pragma unroll
      for (int e = 0; e < kEight; ++e) y[e] = b < count && inside ? x[j][e] : 0.0f;
      if (p.input != Input::plain && b < count && inside) {
        if (late()) {
#pragma unroll
          for (int e = 0; e < kEight; ++e) {
            squares[j] += y[e] * y[e];
            y[e] *= weight[e];
          }
        } else {
          normalise(y, gate[j], b, k, weight);
        }
      }
      Piece upper, lower;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float low = y[eight_feature(Weights::kBits, 2 * w)], high = y[eight_feature(Weights::kBits, 2 * w + 1)];
        upper.word[w] = pack(E{}, low, high);
        lower.word[w] = pack(E{}, low - low_float(E{}, upper.word[w]), high - high_float(E{}, upper.word[w]));
      }
      char* const strip = lds.tile[buffer] + (unit * kStrips + b / kSplit) * strip_slots(kFamily) * kSlotBytes;
      *reinterpret_cast<Piece*>(strip + slot_in_strip(kFamily, b % kSplit, at.piece) * kSlotBytes) = upper;
      *reinterpret_cast<Piece*>(strip + slot_in_strip(kFamily, kSplit + b % kSplit, at.piece) * kSlotBytes) = lower;
      if constexpr (Weights::kGroups) {
#pragma unroll
        for (int e = 0; e < kEight; ++e) all += y[e];
#pragma unroll
        for (int mask = 1; mask < kStepEights; mask *= 2) all += shuffle_xor(all, mask);
        if (own_eight() % kStepEights == 0) {
          float* const to = lds.sums[buffer][own_eight() / kStepEights] + b / kSplit * (2 * kSplit) + b % kSplit;
          to[0] = all, to[kSplit] = 0;
        }
      }
    }
  }
  XLSTM_DEVICE void normalise(float (&y)[kEight], const float (&gate)[kEight], int b, int k,
                              const float (&weight)[kEight]) const {
    const bool heads = p.input == Input::heads;
    const int size = heads ? p.columns / p.heads : p.columns;
    int head = k / size, rest = k % size;
    const Spread* const spread = lds.spread + b * (heads ? p.heads : 1);
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      const Spread s = spread[head];
      y[e] = (y[e] - s.mean) * s.inverse * weight[e];
      if (p.bias.data) y[e] += value_of(p.bias, k + e);
      if (heads) y[e] *= sigmoid_of(gate[e]);
      if (++rest == size) ++head, rest = 0;
    }
  }

  // ---- products

  XLSTM_DEVICE void multiply_step(const Step& step, int buffer) {
    constexpr int kUnits = tile_units(kFamily) / kTileSteps, kEights = load_eights(Weights::kBits);
    const int lane = lane_id();
    Strip<E> part[Weights::kGroups ? kChains : 1][Weights::kGroups ? kStrips : 1];
    if constexpr (Weights::kGroups)
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int s = 0; s < kStrips; ++s) part[c][s].zero();
    const char* const inputs = lds.tile[buffer] + lane % stream_slots(kFamily) * kSlotBytes;
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
        const int strip = (along() * kUnits + u) * kStrips + s;
#pragma unroll
        for (int j = 0; j < kStreamPieces<E>; ++j)
          stream[j] = read_piece(inputs + (strip * strip_slots(kFamily) + j * stream_slots(kFamily)) * kSlotBytes);
#pragma unroll
        for (int k = 0; k < kUnitSteps<E>; ++k) {
          const StreamOperand<E> b = stream_of<E>(stream, k);
#pragma unroll
          for (int c = 0; c < kChains; ++c)
#pragma unroll
            for (int h = 0; h < Weights::kParts; ++h)
              multiply(Weights::kGroups ? part[c % (Weights::kGroups ? kChains : 1)][s % (Weights::kGroups ? kStrips : 1)]
                                        : sum[c][s],
                       b, chain_of_pieces<E>(chain[c][h], k));
        }
      }
    }
    if constexpr (Weights::kGroups) {
      const float* const all = lds.sums[buffer][along()];
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        const DeviceLinear& w = p.linear[place((across() * kChains + c) * kStripColumns).piece];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const float scale = scale_of(w.dtype, step.scale[c][j]);
          const float offset = w.offsets ? scale_of(w.dtype, step.offset[c][j]) + Weights::kZero * scale : 0.0f;
#pragma unroll
          for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int r = 0; r < Strip<E>::kRegisters; ++r)
              if (Columns::of(r) == j)
                sum[c][s].value[r] += scale * part[c][s].value[r] + offset * all[s * 2 * kSplit + Strip<E>::position(r).row];
        }
      }
    }
  }

  XLSTM_DEVICE void run() {
    const int tiles = (p.columns + kTileFeatures - 1) / kTileFeatures;
    Step held[kDepth];
    fetch_inputs(0);
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (d < tiles) fetch(held[d], d);
    if (p.input == Input::heads)
      measure<Input::heads>(p, first, count, lds.spread);
    else if (p.input == Input::rms && !late())
      measure<Input::rms>(p, first, count, lds.spread);
    if (!late()) __syncthreads();
    store_inputs(0, 0);
    __syncthreads();
    for (int begin = 0; begin < tiles; begin += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int tile = begin + d;
        if (tile >= tiles) break;
        const bool more = tile + 1 < tiles;
        if (more) fetch_inputs(tile + 1);
        multiply_step(held[d], tile % kBuffers);
        if (tile + kDepth < tiles) fetch(held[d], tile + kDepth);
        if constexpr (kBuffers == 1) __syncthreads();
        if (more) store_inputs(tile + 1, (tile + 1) % kBuffers);
        __syncthreads();
      }
    }
    finish();
  }

  // ---- sums of the waves, one after the other, and what becomes of them

  XLSTM_DEVICE void finish() {
    float* const all = reinterpret_cast<float*>(lds.tile);
    float* const inverse = &lds.spread[0].mean;
    if (late())
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        float x = squares[j];
#pragma unroll
        for (int mask = 1; mask < kTileFeatures / kEight; mask *= 2) x += shuffle_xor(x, mask);
        if (own_eight() == 0) inverse[own_row(j)] = 1 / __builtin_sqrtf(x / float(p.columns) + p.norm_eps);
      }
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
    for (int n = threadIdx.x; n < own * count; n += kProductThreads) {
      const int slot = n % own, b = n / own, row = row0 + slot;
      if (row >= p.linear[piece].rows) continue;
      const auto product = [&](int of, int slot) {
        const float* const at = all + (b / kSplit * (2 * kSplit) + b % kSplit) * kRows + slot;
        const DeviceLinear& w = p.linear[of];
        const float y = (at[0] + at[kSplit * kRows]) * (late() ? inverse[b] : 1.0f);
        return w.bias.data ? y + value_of(w.bias, row) : y;
      };
      const float y = product(piece, slot);
      put(p, p.output, piece, row, first + b, both ? swiglu(y, product(1, slot + own)) : y);
    }
  }
};

template <class Weights, int kBatch, int kRows>
__global__ __launch_bounds__(kProductThreads, kBatch * kRows > 8 * 64 || kRows == 32 ? 1 : 2) void matrix_products(const XLSTM_READ_IN_PLACE ProductParams given) {
  if constexpr (has_matrix_kernel(kFamily, kBatch)) {
    using Product = MatrixProduct<Weights, kBatch, kRows>;
    __shared__ typename Product::Memory lds;
    Product(*only_param(given), lds).run();
  }
}

}  // namespace xlstm::gpu
