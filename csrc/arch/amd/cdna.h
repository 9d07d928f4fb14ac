// SPDX-License-Identifier: Apache-2.0
// AMD CDNA (gfx90a, gfx942, gfx950): MFMA in waves of 64. The stream side is A (i), the chain side B (j). A lane has
// four rows of an accumulator, which is the B operand's layout of k, so that a strip is the chain operand of the next
// product without any moves.
//
// 2-byte elements: a step is 32 stream rows by 32 k. The rows of its two accumulators alternate in groups of four
// (arch/layouts.h), so that a lane has 8 consecutive k, 16 bytes: the operand of gfx950's 16x16x32, and one half each
// for the two 16x16x16 of older chips. Floats use the float instruction 16x16x4, four for a step of 16 by 16. Floats of
// 8 bits, on gfx942 and gfx950 in the chip's format, have 8 bytes of k for a step of 32 rows by 32, with the same rows.
#pragma once

#include "arch/amd/no_async_copies.h"
#include "arch/unrolled.h"

namespace xlstm::gpu {

typedef float Float4 __attribute__((ext_vector_type(4)));
template <class E>
using LaneStep = std::conditional_t<sizeof(E) == 1, uint64_t, Vec16>;  // a lane's k of a step: 8 or 4 elements
template <class E>
struct ChainOperand {  // for one column
  LaneStep<E> k;
};
template <class E>
struct StreamOperand {  // for one row of each accumulator
  LaneStep<E> k[sizeof(E) <= 2 ? 2 : 1];
};

#if defined(__gfx950__)
typedef __bf16 Bfloat8 __attribute__((ext_vector_type(8)));
typedef _Float16 Half8 __attribute__((ext_vector_type(8)));

// 16 stream rows by 32 k, in one instruction.
template <bool kChainStays>
XLSTM_DEVICE Float4 multiply_step(BFloat16, const Vec16& stream, const Vec16& chain, Float4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(Bfloat8, stream),
                                                 __builtin_bit_cast(Bfloat8, chain), c, 0, 0, 0);
}
template <bool kChainStays>
XLSTM_DEVICE Float4 multiply_step(Float16, const Vec16& stream, const Vec16& chain, Float4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x32_f16(__builtin_bit_cast(Half8, stream), __builtin_bit_cast(Half8, chain), c,
                                                0, 0, 0);
}
#else
typedef short Short4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half4 __attribute__((ext_vector_type(4)));

XLSTM_DEVICE Float4 mfma(BFloat16, uint64_t a, uint64_t b, Float4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Short4, a), __builtin_bit_cast(Short4, b), c, 0,
                                                   0, 0);
}
XLSTM_DEVICE Float4 mfma(Float16, uint64_t a, uint64_t b, Float4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Half4, a), __builtin_bit_cast(Half4, b), c, 0, 0, 0);
}
// The operands of two instructions. The asm makes them opaque: otherwise the compiler reads a half from LDS again.
XLSTM_DEVICE Halves halves_of(const Vec16& p) {
  Halves h = __builtin_bit_cast(Halves, p);
  asm("" : "+v"(h));
  return h;
}

// 16 stream rows by 32 k, in two instructions.
template <bool kChainStays, class E>
XLSTM_DEVICE Float4 multiply_step(E, const Vec16& stream, const Vec16& chain, Float4 c) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
    c = mfma(E{}, halves_of(stream)[h], kChainStays ? __builtin_bit_cast(Halves, chain)[h] : halves_of(chain)[h], c);
  return c;
}
#endif

#if defined(XLSTM_CONVERTS_FLOAT8)
// 16 stream rows by 32 k, in one instruction.
template <bool kChainStays, class F>
XLSTM_DEVICE Float4 multiply_step(F, uint64_t stream, uint64_t chain, Float4 c) {
  static_assert(kMultiplies<F>);
  return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(long(stream), long(chain), c, 0, 0, 0);
}
// Four numbers, rounded to nearest even. None may exceed the format's largest.
template <class F>
XLSTM_DEVICE uint32_t pack_float8(F, const float* x) {
  static_assert(kMultiplies<F>);
  const int lower = __builtin_amdgcn_cvt_pk_fp8_f32(x[0], x[1], 0, false);
  return uint32_t(__builtin_amdgcn_cvt_pk_fp8_f32(x[2], x[3], lower, true));
}
#endif
// Whether one instruction multiplies all of a step's k.
template <class E>
constexpr bool kWholeSteps =
#if defined(__gfx950__)
    true;
#else
    sizeof(E) == 1;
#endif

// kHalf: the first accumulator alone. kChainStays: the chain operand was not read from LDS for this product, so that
// its halves may be taken as they are; opaque, an operand that is used again would be copied first.
template <bool kHalf = false, bool kChainStays = false, class E>
XLSTM_DEVICE void multiply(Strip<E>& s, const StreamOperand<E>& stream, const ChainOperand<E>& chain) {
#pragma unroll
  for (int j = 0; j < (kHalf ? 1 : Strip<E>::kRegisters / 4); ++j) {
    float* v = s.value + 4 * j;
    Float4 sum = {v[0], v[1], v[2], v[3]};
    if constexpr (sizeof(E) <= 2) {
      sum = multiply_step<kChainStays>(E{}, stream.k[j], chain.k, sum);
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        sum = __builtin_amdgcn_mfma_f32_16x16x4f32(as_float(stream.k[j].word[r]), as_float(chain.k.word[r]), sum, 0, 0,
                                                   0);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) v[r] = sum[r];
  }
}

// Multiplies a stream operand with kColumns chain operands of elements of 2 bytes or 1, into the strips that
// sum(column) names, and calls after(i) behind the i-th instruction, where a wave may issue others while the matrix
// unit works. Neighbours add to different accumulators. kStreamStays, kChainStays: as kChainStays of multiply().
template <int kColumns, bool kStreamStays, bool kChainStays, class E, class Sum, class Chain, class After>
XLSTM_DEVICE void multiply_each(const StreamOperand<E>& stream, Sum&& sum, Chain&& chain, After&& after) {
  static_assert(sizeof(E) <= 2);
  if constexpr (kWholeSteps<E>) {
    each_of<2 * kColumns>([&](auto i) {  // an instruction does what two do elsewhere
      constexpr int c = i / 2, j = i % 2;
      float* v = sum(c).value + 4 * j;
      const Float4 product = multiply_step<true>(E{}, stream.k[j], chain(c).k, Float4{v[0], v[1], v[2], v[3]});
#pragma unroll
      for (int r = 0; r < 4; ++r) v[r] = product[r];
      sched_barrier();
      after(std::integral_constant<int, 2 * i>{});
      after(std::integral_constant<int, 2 * i + 1>{});
      sched_barrier();
    });
  } else {
    Halves rows[2], columns[kColumns];
#pragma unroll
    for (int j = 0; j < 2; ++j)
      rows[j] = kStreamStays ? __builtin_bit_cast(Halves, stream.k[j]) : halves_of(stream.k[j]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      columns[c] = kChainStays ? __builtin_bit_cast(Halves, chain(c).k) : halves_of(chain(c).k);
    each_of<4 * kColumns>([&](auto i) {
      constexpr int h = i / (2 * kColumns), c = i / 2 % kColumns, j = i % 2;
      float* v = sum(c).value + 4 * j;
      const Float4 product = mfma(E{}, rows[j][h], columns[c][h], Float4{v[0], v[1], v[2], v[3]});
#pragma unroll
      for (int r = 0; r < 4; ++r) v[r] = product[r];
      sched_barrier();
      after(i);
      sched_barrier();
    });
  }
}

// Keeps four accumulators where products leave them until this point: a copy for other instructions comes after it. For
// a kernel of more than 256 registers, whose products have accumulation registers, which other instructions cannot use.
template <class E>
XLSTM_DEVICE void arrive_at(Strip<E>& s, int first) {
  float* v = s.value + first;
  Float4 sums{v[0], v[1], v[2], v[3]};
  asm volatile("" : "+a"(sums));
#pragma unroll
  for (int r = 0; r < 4; ++r) v[r] = sums[r];
}

// The strip, times a number, as the next product's chain operand: its rows become k.
template <class E>
XLSTM_DEVICE ChainOperand<E> as_chain(const Strip<E>& s, float scale) {
  if constexpr (sizeof(E) == 1) {
    Strip<E> scaled = s;
    scaled.scale(scale);
    const uint32_t words[] = {pack_float8(E{}, scaled.value), pack_float8(E{}, scaled.value + 4)};
    return {__builtin_bit_cast(uint64_t, words)};
  } else {
    ChainOperand<E> o;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (sizeof(E) == 2)
        o.k.word[w] = pack(E{}, s.value[2 * w] * scale, s.value[2 * w + 1] * scale);
      else
        o.k.word[w] = as_bits(s.value[w] * scale);
    }
    return o;
  }
}

// Calls f(first row, the lane's column, the values) for each run of consecutive rows of a strip in this lane.
template <class E>
constexpr int kRun = Strip<E>::kRegisters;
template <class E, class F>
XLSTM_DEVICE void each_run(const Strip<E>& s, F&& f) {
  f(lane_id() / 16 * kRun<E>, 0, s.value);
}

// A chain operand whose k is features, from memory: load_vec(column, k) loads a lane's 16 bytes.
template <class E, class F>
XLSTM_DEVICE ChainOperand<E> chain_of(F&& load_vec, int k0) {
  return {load_vec(lane_id() % 16, k0 + lane_id() / 16 * kVec16Elements<E>)};
}

// Operands from a Tile (tile/lds_tile.h), which holds [side][k], transposed or not in memory.
template <bool kAlong, class E, class Tile>
XLSTM_DEVICE StreamOperand<E> load_stream(const Tile& t, int s0, int k0, int lane = lane_id()) {
  StreamOperand<E> o;
  const int i = lane % 16, k = lane / 16 * kVec16Elements<E>;
  const auto at = t.cursor(sizeof(E) == 2 ? interleaved_row(i, 0) : i, k);
  o.k[0] = read_vec16(t.at(at, s0, k0));
  if constexpr (sizeof(E) == 2) o.k[1] = read_vec16(t.at(at, s0 + interleaved_row(0, 1), k0));
  return o;
}

template <class E, class Tile>
XLSTM_DEVICE ChainOperand<E> load_chain_along(const Tile& t, int c0, int k0, int lane = lane_id()) {
  return {read_vec16(t.at(t.cursor(lane % 16, lane / 16 * kVec16Elements<E>), c0, k0))};
}

// The chain operand of a matrix whose k is tokens: `plain` without and `weighted` with row k times weight[k] scale.
template <class E, class Tile>
XLSTM_DEVICE void load_chain(const Tile& t, int c0, int k0, const float* weight, float scale, ChainOperand<E>& plain,
                             ChainOperand<E>& weighted, int lane = lane_id()) {
  plain = load_chain_along<E>(t, c0, k0, lane);
  const float* at = weight + k0 + lane / 16 * kVec16Elements<E>;
  Vec16 by[kVec16Elements<E> / 4];
#pragma unroll
  for (int h = 0; h < kVec16Elements<E> / 4; ++h) by[h] = read_vec16(at + 4 * h);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t x = plain.k.word[w];
    if constexpr (sizeof(E) == 2)
      weighted.k.word[w] = pack(E{}, low_float(E{}, x) * (as_float(by[w / 2].word[w % 2 * 2]) * scale),
                                high_float(E{}, x) * (as_float(by[w / 2].word[w % 2 * 2 + 1]) * scale));
    else
      weighted.k.word[w] = as_bits(as_float(x) * (as_float(by[0].word[w]) * scale));
  }
}

}  // namespace xlstm::gpu
