// SPDX-License-Identifier: Apache-2.0
// The scalar maths of the mLSTM, for the host and for GPU kernels: the effect of one token on the stabiliser, and the
// normaliser that the output is divided by. All maths on gates in any kernel is defined in this file.
//
//   exp gate:      lf = logsigmoid(f)   ig = i               m' = max(lf + m, ig)
//   sigmoid gate:  lf = logsigmoid(f)   ig = logsigmoid(i)   m' = 0
//   soft cap:      i and f are cap tanh(x / cap) of the inputs
//   C' = e^(lf + m - m') C + e^(ig - m') k v^T    n' likewise    h = q C' / N    N = max(|q n'|, e^-m') + eps
//
// With the sigmoid gate m is the stabiliser of the initial state only, and e^-m' = 1.
//
// C in bfloat16 is computed in float and rounded stochastically: up with the probability that makes the rounding exact
// in the mean. To nearest, an update below half a unit of the last place (2^-9 of C) is lost: with forget gates near 1
// C then learns nothing. Roundings that are exact in the mean add up as a random walk does.
#pragma once

#include <math.h>
#include <stdint.h>

#include "base/host_device.h"

namespace xlstm {

XLSTM_HOST_DEVICE static inline double log_sigmoid(double x) {
  const double rest = log1p(exp(-fabs(x)));  // the exponential is at most one; NaN stays NaN
  return x < 0 ? x - rest : -rest;
}

XLSTM_HOST_DEVICE static inline double sigmoid(double x) {
  const double e = exp(-fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}

// cap tanh(x / cap), and x where cap is 0. The result becomes an exponent, so near 0 its absolute error matters, not
// the relative one.
XLSTM_HOST_DEVICE static inline double capped_gate(double x, double cap) {
  if (cap == 0) return x;
  const double e = exp(-2 * fabs(x) / cap);
  return copysign(cap * ((1 - e) / (1 + e)), x);
}

// A max that propagates NaN, as torch.maximum does.
XLSTM_HOST_DEVICE static inline double nan_max(double a, double b) { return a != a || a > b ? a : b; }

// Whether m' came from the forget path. Backward asks the same question as forward did.
XLSTM_HOST_DEVICE static inline bool keeps_stabiliser(double lf, double m, double ig) { return lf + m > ig; }

XLSTM_HOST_DEVICE static inline double next_stabiliser(bool sigmoid_gate, double lf, double m, double ig) {
  return sigmoid_gate ? 0.0 : nan_max(lf + m, ig);
}

// The divisor of the output. l = q n', signed.
XLSTM_HOST_DEVICE static inline double normaliser(bool normalize, double l, double m, double eps) {
  if (!normalize) return 1.0;
  return nan_max(fabs(l), exp(-m)) + eps;
}

// The gradients of l and m' through N, given dot = dh . h: dh/dN = -h / N. At a fixed unstabilised state, a change of
// m' changes only the weight of eps. dl is returned times N, for a walk whose rows are dh rather than dh / N.
struct NormaliserGrad {
  double dl_times_n, dm;
};
XLSTM_HOST_DEVICE static inline NormaliserGrad normaliser_grad(bool normalize, double l, double m, double eps,
                                                               double dot) {
  if (!normalize) return {0.0, 0.0};
  const bool l_wins = fabs(l) > exp(-m);
  return {l_wins ? (l < 0 ? dot : -dot) : 0.0, -dot * (eps / normaliser(true, l, m, eps))};
}

// ---- the random bits of C's rounding
//
// A hash of the element's place in its head, of the head, and of bits of its row's own state: the factors of the
// token's gates and n before the token. n changes with every token that changes C, so the bits do too; and a row has
// the same bits in any batch, at any place of it, and in a replayed graph.

constexpr uint32_t kBitsMultiplier = 0xD2511F53u, kBitsStep = 0x9E3779B9u;

XLSTM_RULE uint32_t mixed_bits(uint32_t x) {
  x = (x ^ x >> 16) * kBitsMultiplier;
  x = (x ^ x >> 15) * 0xCD9E8D57u;
  return x ^ x >> 16;
}
// Of all elements of a head. forget and input: the bits of the factors, as floats.
XLSTM_RULE uint32_t token_bits(int head, uint32_t forget, uint32_t input) {
  return mixed_bits(mixed_bits(forget + uint32_t(head) * kBitsStep) + input);
}
// Of a row of C. n: the bits of the row's n before the token.
XLSTM_RULE uint32_t row_bits(uint32_t token, int64_t row, uint32_t n) {
  return mixed_bits((token + uint32_t(row) * kBitsStep) ^ n);
}
// Of columns 2 pair and 2 pair + 1: the lower and the upper 16 bits. Bits: uint32_t, or a vector of them.
template <class Bits>
XLSTM_RULE Bits pair_bits(Bits row, Bits pair) {
  const Bits x = row + pair * kBitsStep;
  return (x ^ x >> 15) * kBitsMultiplier;
}

}  // namespace xlstm
