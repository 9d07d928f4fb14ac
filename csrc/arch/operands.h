// SPDX-License-Identifier: Apache-2.0
// Builds matrix operands from rows of tokens by features in memory or in an LDS tile: a lane loads vectors of the rows
// (arch/layouts.h says which) and forms operands of them in registers. With features as k the vectors are the operands,
// in an order of k that both sides share. With tokens as k the lane transposes, with one instruction for two elements.
// So keys that are used once need no LDS, and an LDS tile that is both key and value serves both products.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

// This lane's id, opaque: what derives from it is computed after this point.
XLSTM_DEVICE int opaque_lane() {
  const int lane = int(opaque(uint32_t(lane_id())));
  __builtin_assume(lane >= 0 && lane < kWave);
  return lane;
}

template <class E>
constexpr int kUnit = unit_features(kFamily, sizeof(E));
template <class E>
constexpr int kUnitSteps = kUnit<E> / kStep<E>;  // multiplies for a unit
template <class E>
constexpr int kStreamVec16s = stream_vec16s(kFamily, sizeof(E));
template <class E>
constexpr int kChainVec16s = chain_vec16s(kFamily, sizeof(E));

// What a lane's vector of a unit has for step s where it is an operand as it lies: floats of 8 bits have two steps in
// it.
template <class E>
XLSTM_DEVICE auto step_of(const Vec16& p, [[maybe_unused]] int s) {
  if constexpr (sizeof(E) == 1)
    return uint64_t(p.word[2 * s]) | uint64_t(p.word[2 * s + 1]) << 32;
  else
    return p;
}

// The operands of step s of a unit, from a lane's vectors of the unit.
template <class E>
XLSTM_DEVICE StreamOperand<E> stream_of(const Vec16 (&p)[kStreamVec16s<E>], [[maybe_unused]] int s) {
  StreamOperand<E> o;
  if constexpr (kFamily == Family::cdna) {
#pragma unroll
    for (int j = 0; j < kStreamVec16s<E>; ++j) o.k[j] = step_of<E>(p[j], s);
  } else if constexpr (is_rdna(kFamily)) {
#pragma unroll
    for (int w = 0; w < wmma_words(kFamily); ++w)
      if constexpr (sizeof(E) == 2)
        o.word[w] = p[w / 4].word[w % 4];
      else
        set_word(o, w, as_float(p[w / 2].word[w % 2 * 2]), as_float(p[w / 2].word[w % 2 * 2 + 1]));
  } else {
#pragma unroll
    for (int w = 0; w < 4; ++w)  // k 2q or 2q + 8 of rows 0 to 7, then of rows 8 to 15
      if constexpr (sizeof(E) == 2)
        o.word[w] = p[w / 2].word[2 * s + w % 2];
      else
        split(o, w, as_float(p[w / 2].word[w % 2 * 2]), as_float(p[w / 2].word[w % 2 * 2 + 1]));
  }
  return o;
}
template <class E>
XLSTM_DEVICE ChainOperand<E> chain_of_vec16s(const Vec16 (&p)[kChainVec16s<E>], [[maybe_unused]] int s) {
  if constexpr (kFamily == Family::cdna) {
    return {step_of<E>(p[0], s)};
  } else if constexpr (is_rdna(kFamily)) {
    return stream_of<E>(p, s);
  } else {
    const StreamOperand<E> across = stream_of<E>(p, s);  // the chain side alternates rows 0 to 7 and 8 to 15
    ChainOperand<E> o;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int from = w % 2 * 2 + w / 2;
      if constexpr (sizeof(E) == 2)
        o.word[w] = across.word[from];
      else
#pragma unroll
        for (int part = 0; part < 3; ++part) o.part[part][w] = across.part[part][from];
    }
    return o;
  }
}

// A lane's vector of a row in a block that is transposed.
template <class E>
struct alignas(4 * transposed_words(kFamily, sizeof(E))) TransposedVec16 {
  uint32_t word[transposed_words(kFamily, sizeof(E))];
};
template <class E>
constexpr int kTransposedVec16s = transposed_vec16s(kFamily, sizeof(E));
template <class E>
constexpr int kTransposedStrips = transposed_strips(kFamily, sizeof(E));
template <class E>
constexpr int kTransposedFeatures = transposed_features(kFamily, sizeof(E));
template <class E>
constexpr int kTransposedElements = transposed_elements(kFamily, sizeof(E));

// 4, 8 or 16 bytes of device memory, at a uniform base and an offset of each lane.
template <class Vec>
XLSTM_DEVICE Vec load_as(const char* base, uint32_t offset) {
  if constexpr (sizeof(Vec) == 16) return __builtin_bit_cast(Vec, load_vec16(base, offset));
#if defined(__CUDACC__)
  return *reinterpret_cast<const Vec*>(base + offset);
#else
  if constexpr (sizeof(Vec) == 8)
    return __builtin_bit_cast(Vec, *(const __attribute__((address_space(1))) uint64_t*)(base + offset));
  else if constexpr (sizeof(Vec) == 4)
    return __builtin_bit_cast(Vec, *(const __attribute__((address_space(1))) uint32_t*)(base + offset));
#endif
}

template <class E>
XLSTM_DEVICE TransposedVec16<E> read_transposed(const void* from) {
  if constexpr (sizeof(TransposedVec16<E>) == 16)
    return __builtin_bit_cast(TransposedVec16<E>, read_vec16(from));
  else if constexpr (sizeof(TransposedVec16<E>) == 4)
    return {{*static_cast<const uint32_t*>(from)}};
  else
    return __builtin_bit_cast(TransposedVec16<E>, *reinterpret_cast<const uint64_t*>(from));
}

// The stream operand of a block's strip t: its rows are features, and k are the tokens.
template <class E>
XLSTM_DEVICE StreamOperand<E> transposed(const TransposedVec16<E> (&p)[kTransposedVec16s<E>], int t) {
  StreamOperand<E> o;
  if constexpr (kFamily == Family::cdna && sizeof(E) == 1) {  // bytes 2 t and 2 t + 1 of eight tokens
    uint32_t word[2][2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t a = join_bytes(p[4 * w].word[0], p[4 * w + 1].word[0], t);
      const uint32_t b = join_bytes(p[4 * w + 2].word[0], p[4 * w + 3].word[0], t);
#pragma unroll
      for (int j = 0; j < 2; ++j) word[j][w] = join_halves(a, b, j);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) o.k[j] = __builtin_bit_cast(uint64_t, word[j]);
  } else if constexpr (kFamily == Family::cdna) {
#pragma unroll
    for (int w = 0; w < 4; ++w)
      if constexpr (sizeof(E) == 2) {
        o.k[0].word[w] = join_halves(p[2 * w].word[t], p[2 * w + 1].word[t], false);
        o.k[1].word[w] = join_halves(p[2 * w].word[t], p[2 * w + 1].word[t], true);
      } else {
        o.k[0].word[w] = p[w].word[t];
      }
  } else if constexpr (is_rdna(kFamily)) {
#pragma unroll
    for (int w = 0; w < wmma_words(kFamily); ++w)
      if constexpr (sizeof(E) == 2) {
        const uint32_t a = p[2 * w].word[t / 2], b = p[2 * w + 1].word[t / 2];
        o.word[w] = join_halves(a, b, t % 2);
      } else {
        set_word(o, w, as_float(p[2 * w].word[t]), as_float(p[2 * w + 1].word[t]));
      }
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h)  // tokens 2q and 2q + 1, then 2q + 8 and 2q + 9
      if constexpr (sizeof(E) == 2) {
        const uint32_t a = p[2 * h].word[t], b = p[2 * h + 1].word[t];
        o.word[h] = join_halves(a, b, false);
        o.word[2 + h] = join_halves(a, b, true);
      } else {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          split(o, 2 * e + h, as_float(p[2 * h].word[2 * t + e]), as_float(p[2 * h + 1].word[2 * t + e]));
      }
  }
  return o;
}

// Calls f(first feature in the block, the lane's column, the values) for each vector of features that a lane's strips
// of a block hold.
template <class E, class F>
XLSTM_DEVICE void for_each_run(const Strip<E>* block, int stride, F&& f, int lane = lane_id()) {
  constexpr int n = kTransposedElements<E>;
#pragma unroll
  for (int j = 0; j < lane_columns(kFamily); ++j)
#pragma unroll
    for (int h = 0; h < accumulator_vecs(kFamily); ++h) {
      float value[n];
#pragma unroll
      for (int e = 0; e < n; ++e) {
        const StripRegister at = accumulator_register(kFamily, sizeof(E), h, e, j);
        value[e] = block[at.strip * stride].value[at.r];
      }
      f(accumulator_vec_feature(kFamily, sizeof(E), lane, h), j, value);
    }
}

}  // namespace xlstm::gpu
