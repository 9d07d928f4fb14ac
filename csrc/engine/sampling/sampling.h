// SPDX-License-Identifier: Apache-2.0
// The scalar rules of sampling a token, for CPU and GPU kernels; written here and nowhere else.
//
//   score    the logit, after the repetition penalty on tokens that were seen
//   rank     an integer that rises with the score
//   weight   2^40 e^((score - max_score) / temperature), to the nearest integer
//   kept     the tokens of the top_k highest ranks and all that tie with the last of them; then, in falling order of
//            rank and rising order of tokens, those before which less than top_p of the weights has come
//   sampled  the first token at which the running sum of kept weights exceeds (64 random bits) / 2^64 of their total
//
// Weights are integers, so their sums do not depend on an order. Every step of computing a weight is exact, or an
// operation that IEEE 754 defines to the last bit. So every CPU, GPU, batch and split of the work samples the same
// token. A token less likely than 2^-41 of the likeliest is never sampled.
#pragma once

#include <stdint.h>

#include <numbers>

#include "base/philox.h"
#include "xlstm_hip.h"

namespace xlstm {

constexpr int kWeightBits = 40;
constexpr uint64_t kMaxWeight = uint64_t(1) << kWeightBits;
constexpr int64_t kMaxVocabulary = 1 << 22;  // so that a sum of weights has 62 bits
constexpr int64_t kNothingSampled = -1;      // a logit is NaN, or no logit is above -infinity
constexpr int kMaxEnds = 64;

// The parameters of a call, computed once on the host, so that every device has the same.
struct SampleRules {
  float penalty;
  double steepness;  // log2(e) / temperature
  uint64_t share;    // top_p in steps of 2^-63
  bool greedy, some_k, some_p;
};
inline SampleRules rules_of(const xlstm_draw& p) {
  constexpr double kTwoTo63 = 9223372036854775808.0;  // 2^63
  const uint64_t share = uint64_t(p.top_p * kTwoTo63);
  const bool greedy = p.temperature == 0;
  return {float(p.repetition_penalty),
          greedy ? 0 : std::numbers::log2e / p.temperature,
          share ? share : 1,
          greedy,
          p.top_k > 0 && p.top_k < p.vocab,
          p.top_p < 1};
}

XLSTM_RULE float score_of(float logit, bool seen, float penalty) {
  const float score = !seen ? logit : logit > 0 ? logit / penalty : logit * penalty;
  return score + 0.0f;  // -0 is 0
}

constexpr uint32_t kRankOfNan = ~uint32_t(0), kRankOfNothing = 0x007fffff;  // of -infinity
XLSTM_RULE uint32_t rank_of(float score) {
  if (score != score) return kRankOfNan;
  const uint32_t bits = __builtin_bit_cast(uint32_t, score);
  return bits >> 31 ? ~bits : bits | uint32_t(1) << 31;
}
XLSTM_RULE float score_of_rank(uint32_t rank) {
  return __builtin_bit_cast(float, rank >> 31 ? rank & 0x7fffffff : ~rank);
}
// rank: the highest of a row.
XLSTM_RULE bool nothing_to_sample(uint32_t rank, bool greedy) {
  return rank == kRankOfNan || (!greedy && rank == kRankOfNothing);
}
// The maximum of these keys is that of the first token of the highest rank.
XLSTM_RULE uint64_t greedy_key(uint32_t rank, int64_t token) { return uint64_t(rank) << 32 | ~uint32_t(token); }
XLSTM_RULE int64_t token_of(uint64_t key) { return ~uint32_t(key); }

// How many times the weight of a token is halved; score is not max_score. In double, and written so that no compiler
// can fuse a product of floats with the difference.
XLSTM_RULE double halvings(float score, float max_score, double steepness) {
  return (double(max_score) - double(score)) * steepness;
}

XLSTM_RULE uint64_t weight_of(float score, float max_score, double steepness) {
  if (score == max_score) return kMaxWeight;
  if (!(halvings(score, max_score, steepness) < kWeightBits + 2)) return 0;
  const double below = double(max_score) - double(score);
  const int integer = int(__builtin_fma(below, steepness, 0.5));
  const double fraction = __builtin_fma(below, steepness, -double(integer));  // within 1/2 of 0
  double power = 2.5678435993488196e-11;                                      // 2^-fraction by its series
  power = __builtin_fma(power, fraction, -4.44553827187081e-10);
  power = __builtin_fma(power, fraction, 7.054911620801121e-09);
  power = __builtin_fma(power, fraction, -1.0178086009239696e-07);
  power = __builtin_fma(power, fraction, 1.3215486790144305e-06);
  power = __builtin_fma(power, fraction, -1.5252733804059838e-05);
  power = __builtin_fma(power, fraction, 0.00015403530393381606);
  power = __builtin_fma(power, fraction, -0.0013333558146428441);
  power = __builtin_fma(power, fraction, 0.009618129107628477);
  power = __builtin_fma(power, fraction, -0.055504108664821576);
  power = __builtin_fma(power, fraction, 0.2402265069591007);
  power = __builtin_fma(power, fraction, -0.6931471805599453);
  power = __builtin_fma(power, fraction, 1.0);
  const double unit = __builtin_bit_cast(double, uint64_t(1023 + kWeightBits - integer) << 52);
  return uint64_t(__builtin_fma(power, unit, 0.5));
}

XLSTM_RULE uint64_t high_product(uint64_t a, uint64_t b) {
  const uint64_t low = uint64_t(uint32_t(a)) * uint32_t(b), middle = (a >> 32) * uint32_t(b) + (low >> 32);
  const uint64_t other = uint64_t(uint32_t(a)) * (b >> 32) + uint32_t(middle);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

// ceil(share / 2^63 * total).
XLSTM_RULE uint64_t share_of(uint64_t share, uint64_t total) {
  const uint64_t low = share * total;
  return (high_product(share, total) << 1 | low >> 63) + ((low << 1) != 0);
}

// The position of the sample with this number among weights with this sum.
XLSTM_RULE uint64_t sampled_position(uint64_t seed, uint64_t number, uint64_t total) {
  const Philox bits = philox(uint32_t(number), uint32_t(number >> 32), 0, 0, seed);
  return high_product(uint64_t(bits.word[1]) << 32 | bits.word[0], total);
}

// The lowest rank that is kept, and the sum of what lies above it.
struct Edge {
  uint32_t rank;
  uint64_t above;
};
// How many of the tokens that tie at that rank are kept, if each has this weight.
XLSTM_RULE uint64_t ties_to_keep(uint64_t limit, uint64_t above, uint64_t weight) {
  return weight ? (limit - above + weight - 1) / weight : uint64_t(kMaxVocabulary);
}

// A rank is found digit by digit, by a histogram of each: the bins of high ranks come first.
constexpr int kBins = 2048, kDigits = 3;
XLSTM_RULE int digit_shift(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
XLSTM_RULE int bin_of(uint32_t rank, int digit) { return kBins - 1 - int(rank >> digit_shift(digit) & (kBins - 1)); }
XLSTM_RULE uint32_t bin_bits(int bin, int digit) { return uint32_t(kBins - 1 - bin) << digit_shift(digit); }

}  // namespace xlstm
