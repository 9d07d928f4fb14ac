// SPDX-License-Identifier: Apache-2.0
// The scalar rules of drawing a token, for the host and for GPU kernels; written here and nowhere else.
//
//   score    the logit, after the penalty on what was seen
//   rank     scores as integers that rise with them
//   weight   2^40 e^((score - greatest) / temperature), to the nearest integer
//   kept     the top_k highest ranks, all that tie with the last of them, then in falling order of rank, and of tokens
//            that tie the first first, those before which less than top_p of the weights has come
//   drawn    the first token at which the running sum of kept weights exceeds (64 random bits) / 2^64 of all of it
//
// Weights are integers, so their sums have no order, and every step of one is exact or an operation that IEEE 754
// defines to the last bit: every CPU, GPU, batch and cut of the work draws the same token. A token less likely than
// 2^-41 of the likeliest is never drawn.
#pragma once

#include <stdint.h>

#include <numbers>

#include "base/philox.h"
#include "xlstm_hip.h"

namespace xlstm {

constexpr int kWeightBits = 40;
constexpr uint64_t kGreatestWeight = uint64_t(1) << kWeightBits;
constexpr int64_t kMostVocabulary = 1 << 22;  // a sum of weights then has 62 bits
constexpr int64_t kNothingDrawn = -1;         // NaN among the logits, or no logit above -infinity
constexpr int kMostEnds = 64;

// What a call's numbers say, made once on the host: every device reads the same.
struct DrawRules {
  float penalty;
  double steepness;  // log2(e) / temperature
  uint64_t share;    // top_p in steps of 2^-63
  bool greedy, some_k, some_p;
};
inline DrawRules rules_of(const xlstm_draw& p) {
  constexpr double kWhole = 9223372036854775808.0;  // 2^63
  const uint64_t share = uint64_t(p.top_p * kWhole);
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
// Of a row whose highest rank this is.
XLSTM_RULE bool nothing_to_draw(uint32_t rank, bool greedy) {
  return rank == kRankOfNan || (!greedy && rank == kRankOfNothing);
}
// The greatest of these is the first token of the highest rank.
XLSTM_RULE uint64_t place_of(uint32_t rank, int64_t token) { return uint64_t(rank) << 32 | ~uint32_t(token); }
XLSTM_RULE int64_t token_of(uint64_t place) { return ~uint32_t(place); }

// How many times a token's weight is halved, of a score that is not the greatest. In double: no product of floats
// stands where a compiler would fuse it with the difference.
XLSTM_RULE double halvings(float score, float greatest, double steepness) {
  return (double(greatest) - double(score)) * steepness;
}

XLSTM_RULE uint64_t weight_of(float score, float greatest, double steepness) {
  if (score == greatest) return kGreatestWeight;
  if (!(halvings(score, greatest, steepness) < kWeightBits + 2)) return 0;
  const double below = double(greatest) - double(score);
  const int whole = int(__builtin_fma(below, steepness, 0.5));
  const double part = __builtin_fma(below, steepness, -double(whole));  // within a half of 0
  double power = 2.5678435993488196e-11;                                // 2^-part by its series
  power = __builtin_fma(power, part, -4.44553827187081e-10);
  power = __builtin_fma(power, part, 7.054911620801121e-09);
  power = __builtin_fma(power, part, -1.0178086009239696e-07);
  power = __builtin_fma(power, part, 1.3215486790144305e-06);
  power = __builtin_fma(power, part, -1.5252733804059838e-05);
  power = __builtin_fma(power, part, 0.00015403530393381606);
  power = __builtin_fma(power, part, -0.0013333558146428441);
  power = __builtin_fma(power, part, 0.009618129107628477);
  power = __builtin_fma(power, part, -0.055504108664821576);
  power = __builtin_fma(power, part, 0.2402265069591007);
  power = __builtin_fma(power, part, -0.6931471805599453);
  power = __builtin_fma(power, part, 1.0);
  const double unit = __builtin_bit_cast(double, uint64_t(1023 + kWeightBits - whole) << 52);
  return uint64_t(__builtin_fma(power, unit, 0.5));
}

XLSTM_RULE uint64_t high_product(uint64_t a, uint64_t b) {
  const uint64_t low = uint64_t(uint32_t(a)) * uint32_t(b), middle = (a >> 32) * uint32_t(b) + (low >> 32);
  const uint64_t other = uint64_t(uint32_t(a)) * (b >> 32) + uint32_t(middle);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

// The least integer that is not below this share of the total.
XLSTM_RULE uint64_t share_of(uint64_t share, uint64_t total) {
  const uint64_t low = share * total;
  return (high_product(share, total) << 1 | low >> 63) + ((low << 1) != 0);
}

// Where the draw of this number falls among weights of this sum.
XLSTM_RULE uint64_t drawn_place(uint64_t seed, uint64_t number, uint64_t total) {
  const Philox bits = philox(uint32_t(number), uint32_t(number >> 32), 0, 0, seed);
  return high_product(uint64_t(bits.word[1]) << 32 | bits.word[0], total);
}

// The lowest rank that is kept, and how much stands above it.
struct Edge {
  uint32_t rank;
  uint64_t above;
};
// How many tokens of that rank are kept, each of this weight.
XLSTM_RULE uint64_t kept_at_edge(uint64_t limit, uint64_t above, uint64_t weight) {
  return weight ? (limit - above + weight - 1) / weight : uint64_t(kMostVocabulary);
}

// Ranks are told apart by these bits, one after the other: bins for each, those of high ranks first.
constexpr int kBins = 2048, kDigits = 3;
XLSTM_RULE int digit_shift(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
XLSTM_RULE int bin_of(uint32_t rank, int digit) { return kBins - 1 - int(rank >> digit_shift(digit) & (kBins - 1)); }
XLSTM_RULE uint32_t bin_bits(int bin, int digit) { return uint32_t(kBins - 1 - bin) << digit_shift(digit); }

}  // namespace xlstm
