// SPDX-License-Identifier: Apache-2.0
// y = W x for few x on a GPU, for any shape and dtype, with the prologue (RMS norm) and the epilogue (bias, soft caps,
// residual, SwiGLU) of a decode step.
//
// step.hip chooses this kernel for products that gemm_mma/ does not take: float32 weights, integer weights in groups of
// 32, rows that are not a multiple of 16 bytes, and gate and up linears of SwiGLU whose formats differ.
//
// Who owns what: a wave computes two rows of W for kBatch x's (for SwiGLU, one row of the gate linear and the same row
// of the up linear). Its lanes share a row 16 bytes at a time, so loads of weights are coalesced. Every block reads and
// normalises all x's anew (an RMS norm reads 16 KB that L2 holds, against the 128 KB of a block's float weights) and
// keeps them in LDS as floats, kTile features at a time. A wave has only two rows so that 304 compute units have blocks
// at batch 1: the 4096 rows of a down projection make 512 blocks.
//
// Sums are float: each lane adds up its features in a fixed order, then the lanes are added up, so a row of the batch
// has the same result whatever the batch.
//
// Floor: the bytes of the weights; memory binds, at 4 bytes for 2 flops.
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "engine/gpu/prologue_epilogue.h"

namespace xlstm::gpu::engine {

constexpr int kInputFloats = 4096;  // floats of x in LDS, so that a CU holds three blocks

// ---- 16 bytes of a row times kBatch x's, which begin at `x`, kStride apart; added to `sums`

template <int kBatch, int kStride>
struct Vec16Product {
  const float* x;
  float* sums;

  XLSTM_DEVICE void add(int at, float w) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) sums[b] += w * x[b * kStride + at];
  }
  template <class E>
  XLSTM_DEVICE void halves(const Vec16& vec16) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      add(2 * j, low_float(E{}, vec16.word[j]));
      add(2 * j + 1, high_float(E{}, vec16.word[j]));
    }
  }
  XLSTM_DEVICE void floats(const Vec16& vec16) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) add(j, as_float(vec16.word[j]));
  }
  // Of quantised weights: q, the sums of their codes times x, and x_sum, of x.
  XLSTM_DEVICE void bytes(const Vec16& vec16, float (&q)[kBatch], float (&x_sum)[kBatch]) const {
#pragma unroll
    for (int j = 0; j < 16; ++j) take(q, x_sum, j, float(int8_t(vec16.word[j / 4] >> (8 * (j % 4)))));
  }
  // F: a float of 8 bits.
  template <class F>
  XLSTM_DEVICE void float8s(const Vec16& vec16, float (&q)[kBatch]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t even = float8_bytes<F, 0>(vec16.word[j]), odd = float8_bytes<F, 1>(vec16.word[j]);
      const float w[] = {low_float(BFloat16{}, even), low_float(BFloat16{}, odd), high_float(BFloat16{}, even),
                         high_float(BFloat16{}, odd)};
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int b = 0; b < kBatch; ++b) q[b] += w[n] * x[b * kStride + 4 * j + n];
    }
  }
  XLSTM_DEVICE void nibbles(const Vec16& vec16, float (&q)[kBatch], float (&x_sum)[kBatch]) const {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const uint32_t packed = vec16.word[j / 4] >> (8 * (j % 4));
      take(q, x_sum, j, float(packed & 15));
      take(q, x_sum, 16 + j, float(packed >> 4 & 15));
    }
  }

 private:
  XLSTM_DEVICE void take(float (&q)[kBatch], float (&x_sum)[kBatch], int at, float w) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      q[b] += w * x[b * kStride + at];
      x_sum[b] += x[b * kStride + at];
    }
  }
};

// Adds columns [begin, begin + kTile) of a row times this tile of x's.
template <int kBatch, int kTile>
XLSTM_DEVICE void add_row(const DeviceLinear& w, int row, int begin, const float* x, float* sums) {
  const char* data = static_cast<const char*>(w.data) + int64_t(row) * w.row_bytes;
  const int end = w.columns - begin < kTile ? w.columns - begin : kTile;
  if (!w.is_aligned16) {  // rows that cannot be read 16 bytes at a time
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
    const Vec16 vec16 = read_vec16(from + k / each * 16);
    const Vec16Product<kBatch, kTile> at{x + k, sums};
    if (w.bits) {
      const int64_t group = int64_t(row) * w.groups + (begin + k) / w.group_size;
      const float scale = value_of({w.scales, w.dtype}, group);
      const float offset = w.offsets ? value_of({w.offsets, w.dtype}, group) : w.bits == 4 ? -8 * scale : 0.0f;
      float q[kBatch] = {}, x_sum[kBatch] = {};
      if (w.code == XLSTM_CODE_E4M3FN)
        at.template float8s<Float8E4m3fn>(vec16, q);
      else if (w.code == XLSTM_CODE_E4M3FNUZ)
        at.template float8s<Float8E4m3fnuz>(vec16, q);
      else if (w.bits == 8)
        at.bytes(vec16, q, x_sum);
      else
        at.nibbles(vec16, q, x_sum);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) sums[b] += scale * q[b] + offset * x_sum[b];
    } else if (w.dtype == XLSTM_FLOAT32) {
      at.floats(vec16);
    } else if (w.dtype == XLSTM_BFLOAT16) {
      at.template halves<BFloat16>(vec16);
    } else {
      at.template halves<Float16>(vec16);
    }
  }
}

// ---- the kernel: a block has kWaves waves of two rows each

template <Input kInput, Output kOutput, int kBatch>
__global__ __launch_bounds__(kEngineThreads) void gemv_kernel(XLSTM_PARAM GemmParams kernel_arg) {
  const GemmParams& p = *kernel_params(kernel_arg);
  constexpr int kTile = kInputFloats / kBatch;
  alignas(16) __shared__ float x_tile[kInputFloats];
  __shared__ float rms_factor[kBatch];
  const int wave = blockIdx.x * kWaves + wave_id();
  const DeviceLinear* w[2];
  int row[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    int linear = kOutput == Output::swiglu ? j : 0;
    row[j] = kOutput == Output::swiglu ? wave : 2 * wave + j;
    if constexpr (kOutput == Output::store)
      while (linear + 1 < p.linear_count && row[j] >= p.linear[linear].rows) row[j] -= p.linear[linear++].rows;
    w[j] = &p.linear[linear];
    if (row[j] >= w[j]->rows) w[j] = nullptr;  // past the last row
  }
  for (int first = 0; first < p.batch; first += kBatch) {
    const int count = p.batch - first < kBatch ? p.batch - first : kBatch;
    if constexpr (kInput == Input::rms) measure_rms<1>(p, first, count, rms_factor);
    float sums[2][kBatch] = {};
    for (int begin = 0; begin < p.columns; begin += kTile) {
      __syncthreads();
      for (int at = threadIdx.x; at < kInputFloats; at += kEngineThreads) {
        const int b = at / kTile, k = begin + at % kTile;
        x_tile[at] = b < count && k < p.columns ? input_value<kInput>(p, first, b, k, rms_factor) : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (w[j]) add_row<kBatch, kTile>(*w[j], row[j], begin, x_tile, sums[j]);
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
        if (w[0]) store_output(p, kOutput, 0, row[0], first + b, swiglu(y[0][b], y[1][b]));
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (w[j]) store_output(p, kOutput, int(w[j] - p.linear), row[j], first + b, y[j][b]);
      }
    }
  }
}

// x of each row of the batch is its token's embedding; NaN if the vocabulary has no such token, since a kernel raises
// no error. It also empties the megakernel's mailboxes and the counters of heads_step.h and gemm_mma/gemm_stream_k.h.
template <int>
__global__ __launch_bounds__(kEngineThreads) void embed_kernel(const EmbedParams p) {
  pdl_trigger();
  const int64_t at = int64_t(blockIdx.x) * kEngineThreads + threadIdx.x;
  if (at * 4 < p.mailbox_floats) *reinterpret_cast<Vec16*>(p.mailboxes + at * 4) = {{kEmpty, kEmpty, kEmpty, kEmpty}};
  if (at < p.arrived_count) p.arrived[at] = 0;
  if (at >= int64_t(p.batch) * p.dim) return;
  const int64_t token = p.tokens[at / p.dim];
  const bool known = token >= 0 && token < p.vocab;
  p.x[at] = known ? not_empty(value_of(p.table, token * p.dim + at % p.dim)) : __builtin_nanf("");
}

// The output of a model that has neither a head nor a last norm: x as it is.
template <int>
__global__ __launch_bounds__(kEngineThreads) void copy_output_kernel(const float* from, float* to, int64_t count) {
  const int64_t at = int64_t(blockIdx.x) * kEngineThreads + threadIdx.x;
  if (at < count) to[at] = from[at];
}

}  // namespace xlstm::gpu::engine
