// SPDX-License-Identifier: Apache-2.0
// How a product of weights with few x's lies on the matrix units of each GPU family: which features a lane reads, and
// where x must lie in LDS to meet them. Host code, kernels and tests use the same functions.
//
// Weights are the chain operand, 16 rows at a time, and go from memory to registers as they are. The x's are the stream
// operand: each float is split into two bfloat16, so one row of the batch is two rows of a strip, whose sums are added
// up at the end. k goes by vec8s: 8 features of one row, 16 bytes of bfloat16, in the order in which a lane's loads
// deliver the weights.
#pragma once

#include "arch/layouts.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

constexpr int kStepFeatures = 64;    // of a wave at a time; a group of quantised weights has one or two steps
constexpr int kChunkFeatures = 256;  // that 32 threads load of one x
constexpr int kGemmMmaThreads = 256;
constexpr int kGemmMmaBatch[] = {1, 8, 16};  // the rows of the batch that kernels are made for
constexpr int kMaxSingleFeatures = 11264;    // the longest single x (batch 1) that LDS holds
constexpr int kGemmMmaRows[] = {16, 32};     // the rows of weights in a unit of work

// Split-K across a block's waves: all waves have the same rows of weights and take steps of features in turn.
constexpr int split_k_waves(Family f) { return kGemmMmaThreads / wave_size(f); }
constexpr int tile_features(Family f) { return split_k_waves(f) * kStepFeatures; }
constexpr int tiles_of(Family f, int columns) { return (columns + tile_features(f) - 1) / tile_features(f); }
// The rows of the batch in a strip, which holds each of them twice.
constexpr int split_rows(Family f) { return strip_step(f, 2) / 2; }
constexpr int batch_strips(Family f, int batch) { return batch == 1 ? 1 : batch / split_rows(f); }
// RDNA3's operands, which both halves of a wave hold, leave registers for 8 rows of the batch. RDNA4's LDS holds a tile
// of x for 16 rows, since its eight waves take eight steps of features at a time. NVIDIA
// packs more than eight rows, CDNA has other kernels for more than one.
constexpr int most_unpacked(Family f) { return f == Family::cdna ? 1 : f == Family::rdna4 ? 16 : 8; }
constexpr bool has_gemm_mma(Family f, int batch) {
  return batch == 1 || (batch >= split_rows(f) && batch <= most_unpacked(f));
}
constexpr bool has_gemm_mma_rows(int batch, int rows) { return rows == 32 || batch <= 8; }

// ---- the vec8s of a step that a lane loads, and the row of weights they belong to

constexpr int lanes_of_row(Family f) { return f == Family::rdna ? 1 : f == Family::rdna4 ? 2 : 4; }
constexpr int lane_rows(Family f) { return f == Family::nvidia ? 2 : 1; }  // of the strip's 16
constexpr int lane_vec8s(Family f) { return kStepFeatures / kVec8 / lanes_of_row(f); }
constexpr int unit_vec8s(Family f) { return f == Family::rdna ? 2 : 1; }  // of a lane in a unit of features

constexpr int load_bytes(int bits) { return bits == 4 ? 8 : 16; }
constexpr int load_vec8s(int bits) { return load_bytes(bits) * 8 / bits / kVec8; }
constexpr int lane_loads(Family f, int bits) { return lane_vec8s(f) / load_vec8s(bits); }

constexpr int row_of_lane(Family f, int lane, int j) { return f == Family::nvidia ? lane / 4 + 8 * j : lane % 16; }
// The lane's index among those that share a row.
constexpr int lane_in_row(Family f, int lane) {
  return f == Family::nvidia ? lane % 4 : f == Family::rdna ? 0 : lane / 16;
}
// The first byte of a lane's load within a row's step.
constexpr int load_offset(Family f, int bits, int lane, int load) {
  return (load * lanes_of_row(f) + lane_in_row(f, lane)) * load_bytes(bits);
}

// ---- x in LDS: units of features; in a unit, strips; in a strip, the vec16s of each lane, one after the other

constexpr int kSlotBytes = 16;
constexpr int stream_slots(Family f) {
  return f == Family::rdna ? 16 : wave_size(f);
}  // per vec16: the lanes that read different rows
constexpr int strip_slots(Family f) { return stream_slots(f) * stream_vec16s(f, 2); }
// The first half of a strip's rows are the upper bfloat16 parts of the rows of the batch, the second half the lower
// parts. Lanes that store together store the vec8s of one row's step: slots are permuted by unit and vec16, so that
// these stores are free of bank conflicts and lanes that read together still read a whole line.
constexpr int slot_in_strip(Family f, int unit, int row, int vec16) {
  if (f == Family::nvidia) return (row * 4 + vec16) ^ ((unit & 1) * 4);
  if (is_rdna(f)) return vec16 * 16 + (row ^ (unit % 4 * 2) ^ vec16);
  return row / 4 % 2 * 64 + vec16 * 16 + ((row / 8 * 4 + row % 4) ^ (unit % 2 * 4) ^ vec16);
}

// At batch 1 all rows of half a strip are the same x, so lanes share what they read. Where a strip has more rows than
// one matrix instruction, one instruction's rows are enough: the two parts of x alternate in them, and the other half
// of the strip is not computed.
constexpr bool single_in_half(Family f) { return !is_rdna(f); }
constexpr int single_part(Family f, int row) { return single_in_half(f) ? row % 2 : row / split_rows(f); }
// The first row of a part.
constexpr int single_row(Family f, int part) { return single_in_half(f) ? part : part * split_rows(f); }
constexpr int single_unit_slots(Family f) { return 2 * unit_features(f, 2) / kVec8; }
constexpr int single_slot(Family f, int unit, int row, int vec16) {
  const int vec16s = unit_features(f, 2) / kVec8, swizzle = is_rdna(f) ? unit / 2 % 2 : unit & 1;
  return (single_part(f, row) * vec16s + vec16) ^ (swizzle * vec16s);
}

// The bytes of a tile of x in LDS: two bfloat16 of each feature, and the sums of steps that offsets of groups are
// multiplied by.
constexpr int x_tile_bytes(Family f, int batch, bool groups) {
  return batch * (tile_features(f) * 4 + (groups ? split_k_waves(f) * 4 : 0));
}
// The bytes of one wave's sums, and how many waves store their sums side by side. There are two such buffers, used
// alternately.
constexpr int wave_sum_bytes(Family f, int batch, int rows) {
  return rows * (batch == 1 ? 2 : 2 * split_rows(f) * batch_strips(f, batch)) * 4;
}
constexpr int waves_at_once(Family f, int batch, int rows) {
  int waves = split_k_waves(f);
  while (waves > 1 && waves * wave_sum_bytes(f, batch, rows) > 8 << 10) waves /= 2;
  return waves;
}
constexpr int sum_buffer_bytes(Family f, int batch, int rows) {
  return 2 * waves_at_once(f, batch, rows) * wave_sum_bytes(f, batch, rows);
}
// The remaining LDS of a kernel: the statistics of an RMS norm.
constexpr int kMaxStageBytes = 192 << 10;  // bytes of x in LDS
constexpr int norm_stats_bytes(int batch) {
  const int chunks = batch == 1 ? kMaxSingleFeatures / kChunkFeatures : kMaxStageBytes / (batch * 4 * kChunkFeatures);
  return batch * (1 + chunks) * 4;
}
// The tiles of x that fit into the LDS that is left.
constexpr int tiles_in_lds(Family f, int batch, int rows, bool groups, int other_bytes, int lds_bytes) {
  const int bytes_left = lds_bytes - norm_stats_bytes(batch) - sum_buffer_bytes(f, batch, rows) - other_bytes;
  const int max_bytes = batch == 1 ? bytes_left : kMaxStageBytes;
  return bytes_left <= 0 ? 0 : (bytes_left < max_bytes ? bytes_left : max_bytes) / x_tile_bytes(f, batch, groups);
}

// The pipeline of weights, some steps deep. On NVIDIA it is a ring in LDS, where x leaves enough of it, because a warp
// waits for all its loads to registers at once (arch/nvidia/cp_async_ring.h). Elsewhere registers hold it; its depth
// fits the smallest LDS of the family's chips, since a step's place in the order of sums must not depend on the chip.
constexpr bool has_ring(Family f, int batch) { return f == Family::nvidia && batch <= 8; }
// Whether one half of a strip may be rows of SwiGLU's gate linear and the other half rows of its up linear: the lanes
// of a ring can load rows of both.
constexpr bool has_mixed_strip(Family f, int bits, int batch) { return has_ring(f, batch) && bits == 16; }
constexpr int ring_step_bytes(Family f, int bits, int rows) { return rows * tile_features(f) * bits / 8; }
constexpr int most_groups(int columns) { return (columns + kStepFeatures - 1) / kStepFeatures; }
// The bytes of the scales, or the offsets, of a unit's rows, for kernels with a ring.
constexpr int unit_group_bytes(int rows, int groups) { return rows * groups * 2; }

constexpr int kMinLds[] = {99 << 10, 64 << 10, 64 << 10, 64 << 10};  // NVIDIA, CDNA, RDNA3, RDNA4
constexpr int gemm_mma_depth(Family f, int bits, int batch, int rows) {
  const bool has_groups = bits < 16;
  if (has_ring(f, batch))
    return ((batch == 1 && has_groups ? 40 : has_groups ? 48 : 64) << 10) / ring_step_bytes(f, bits, rows);
  // CDNA's waves of 64 have twice the bytes, and RDNA3 keeps operands twice.
  const int max_words = f == Family::rdna || (f == Family::cdna && has_groups) ? 32 : 64;
  const int words =
      rows / kStripColumns *
      (lane_rows(f) * lane_loads(f, bits) * load_bytes(bits) / 4 + (has_groups ? 2 * lane_columns(f) : 0));
  const int max_depth = batch == 1 ? 8 : tiles_in_lds(f, batch, rows, has_groups, 0, kMinLds[int(f)]);
  int depth = 8;
  while (depth > 1 && (depth * words > max_words || depth > max_depth)) depth /= 2;
  return depth;
}

// The bytes of a ring and of two units' scales and offsets.
constexpr int weight_ring_bytes(Family f, int bits, int batch, int rows, int columns) {
  if (!has_ring(f, batch)) return 0;
  const int groups = bits < 16 ? 2 * 2 * unit_group_bytes(rows, most_groups(columns)) : 0;
  return gemm_mma_depth(f, bits, batch, rows) * ring_step_bytes(f, bits, rows) + groups;
}

// The tiles of x that LDS holds at once: all; or a multiple of the pipeline's depth; or 0 if LDS is too small. And the
// LDS that a launch asks for.
constexpr int gemm_mma_stage_tiles(Family f, int bits, int batch, int rows, int columns, int lds_bytes) {
  const int ring = weight_ring_bytes(f, bits, batch, rows, columns);
  const int tiles = tiles_of(f, columns), fit = tiles_in_lds(f, batch, rows, bits < 16, ring, lds_bytes);
  if (fit >= tiles) return tiles;
  return batch == 1 ? 0 : has_ring(f, batch) ? fit : fit - fit % gemm_mma_depth(f, bits, batch, rows);
}
constexpr int gemm_mma_lds_bytes(Family f, int bits, int batch, int rows, int columns, int lds_bytes) {
  return gemm_mma_stage_tiles(f, bits, batch, rows, columns, lds_bytes) * x_tile_bytes(f, batch, bits < 16) +
         sum_buffer_bytes(f, batch, rows) + weight_ring_bytes(f, bits, batch, rows, columns);
}

// The blocks that a CU holds at once.
constexpr int gemm_mma_blocks_per_cu(Family f, int batch) { return batch == 1 && !is_rdna(f) ? 2 : 1; }

// ---- gemm_batch_kernel, for two to eight rows of x on CDNA

constexpr int kMostBatchRows = 8;
constexpr int kBatchChains = 2;  // strips of weights that a wave has; SwiGLU's two linears have one each
constexpr int kMostBatchThreads = 512;
constexpr int kBatchShards = 4;  // sums of an output: sums of every fourth step, in one block or in four
constexpr int kBatchUnroll = 4;  // steps
// Steps of weights and x that are in flight for a wave: as many as registers hold beside the sums.
constexpr int batch_depth(int bits, int sets) {
  const bool groups = bits < 16;
  const int sums = kBatchChains * kMostBatchRows / 2 * (sets + groups);
  const int step = kBatchChains * bits / 2 + kMostBatchRows + (groups ? kMostBatchRows / 2 + 2 * kBatchChains : 0);
  const int left = (groups ? 176 : 200) - sums;
  return left >= 4 * step ? 4 : left >= 2 * step ? 2 : 1;
}
// LDS for a norm's weights, one step more than there are, and how much of it a block may have.
constexpr int batch_lds_bytes(Family f, int columns) {
  return (tiles_of(f, columns) * tile_features(f) + kStepFeatures) * 4;
}
constexpr int kMostBatchLds = 48 << 10;

// ---- packed x, for many rows of it on NVIDIA
//
// LDS does not hold all of x, and every unit of weights would split x anew. pack_kernel does so once for a product, and
// lays x out in memory as warps read it, by rows of a block, step, unit of features, tile and lane.
constexpr int packed_steps(Family f, int columns) { return tiles_of(f, columns) * split_k_waves(f); }
// The bytes of a step of x of so many rows.
constexpr int packed_step_bytes(int rows) { return rows * 2 * kStepFeatures * 2; }
// Tiles are eight rows of the batch: the bytes from a step to a tile's upper or lower parts of a unit.
constexpr int packed_tile_offset(int block_rows, int unit, int tile, int half) {
  return ((unit * (block_rows / 8) + tile) * 2 + half) * 32 * kSlotBytes;
}
// The bytes from a step of so many rows, which are packed together, to a vec16 of one of them.
constexpr int packed_offset(int block_rows, int unit, int row, int half, int vec16) {
  return packed_tile_offset(block_rows, unit, row / 8, half) + (row % 8 * 4 + vec16) * kSlotBytes;
}

// ---- the order of features

struct Vec8Coord {
  int unit, vec16;  // within a step
};
// The coordinates in LDS of the nth vec8 of a step. 16 bytes of nibbles hold 32 features, low nibbles first, and a lane
// has half of them.
constexpr Vec8Coord vec8_coord(Family f, int bits, int n) {
  const int lanes = lanes_of_row(f), vec8s_per_load = load_vec8s(bits);
  int lane = 0, vec8 = 0;  // the lane among a row's lanes, and the vec8 among the lane's
  if (bits == 4) {
    const int load = n / 4 * 2 + n % 2;  // loads of 8 bytes
    lane = load % lanes, vec8 = load / lanes * vec8s_per_load + n / 2 % 2;
  } else {
    lane = n / vec8s_per_load % lanes, vec8 = n / vec8s_per_load / lanes * vec8s_per_load + n % vec8s_per_load;
  }
  return {vec8 / unit_vec8s(f), f == Family::rdna ? vec8 % 2 : lane};
}
// On CDNA, the vec8 of a step that is at these coordinates: the inverse of vec8_coord().
constexpr int vec8_at(int bits, int unit, int vec16) {
  return bits == 16 ? unit * 4 + vec16 : bits == 8 ? vec16 * 2 + unit : vec16 / 2 * 4 + unit * 2 + vec16 % 2;
}
// Which feature of a vec8 its element e is: the order in which bytes and nibbles become bfloat16 most cheaply.
constexpr int vec8_feature(int bits, int e) { return bits < 16 ? e / 4 * 4 + e % 2 * 2 + e / 2 % 2 : e; }

}  // namespace xlstm::gpu::engine
