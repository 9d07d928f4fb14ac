// SPDX-License-Identifier: Apache-2.0
// y = W x for few x on a GPU, with what stands before and after it in a step: norms, gates, residuals, SwiGLU.
//
// For what gemm_mma.h does not take (step.hip chooses): float32, integers in groups of 32, rows without whole
// pieces, sides of SwiGLU that are not alike.
//
// A wave makes two rows of W for kBatch x's. Its lanes share a row 16 bytes at a time, so memory sees whole lines; x's,
// made anew by every block (a norm reads 16 KB that L2 has, against the 128 KB of a block's float weights), lie in LDS
// as floats, kTile features at a time. Two rows a wave and no more, so that 304 compute units have blocks at batch 1:
// the 4096 rows of a down projection are 512 of them. Sums are float, lane by lane in one order and then across lanes,
// so a row of the batch has the same result in any company. Weights bind: 4 bytes for 2 flops.
//
// For swiglu the two rows are one of the gate's and the same of the other's.
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "engine/prologue_epilogue.h"

namespace xlstm::gpu::engine {

constexpr int kInputFloats = 4096;  // of x's in LDS: three blocks of a CU

// ---- 16 bytes of a row times x's at `x`, kBatch of them kStride apart, added to sums

template <int kBatch, int kStride>
struct Piece16 {
  const float* x;
  float* sums;

  XLSTM_DEVICE void add(int at, float w) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) sums[b] += w * x[b * kStride + at];
  }
  template <class E>
  XLSTM_DEVICE void halves(const Vec16& piece) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      add(2 * j, low_float(E{}, piece.word[j]));
      add(2 * j + 1, high_float(E{}, piece.word[j]));
    }
  }
  XLSTM_DEVICE void floats(const Vec16& piece) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) add(j, as_float(piece.word[j]));
  }
  XLSTM_DEVICE void bytes(const Vec16& piece, float scale, float offset) const {
    float q[kBatch] = {}, all[kBatch] = {};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float w = float(int8_t(piece.word[j / 4] >> (8 * (j % 4))));
      take(q, all, j, w);
    }
    scaled(q, all, scale, offset);
  }
  XLSTM_DEVICE void nibbles(const Vec16& piece, float scale, float offset) const {
    float q[kBatch] = {}, all[kBatch] = {};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const uint32_t both = piece.word[j / 4] >> (8 * (j % 4));
      take(q, all, j, float(both & 15));
      take(q, all, 16 + j, float(both >> 4 & 15));
    }
    scaled(q, all, scale, offset);
  }

 private:
  XLSTM_DEVICE void take(float* q, float* all, int at, float w) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      q[b] += w * x[b * kStride + at];
      all[b] += x[b * kStride + at];
    }
  }
  XLSTM_DEVICE void scaled(const float* q, const float* all, float scale, float offset) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) sums[b] += scale * q[b] + offset * all[b];
  }
};

// Adds columns [begin, begin + kTile) of a row times the tile of x's.
template <int kBatch, int kTile>
XLSTM_DEVICE void add_row(const DeviceLinear& w, int row, int begin, const float* x, float* sums) {
  const char* data = static_cast<const char*>(w.data) + int64_t(row) * w.row_bytes;
  const int end = w.columns - begin < kTile ? w.columns - begin : kTile;
  if (!w.whole) {  // rows that are not pieces of 16 bytes
    const DeviceVector values{data, w.dtype};
    for (int k = lane_id(); k < end; k += kWave) {
      const float value = value_of(values, begin + k);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) sums[b] += value * x[b * kTile + k];
    }
    return;
  }
  const int each = w.bits == 4 ? 32 : w.bits == 8 ? 16 : w.dtype == XLSTM_FLOAT32 ? 4 : 8;
  const char* from = data + int64_t(begin) / each * 16;
#pragma unroll 4
  for (int k = lane_id() * each; k < end; k += kWave * each) {
    const Vec16 piece = read_vec16(from + k / each * 16);
    const Piece16<kBatch, kTile> at{x + k, sums};
    if (w.bits) {
      const int64_t group = int64_t(row) * w.groups + (begin + k) / w.group_size;
      const float scale = value_of({w.scales, w.dtype}, group);
      if (w.bits == 8)
        at.bytes(piece, scale, w.offsets ? value_of({w.offsets, w.dtype}, group) : 0.0f);
      else
        at.nibbles(piece, scale, w.offsets ? value_of({w.offsets, w.dtype}, group) : -8 * scale);
    } else if (w.dtype == XLSTM_FLOAT32) {
      at.floats(piece);
    } else if (w.dtype == XLSTM_BFLOAT16) {
      at.template halves<BFloat16>(piece);
    } else {
      at.template halves<Float16>(piece);
    }
  }
}

// ---- the kernel: blocks of kWaves times two rows, or one of each of two weights

template <Input kInput, Output kOutput, int kBatch>
__global__ __launch_bounds__(kProductThreads) void products(XLSTM_PARAM ProductParams given) {
  const ProductParams& p = *kernel_params(given);
  constexpr int kTile = kInputFloats / kBatch;
  alignas(16) __shared__ float inputs[kInputFloats];
  __shared__ float inverse[kBatch];
  const int wave = blockIdx.x * kWaves + wave_id();
  const DeviceLinear* w[2];
  int row[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    int piece = kOutput == Output::swiglu ? j : 0;
    row[j] = kOutput == Output::swiglu ? wave : 2 * wave + j;
    if constexpr (kOutput == Output::store)
      while (piece + 1 < p.pieces && row[j] >= p.linear[piece].rows) row[j] -= p.linear[piece++].rows;
    w[j] = &p.linear[piece];
    if (row[j] >= w[j]->rows) w[j] = nullptr;  // beyond the last
  }
  for (int first = 0; first < p.batch; first += kBatch) {
    const int count = p.batch - first < kBatch ? p.batch - first : kBatch;
    if constexpr (kInput == Input::rms) measure<1>(p, first, count, inverse);
    float sums[2][kBatch] = {};
    for (int begin = 0; begin < p.columns; begin += kTile) {
      __syncthreads();
      for (int at = threadIdx.x; at < kInputFloats; at += kProductThreads) {
        const int b = at / kTile, k = begin + at % kTile;
        inputs[at] = b < count && k < p.columns ? input_value<kInput>(p, first, b, k, inverse) : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (w[j]) add_row<kBatch, kTile>(*w[j], row[j], begin, inputs, sums[j]);
    }
    __syncthreads();
    float y[2][kBatch];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        y[j][b] = wave_sum(sums[j][b]);
        if (w[j] && w[j]->bias.data) y[j][b] += value_of(w[j]->bias, row[j]);
      }
    if (lane_id() != 0) continue;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (b >= count) break;
      if constexpr (kOutput == Output::swiglu) {
        if (w[0]) put(p, kOutput, 0, row[0], first + b, swiglu(y[0][b], y[1][b]));
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (w[j]) put(p, kOutput, int(w[j] - p.linear), row[j], first + b, y[j][b]);
      }
    }
  }
}

// x of each row is its token's; NaN where there is no such token, since a kernel raises no error.
template <int>
__global__ __launch_bounds__(kProductThreads) void embed(const EmbedParams p) {
  pdl_trigger();
  const int64_t at = int64_t(blockIdx.x) * kProductThreads + threadIdx.x;
  if (at * 4 < p.absent_floats) *reinterpret_cast<Vec16*>(p.absent + at * 4) = {{kAbsent, kAbsent, kAbsent, kAbsent}};
  if (at >= int64_t(p.batch) * p.dim) return;
  const int64_t token = p.tokens[at / p.dim];
  const bool known = token >= 0 && token < p.vocab;
  p.x[at] = known ? present(value_of(p.table, token * p.dim + at % p.dim)) : __builtin_nanf("");
}

// What a model without a head and a last norm hands over.
template <int>
__global__ __launch_bounds__(kProductThreads) void hand_over(const float* from, float* to, int64_t count) {
  const int64_t at = int64_t(blockIdx.x) * kProductThreads + threadIdx.x;
  if (at < count) to[at] = from[at];
}

}  // namespace xlstm::gpu::engine
