// SPDX-License-Identifier: Apache-2.0
// NVIDIA sm_80 and later: mma.sync m16n8k16, ldmatrix, cp.async. The chain side is A (m), the stream side B (n): an
// accumulator (m x n) read as A (m x k) is the chain operand of the next product.
//
// No such instruction exists for float: its operands are split into three bfloat16 whose sum is exact, and the six
// products that reach 24 bits are added up, small ones first. Each step of k starts from zero, and the largest product
// is accumulated apart from the others, to be added in float, because the matrix unit truncates what it accumulates.
#pragma once

namespace xlstm::gpu {

constexpr bool kAsyncCopies = true;  // copies from global memory to LDS need no registers

template <class E>
struct Operand {  // 16 x 16, of either side
  uint32_t word[4];
};
template <>
struct Operand<float> {
  uint32_t part[3][4];  // high, middle, low
};
template <class E>
using StreamOperand = Operand<E>;
template <class E>
using ChainOperand = Operand<E>;

XLSTM_DEVICE void mma_m16n8k16(BFloat16, float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  mma_bfloat16(c, a, b0, b1);
}
XLSTM_DEVICE void mma_m16n8k16(Float16, float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  mma_float16(c, a, b0, b1);
}

template <bool kHalf = false, bool kChainStays = false, class E>  // kHalf: only the first 8 rows of the strip
XLSTM_DEVICE void multiply(Strip<E>& s, const StreamOperand<E>& stream, const ChainOperand<E>& chain) {
  static_assert(!kHalf || sizeof(E) == 2);
  if constexpr (sizeof(E) == 2) {
    mma_m16n8k16(E{}, s.value, chain.word, stream.word[0], stream.word[1]);
    if constexpr (!kHalf) mma_m16n8k16(E{}, s.value + 4, chain.word, stream.word[2], stream.word[3]);
  } else {
    Strip<E> largest, sum;
    largest.zero(), sum.zero();
    const auto add = [&](Strip<E>& to, int a, int b) {
      mma_m16n8k16(BFloat16{}, to.value, chain.part[a], stream.part[b][0], stream.part[b][1]);
      mma_m16n8k16(BFloat16{}, to.value + 4, chain.part[a], stream.part[b][2], stream.part[b][3]);
    };
    add(largest, 0, 0);
    // products of the same order of magnitude
    add(sum, 0, 2), add(sum, 1, 1), add(sum, 2, 0);
    add(sum, 0, 1), add(sum, 1, 0);
#pragma unroll
    for (int r = 0; r < 8; ++r) s.value[r] += largest.value[r] + sum.value[r];
  }
}

// ---- registers to operands

// Word w of all three parts.
XLSTM_DEVICE void split(Operand<float>& o, int w, float low, float high) {
  split_in_three(low, high, o.part[0][w], o.part[1][w], o.part[2][w]);
}

template <class E>
XLSTM_DEVICE void set_word(Operand<E>& o, int w, float low, float high) {
  if constexpr (sizeof(E) == 2)
    o.word[w] = pack(E{}, low, high);
  else
    split(o, w, low, high);
}

// The strip, times a number, as the next product's chain operand: the strip's rows become k.
template <class E>
XLSTM_DEVICE ChainOperand<E> as_chain(const Strip<E>& s, float scale) {
  ChainOperand<E> o;
#pragma unroll
  for (int w = 0; w < 4; ++w) set_word(o, w, s.value[2 * w] * scale, s.value[2 * w + 1] * scale);
  return o;
}

// Calls f(first row, which of the lane's columns, values) for each run of consecutive rows of a strip in this lane.
template <class E>
constexpr int kRun = 2;
template <class E, class F>
XLSTM_DEVICE void each_run(const Strip<E>& s, F&& f) {
#pragma unroll
  for (int r = 0; r < 8; r += 2) {
    const float run[2] = {s.value[r], s.value[r + 1]};
    f(8 * (r / 4) + 2 * (lane_id() % 4), r / 2 % 2, run);
  }
}

// ---- LDS to operands

XLSTM_DEVICE uint32_t lds_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// The stream operand from a Tile (tile/lds_tile.h), whose matrix lies as in memory. kAlong: k runs along its rows.
template <bool kAlong, class E, class Tile>
XLSTM_DEVICE StreamOperand<E> load_stream(const Tile& t, int s0, int k0, int lane = lane_id()) {
  StreamOperand<E> o;
  if constexpr (sizeof(E) == 2) {
    const int m = lane / 8, i = lane % 8;
    if constexpr (kAlong)
      ldmatrix(o.word, lds_address(t.base) + t.cursor(8 * (m / 2) + i, 8 * (m % 2)).at(s0, k0));
    else
      ldmatrix_trans(o.word, lds_address(t.base) + t.cursor(8 * (m % 2) + i, 8 * (m / 2)).at(k0, s0));
  } else {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int s = s0 + 8 * (w / 2) + lane / 4, k = k0 + 8 * (w % 2) + 2 * (lane % 4);
      split(o, w, *(kAlong ? t.at(s, k) : t.at(k, s)), *(kAlong ? t.at(s, k + 1) : t.at(k + 1, s)));
    }
  }
  return o;
}

// The chain operand of a matrix whose k is features, [c][k].
template <class E, class Tile>
XLSTM_DEVICE ChainOperand<E> load_chain_along(const Tile& t, int c0, int k0, int lane = lane_id()) {
  ChainOperand<E> o;
  if constexpr (sizeof(E) == 2) {
    ldmatrix(o.word, lds_address(t.base) + t.cursor(8 * ((lane / 8) % 2) + lane % 8, 8 * (lane / 16)).at(c0, k0));
  } else {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int c = c0 + 8 * (w % 2) + lane / 4, k = k0 + 8 * (w / 2) + 2 * (lane % 4);
      split(o, w, *t.at(c, k), *t.at(c, k + 1));
    }
  }
  return o;
}

// The chain operands of a matrix whose k is tokens, [k][c]: `plain` as it is, `weighted` with row k times weight[k]
// scale.
template <class E, class Tile>
XLSTM_DEVICE void load_chain(const Tile& t, int c0, int k0, const float* weight, float scale, ChainOperand<E>& plain,
                             ChainOperand<E>& weighted, int lane = lane_id()) {
  if constexpr (sizeof(E) == 2)
    ldmatrix_trans(plain.word,
                   lds_address(t.base) + t.cursor(8 * (lane / 16) + lane % 8, 8 * ((lane / 8) % 2)).at(k0, c0));
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const int c = c0 + 8 * (w % 2) + lane / 4, k = k0 + 8 * (w / 2) + 2 * (lane % 4);
    float low, high;
    if constexpr (sizeof(E) == 2) {
      low = low_float(E{}, plain.word[w]);
      high = high_float(E{}, plain.word[w]);
    } else {
      low = *t.at(k, c);
      high = *t.at(k + 1, c);
      set_word(plain, w, low, high);
    }
    set_word(weighted, w, low * (weight[k] * scale), high * (weight[k + 1] * scale));
  }
}

// ---- global to LDS

XLSTM_DEVICE void cp_async(uint32_t lds, const void* global, bool valid) {  // 16 bytes, or zeros
  cp_async_16(lds, global, valid ? 16 : 0);
}
XLSTM_DEVICE void cp_async_half(uint32_t lds, const void* global, bool valid) {  // 8 bytes, or zeros
  cp_async_8(lds, global, valid ? 8 : 0);
}
XLSTM_DEVICE void cp_async_float(float* lds, const float* global) { cp_async_4(lds_address(lds), global, 4); }

}  // namespace xlstm::gpu
