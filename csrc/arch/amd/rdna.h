// SPDX-License-Identifier: Apache-2.0
// AMD RDNA3 (gfx11) and RDNA4 (gfx1200, gfx1201): WMMA 16x16x16 in waves of 32. The stream side is A, the chain side B.
//
// RDNA3: both halves of a wave hold the same 16 k of an operand, but each half has every other row of an accumulator.
// So a strip becomes a chain operand by one exchange between the halves for each register. RDNA4: each half of a wave
// holds 8 k of an operand, and 8 consecutive rows of an accumulator. So a strip is the chain operand of the next
// product without any moves. (Which 8 k the hardware calls a half's does not matter, as long as A and B agree.)
//
// There is no such instruction for float: float operands are split into three bfloat16 whose sum is exact, and the six
// products that contribute to 24 bits are added up, small ones first.
#pragma once

#include "arch/amd/no_async_copies.h"

namespace xlstm::gpu {

typedef float Float8 __attribute__((ext_vector_type(8)));
constexpr int kWmmaWords = wmma_words(kFamily), kLaneK = 2 * kWmmaWords;
typedef short ShortOperand __attribute__((ext_vector_type(kLaneK)));
typedef _Float16 HalfOperand __attribute__((ext_vector_type(kLaneK)));
typedef uint32_t OperandWords __attribute__((ext_vector_type(kWmmaWords)));

template <class E>
struct Operand {  // a lane's k of one row or column
  OperandWords word;
};
template <>
struct Operand<float> {
  OperandWords part[3];  // high, middle, low
};
template <class E>
using StreamOperand = Operand<E>;
template <class E>
using ChainOperand = Operand<E>;

#if defined(__GFX12__)
#define XLSTM_WMMA(element) __builtin_amdgcn_wmma_f32_16x16x16_##element##_w32_gfx12
#else
#define XLSTM_WMMA(element) __builtin_amdgcn_wmma_f32_16x16x16_##element##_w32
#endif
XLSTM_DEVICE Float8 wmma(BFloat16, OperandWords a, OperandWords b, Float8 c) {
  return XLSTM_WMMA(bf16)(__builtin_bit_cast(ShortOperand, a), __builtin_bit_cast(ShortOperand, b), c);
}
XLSTM_DEVICE Float8 wmma(Float16, OperandWords a, OperandWords b, Float8 c) {
  return XLSTM_WMMA(f16)(__builtin_bit_cast(HalfOperand, a), __builtin_bit_cast(HalfOperand, b), c);
}
#undef XLSTM_WMMA

// The first k of an operand that this lane holds.
XLSTM_DEVICE int first_k(int lane = lane_id()) { return kFamily == Family::rdna4 ? lane / 16 * kLaneK : 0; }

// A register of the same lane in the other half of the wave.
XLSTM_DEVICE float from_other_half(float x) {
  const uint32_t bits = as_bits(x);
  return as_float(__builtin_amdgcn_permlanex16(bits, bits, 0x76543210u, 0xfedcba98u, false, false));
}

template <bool kHalf = false, bool kChainStays = false, class E>
XLSTM_DEVICE void multiply(Strip<E>& s, const StreamOperand<E>& stream, const ChainOperand<E>& chain) {
  static_assert(!kHalf);  // all of it is one instruction
  Float8 sum;
#pragma unroll
  for (int r = 0; r < 8; ++r) sum[r] = sizeof(E) == 2 ? s.value[r] : 0.0f;
  if constexpr (sizeof(E) == 2) {
    sum = wmma(E{}, stream.word, chain.word, sum);
  } else {
#pragma unroll
    for (int order = 2; order >= 0; --order)  // products of the same order of magnitude
#pragma unroll
      for (int j = 0; j <= order; ++j) sum = wmma(BFloat16{}, stream.part[order - j], chain.part[j], sum);
  }
#pragma unroll
  for (int r = 0; r < 8; ++r) s.value[r] = sizeof(E) == 2 ? sum[r] : s.value[r] + sum[r];
}

template <class E>
XLSTM_DEVICE void set_word(Operand<E>& o, int w, float low, float high) {
  if constexpr (sizeof(E) == 2) {
    o.word[w] = pack(E{}, low, high);
  } else {
    uint32_t part[3];
    split_in_three(low, high, part[0], part[1], part[2]);
#pragma unroll
    for (int p = 0; p < 3; ++p) o.part[p][w] = part[p];
  }
}

// The strip, times a number, as the next product's chain operand: its rows become k.
template <class E>
XLSTM_DEVICE ChainOperand<E> as_chain(const Strip<E>& s, float scale) {
  ChainOperand<E> o;
  const bool upper = lane_id() >= 16;
#pragma unroll
  for (int w = 0; w < kWmmaWords; ++w) {
    if constexpr (kFamily == Family::rdna4) {
      set_word(o, w, s.value[2 * w] * scale, s.value[2 * w + 1] * scale);
    } else {
      const float lane_row = s.value[w] * scale, partner_row = from_other_half(lane_row);
      set_word(o, w, upper ? partner_row : lane_row, upper ? lane_row : partner_row);
    }
  }
  return o;
}

// Calls f(first row, the lane's column, the values) for each run of consecutive rows of a strip in this lane. On RDNA3
// the halves of the wave have every other row, so each half first sends the other half the rows of its run of eight.
template <class E>
constexpr int kRun = 8;
template <class E, class F>
XLSTM_DEVICE void each_run(const Strip<E>& s, F&& f) {
  const int first = lane_id() / 16 * 8;
  if constexpr (kFamily == Family::rdna4) {
    f(first, 0, s.value);
  } else {
    const bool upper = first > 0;
    const uint32_t mask = upper ? ~0u : 0u;
    float run[8];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      // Selects by bit masks: the compiler turns a conditional into one of addresses, and puts the strip into memory.
      const uint32_t low = as_bits(s.value[r]), high = as_bits(s.value[4 + r]);
      const float lane_row = as_float((low & ~mask) | (high & mask));
      const float partner_row = from_other_half(as_float((low & mask) | (high & ~mask)));
      run[2 * r] = upper ? partner_row : lane_row;
      run[2 * r + 1] = upper ? lane_row : partner_row;
    }
    f(first, 0, run);
  }
}

// A chain operand of 2-byte elements whose k is features, from memory: load_vec(column, k) loads a lane's 16 bytes.
template <class E, class F>
XLSTM_DEVICE ChainOperand<E> chain_of(F&& load_vec, int k0) {
  static_assert(sizeof(E) == 2);
  ChainOperand<E> o;
#pragma unroll
  for (int h = 0; h < kWmmaWords / 4; ++h) {
    const Vec16 p = load_vec(lane_id() % 16, k0 + first_k() + 8 * h);
#pragma unroll
    for (int w = 0; w < 4; ++w) o.word[4 * h + w] = p.word[w];
  }
  return o;
}

// Operands from a Tile (tile/lds_tile.h), which holds [side][k], transposed or not in memory.
template <class E, class Tile>
XLSTM_DEVICE void load_row(const Tile& t, int row, int k0, int lane,
                           float* values) {  // a lane's row, of the 16 from `row` on
  const auto at = t.cursor(lane % 16, first_k(lane));
#pragma unroll
  for (int p = 0; p < kLaneK / kVec16Elements<E>; ++p) {
    const Vec16 x = read_vec16(t.at(at, row, k0 + p * kVec16Elements<E>));
#pragma unroll
    for (int w = 0; w < 4; ++w) values[4 * p + w] = as_float(x.word[w]);
  }
}
template <bool kAlong, class E, class Tile>
XLSTM_DEVICE StreamOperand<E> load_stream(const Tile& t, int s0, int k0, int lane = lane_id()) {
  StreamOperand<E> o;
  float x[kLaneK * sizeof(E) / 4];
  load_row<E>(t, s0, k0, lane, x);
#pragma unroll
  for (int w = 0; w < kWmmaWords; ++w) {
    if constexpr (sizeof(E) == 2)
      o.word[w] = as_bits(x[w]);
    else
      set_word(o, w, x[2 * w], x[2 * w + 1]);
  }
  return o;
}

template <class E, class Tile>
XLSTM_DEVICE ChainOperand<E> load_chain_along(const Tile& t, int c0, int k0, int lane = lane_id()) {
  return load_stream<true, E>(t, c0, k0, lane);
}

// The chain operand of a matrix whose k is tokens: `plain` without and `weighted` with row k times weight[k] scale.
template <class E, class Tile>
XLSTM_DEVICE void load_chain(const Tile& t, int c0, int k0, const float* weight, float scale, ChainOperand<E>& plain,
                             ChainOperand<E>& weighted, int lane = lane_id()) {
  plain = load_stream<true, E>(t, c0, k0, lane);
  float x[kLaneK * sizeof(E) / 4];
  if constexpr (sizeof(E) == 4) load_row<E>(t, c0, k0, lane, x);
#pragma unroll
  for (int w = 0; w < kWmmaWords; ++w) {
    const float* at = weight + k0 + first_k(lane) + 2 * w;
    if constexpr (sizeof(E) == 2)
      set_word(weighted, w, low_float(E{}, plain.word[w]) * (at[0] * scale),
               high_float(E{}, plain.word[w]) * (at[1] * scale));
    else
      set_word(weighted, w, x[2 * w] * (at[0] * scale), x[2 * w + 1] * (at[1] * scale));
  }
}

}  // namespace xlstm::gpu
