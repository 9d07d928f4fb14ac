// SPDX-License-Identifier: Apache-2.0
// One token of one head on a CPU: the decay by its gates, and the update of n and of a tile of values of C and h. The
// recurrent kernel and the decode step consist of these functions.
#pragma once

#include "mlstm/cpu/sequences.h"
#include "mlstm/recurrence.h"

namespace xlstm::XLSTM_ISA::mlstm {

// How a head's values are split among tasks.
struct Tiling {
  int64_t width, count;  // values per task, tasks per head

  // Splits values only when the heads do not fill the workers, in full cache lines and at least 64 values per task.
  Tiling(int64_t dhv, int64_t heads, int64_t workers) {
    constexpr int64_t kMinWidth = 64;
    const int64_t wanted = (workers + heads - 1) / heads, max_tiles = (dhv + kMinWidth - 1) / kMinWidth;
    const int64_t tiles = wanted < max_tiles ? wanted : max_tiles;
    width = ((dhv + tiles - 1) / tiles + 15) / 16 * 16;
    count = (dhv + width - 1) / width;
  }
};

// The factors by which a token's gates decay a state whose stabiliser was m and scale the new token.
template <class T>
struct Decay {
  double m;  // the new stabiliser
  T forget, input;
};
template <class T>
inline Decay<T> decay(bool sigmoid_gate, const TokenGates& g, double m) {
  const double next = next_stabiliser(sigmoid_gate, g.lf, m, g.ig);
  return {next, T(::exp(g.lf + m - next)), T(::exp(g.ig - next))};
}

// n' = forget n + input k; returns l = q.n'.
template <class T>
inline T update_n(const Decay<T>& decay, const T* q, const T* k, T* n, int64_t dqk) {
  for (int64_t d = 0; d < dqk; ++d) n[d] = decay.forget * n[d] + decay.input * k[d];
  return T(dot(q, n, dqk));
}

// c' = forget c + (input k) v^T and h = q c', for `width` values; four rows of c at a time share the loads of v and h.
template <class T>
void update_c(const Decay<T>& decay, const T* c, T* c_next, int64_t stride, const T* q, const T* k, const T* v, T* h,
              int64_t dqk, int64_t width) {
  const T forget = decay.forget, input = decay.input;
  for (int64_t j = 0; j < width; ++j) h[j] = 0;
  int64_t d = 0;
  const int64_t vector_width = width / kLanes<T> * kLanes<T>;
  for (; d + 4 <= dqk; d += 4) {
    const T k0 = input * k[d], k1 = input * k[d + 1], k2 = input * k[d + 2], k3 = input * k[d + 3];
    const T *c0 = c + d * stride, *c1 = c0 + stride, *c2 = c1 + stride, *c3 = c2 + stride;
    T *o0 = c_next + d * stride, *o1 = o0 + stride, *o2 = o1 + stride, *o3 = o2 + stride;
    for (int64_t j = 0; j < vector_width; j += kLanes<T>) {
      const Vec<T> value = load(v + j);
      const Vec<T> x0 = load(c0 + j) * forget + value * k0, x1 = load(c1 + j) * forget + value * k1;
      const Vec<T> x2 = load(c2 + j) * forget + value * k2, x3 = load(c3 + j) * forget + value * k3;
      store(o0 + j, x0);
      store(o1 + j, x1);
      store(o2 + j, x2);
      store(o3 + j, x3);
      store(h + j, load(h + j) + (x0 * q[d] + x1 * q[d + 1]) + (x2 * q[d + 2] + x3 * q[d + 3]));
    }
    for (int64_t j = vector_width; j < width; ++j)
      for (int64_t r = d; r < d + 4; ++r) {
        const T x = c[r * stride + j] * forget + v[j] * (input * k[r]);
        c_next[r * stride + j] = x;
        h[j] += x * q[r];
      }
  }
  for (; d < dqk; ++d)
    for (int64_t j = 0; j < width; ++j) {
      const T x = c[d * stride + j] * forget + v[j] * (input * k[d]);
      c_next[d * stride + j] = x;
      h[j] += x * q[d];
    }
}

// ---- C in bfloat16
//
// A vector of 32-bit words holds pairs of columns, the even ones below. So rows of float beside it (v, h) are kept as
// their even columns and, behind those, their odd ones: nothing is shuffled in the loop over C.

constexpr int kPairs = kLanes<float>;  // of a vector

// Pairs of `width` values, padded to whole vectors.
inline int64_t padded_pairs(int64_t width) { return (width + 2 * kPairs - 1) / (2 * kPairs) * kPairs; }

inline void split_pairs(const float* row, float* pairs, int64_t width) {
  const int64_t odd = padded_pairs(width);
  for (int64_t j = 0; j < 2 * odd; ++j) pairs[j] = 0;
  for (int64_t j = 0; j < width; ++j) pairs[j / 2 + j % 2 * odd] = row[j];
}
inline void join_pairs(const float* pairs, float* row, int64_t width) {
  const int64_t odd = padded_pairs(width);
  for (int64_t j = 0; j < width; ++j) row[j] = pairs[j / 2 + j % 2 * odd];
}

// Two vectors rounded stochastically (recurrence.h), packed: the bits plus 16 random ones, truncated. Random bits could
// make a number of a NaN, so a pair with one is truncated as it is.
inline Vec<uint32_t> pack_stochastic(Vec<float> even, Vec<float> odd, Vec<uint32_t> random) {
  random &= Vec<uint32_t>(even == even) & Vec<uint32_t>(odd == odd);
  return (Vec<uint32_t>(even) + (random & 0xffffu)) >> 16 | ((Vec<uint32_t>(odd) + (random >> 16)) & 0xffff0000u);
}

// The random bits of the rows of C. n: theirs before the token, so before update_n.
inline void fill_row_bits(const Decay<float>& decay, int64_t head, const float* n, uint32_t* bits, int64_t dqk) {
  uint32_t forget, input, before;
  memcpy(&forget, &decay.forget, 4);
  memcpy(&input, &decay.input, 4);
  const uint32_t token = token_bits(int(head), forget, input);
  for (int64_t d = 0; d < dqk; ++d) {
    memcpy(&before, n + d, 4);
    bits[d] = row_bits(token, d, before);
  }
}

// One vector of pairs in kRows rows of C, from `column` of the head on. bytes: what of it lies inside the rows.
template <int kRows>
inline void update_pairs(const Decay<float>& decay, const uint16_t* c, uint16_t* c_next, int64_t stride, const float* q,
                         const float* k, const uint32_t* bits, Vec<uint32_t> pair, const float* v, float* h,
                         int64_t odd, size_t bytes) {
  const Vec<float> v_even = load(v), v_odd = load(v + odd);
  Vec<float> h_even{}, h_odd{};
  for (int r = 0; r < kRows; ++r) {
    Vec<uint32_t> words{};
    memcpy(&words, c + r * stride, bytes);
    const float key = decay.input * k[r];
    const Vec<float> even = Vec<float>(words << 16) * decay.forget + v_even * key;
    const Vec<float> next = Vec<float>(words & 0xffff0000u) * decay.forget + v_odd * key;
    h_even += even * q[r];
    h_odd += next * q[r];
    words = pack_stochastic(even, next, pair_bits(broadcast(bits[r]), pair));
    memcpy(c_next + r * stride, &words, bytes);
  }
  store(h, load(h) + h_even);
  store(h + odd, load(h + odd) + h_odd);
}

// update_c of a C in bfloat16. v and h are split in pairs; column: the first of these `width` in the head, an even one.
inline void update_rounded_c(const Decay<float>& decay, const uint16_t* c, uint16_t* c_next, int64_t stride,
                             const float* q, const float* k, const uint32_t* bits, int64_t column, const float* v,
                             float* h, int64_t dqk, int64_t width) {
  const int64_t odd = padded_pairs(width);
  for (int64_t j = 0; j < 2 * odd; ++j) h[j] = 0;
  Vec<uint32_t> lanes;
  for (int j = 0; j < kPairs; ++j) lanes[j] = uint32_t(j);
  const auto rows = [&]<int kRows>(int64_t d) {
    for (int64_t p = 0; p < odd; p += kPairs) {
      const int64_t left = width - 2 * p, at = d * stride + 2 * p;
      const auto part = [&](size_t bytes) {
        update_pairs<kRows>(decay, c + at, c_next + at, stride, q + d, k + d, bits + d,
                            lanes + uint32_t(column / 2 + p), v + p, h + p, odd, bytes);
      };
      left >= 2 * kPairs ? part(kVectorBytes) : part(size_t(left) * sizeof(uint16_t));
    }
  };
  int64_t d = 0;
  for (; d + 4 <= dqk; d += 4) rows.template operator()<4>(d);
  for (; d < dqk; ++d) rows.template operator()<1>(d);
}

}  // namespace xlstm::XLSTM_ISA::mlstm
