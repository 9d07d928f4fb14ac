// SPDX-License-Identifier: Apache-2.0
// Samples the next token of each row on a GPU, by the rules of sampling.h: a block has a row, each of its waves a range
// of tokens.
//
// The lowest kept rank is found by histograms in LDS, filled by atomics on integers, whose order does not matter. The
// first histogram has bins of equal steps of the score below the maximum, which spread a row's tokens; further ones
// resolve the digits of the rank within one such bin. A row is read from memory once and from L2 in later passes,
// twelve in all with top_k and top_p. Latency binds, and exponentials in double, where all tokens are weighed, at most
// twice: 17 double instructions each.
#pragma once

#include "arch/fragments.h"
#include "engine/sampling/sampling.h"

namespace xlstm::gpu::engine {

constexpr int kSampleThreads = 1024, kSampleWaves = kSampleThreads / kWave, kLoadsAtOnce = 4;
constexpr int kThreadBins = kBins / kSampleThreads;
// Coarse bins for each halving of the weight: past the last bin weights are 0.
constexpr double kCoarseSteps = 48;
static_assert(kCoarseSteps * (kWeightBits + 2) < kBins - 1 && kThreadBins == 2);

struct SampleParams {
  xlstm_draw call;
  SampleRules rules;
};

struct SampleSmem {  // of a block
  unsigned long long bins[kBins];
  uint64_t of_wave[kSampleWaves];
  uint64_t above;
  int bin, token;
};

template <class Op>
XLSTM_DEVICE uint64_t over_wave(uint64_t x, Op&& op) {
#pragma unroll
  for (int mask = 1; mask < kWave; mask *= 2) x = op(x, shuffle_from(x, lane_id() ^ mask, kWave));
  return x;
}
XLSTM_DEVICE uint64_t sum_up_to(uint64_t x) {  // over this lane and the lanes before it
#pragma unroll
  for (int apart = 1; apart < kWave; apart *= 2) {
    const uint64_t other = shuffle_from(x, lane_id() - apart, kWave);
    x += lane_id() >= apart ? other : 0;
  }
  return x;
}

// One row, and this thread's share of it.
struct SampleRow {
  const float* logits;
  const uint8_t* seen;  // or null
  int vocab, begin, end;
  float penalty;
  SampleSmem& smem;

  XLSTM_DEVICE SampleRow(const xlstm_draw& p, float penalty_, int64_t b, SampleSmem& r)
      : logits(p.logits + b * p.vocab),
        seen(p.seen ? p.seen + b * p.vocab : nullptr),
        vocab(int(p.vocab)),
        penalty(penalty_),
        smem(r) {
    const int range = (vocab + kSampleThreads - 1) / kSampleThreads * kWave;
    begin = wave_id() * range;
    end = begin + range < vocab ? begin + range : vocab;
  }
  // Calls f(token, score) for each token of this thread. Several logits are loaded at once and then moved up one by
  // one: f is large, and unrolling would copy it for each.
  template <class F>
  XLSTM_DEVICE void each(F&& f) const {
    for (int first = begin + lane_id(); first < end; first += kLoadsAtOnce * kWave) {
      float logit[kLoadsAtOnce];
      unsigned was_seen = 0;
#pragma unroll
      for (int j = 0; j < kLoadsAtOnce; ++j) {
        const int token = first + j * kWave < end ? first + j * kWave : first;
        logit[j] = logits[token];
        if (seen) was_seen |= unsigned(seen[token] != 0) << j;
      }
#pragma unroll 1
      for (int token = first; token < end && token < first + kLoadsAtOnce * kWave; token += kWave) {
        f(token, score_of(logit[0], was_seen & 1, penalty));
#pragma unroll
        for (int j = 1; j < kLoadsAtOnce; ++j) logit[j - 1] = logit[j];
        was_seen >>= 1;
      }
    }
  }
  XLSTM_DEVICE float score(int token) const { return score_of(logits[token], seen && seen[token], penalty); }

  // op over the values of all threads; the same result in every thread.
  template <class Op>
  XLSTM_DEVICE uint64_t over_block(uint64_t x, Op&& op) const {
    x = over_wave(x, op);
    __syncthreads();
    if (lane_id() == 0) smem.of_wave[wave_id()] = x;
    __syncthreads();
    x = smem.of_wave[0];
    for (int wave = 1; wave < kSampleWaves; ++wave) x = op(x, smem.of_wave[wave]);
    return x;
  }
  template <class Amount>
  XLSTM_DEVICE uint64_t sum(Amount&& amount) const {
    uint64_t thread_sum = 0;
    each([&](int token, float score) { thread_sum += amount(token, score); });
    return over_block(thread_sum, [](uint64_t x, uint64_t y) { return x + y; });
  }

  // After sum(amount): the first token at which the running sum exceeds `position`.
  template <class Amount>
  XLSTM_DEVICE int token_at(uint64_t position, Amount&& amount) const {
    uint64_t before = 0;
    for (int wave = 0; wave < wave_id(); ++wave) before += smem.of_wave[wave];
    const bool is_in_wave = before <= position && position < before + smem.of_wave[wave_id()];
    for (int first = begin; is_in_wave && first < end && before <= position; first += kWave) {
      const int token = first + lane_id();
      const uint64_t weight = token < end ? amount(token, score(token)) : 0, up_to = before + sum_up_to(weight);
      if (up_to > position && up_to - weight <= position) smem.token = token;
      before = shuffle_from(up_to, kWave - 1, kWave);
    }
    __syncthreads();
    return smem.token;
  }

  // The bin in which sums of bins reach `limit`; adds the sum of the bins before it to `above`. The same in every
  // thread.
  XLSTM_DEVICE int bin_at(uint64_t limit, uint64_t& above) const {
    const unsigned long long* bins = smem.bins + kThreadBins * threadIdx.x;
    const uint64_t first = bins[0], pair_sum = first + bins[1], up_to = sum_up_to(pair_sum);
    if (lane_id() == kWave - 1) smem.of_wave[wave_id()] = up_to;
    __syncthreads();
    uint64_t before = above + up_to - pair_sum;
    for (int wave = 0; wave < wave_id(); ++wave) before += smem.of_wave[wave];
    if (before < limit && before + pair_sum >= limit) {
      const bool second = before + first < limit;
      smem.bin = kThreadBins * threadIdx.x + second;
      smem.above = before + (second ? first : 0);
    }
    __syncthreads();
    above = smem.above;
    return smem.bin;
  }
  // Adds amount(score, rank) of the tokens that belongs(score, rank) selects to the bins that bin(score, rank) names.
  template <class Amount, class Belongs, class Bin>
  XLSTM_DEVICE void fill_bins(Amount&& amount, Belongs&& belongs, Bin&& bin) const {
    __syncthreads();
    for (int j = 0; j < kThreadBins; ++j) smem.bins[j * kSampleThreads + threadIdx.x] = 0;
    __syncthreads();
    each([&](int, float score) {
      const uint32_t rank = rank_of(score);
      if (belongs(score, rank)) atomicAdd(smem.bins + bin(score, rank), (unsigned long long)amount(score, rank));
    });
    __syncthreads();
  }
  // The lowest rank above which amount(score, rank) adds up to less than `limit`.
  template <class Amount>
  XLSTM_DEVICE Edge find_edge(uint64_t limit, float max_score, double steepness, Amount&& amount) const {
    const auto coarse = [&](float score) {
      const double steps = score == max_score ? 0 : halvings(score, max_score, steepness) * kCoarseSteps;
      return steps < kBins - 1 ? int(steps) : kBins - 1;
    };
    Edge edge{0, 0};
    int coarse_bin = 0;
#pragma unroll 1
    for (int digit = -1; digit < kDigits; ++digit) {
      const auto belongs = [&](float score, uint32_t rank) {
        if (digit < 0) return true;
        return coarse(score) == coarse_bin && (digit == 0 || (rank ^ edge.rank) >> digit_shift(digit - 1) == 0);
      };
      const auto bin = [&](float score, uint32_t rank) { return digit < 0 ? coarse(score) : bin_of(rank, digit); };
      fill_bins(amount, belongs, bin);
      const int found = bin_at(limit, edge.above);
      if (digit < 0)
        coarse_bin = found;
      else
        edge.rank |= bin_bits(found, digit);
    }
    return edge;
  }
};

// Samples a token by the weights of those that are kept; all threads of the block call this.
XLSTM_DEVICE int64_t sample(const SampleParams& params, const SampleRow& row, int64_t b, float max_score) {
  const xlstm_draw& p = params.call;
  const SampleRules& rules = params.rules;
  const auto weight = [&](float score) { return weight_of(score, max_score, rules.steepness); };
  uint32_t min_rank = 0;
  int last = row.vocab;  // the last of the tokens of rank min_rank that is kept
  if (rules.some_k)
    min_rank = row.find_edge(uint64_t(p.top_k), max_score, rules.steepness, [](float, uint32_t) { return 1; }).rank;
  if (rules.some_p) {
    const auto amount = [&](float score, uint32_t rank) -> uint64_t { return rank >= min_rank ? weight(score) : 0; };
    const uint64_t total = row.sum([&](int, float score) { return amount(score, rank_of(score)); });
    const uint64_t limit = share_of(rules.share, total);
    const Edge edge = row.find_edge(limit, max_score, rules.steepness, amount);
    const uint64_t tie_count = ties_to_keep(limit, edge.above, weight(score_of_rank(edge.rank)));
    const auto ties = [&](int, float score) -> uint64_t { return rank_of(score) == edge.rank; };
    if (row.sum(ties) > tie_count) last = row.token_at(tie_count - 1, ties);
    min_rank = edge.rank;
  }
  const auto candidate_weight = [&](int token, float score) -> uint64_t {
    const uint32_t rank = rank_of(score);
    return rank > min_rank || (rank == min_rank && token <= last) ? weight(score) : 0;
  };
  if (p.weights) {
    int64_t* const weights = p.weights + b * p.vocab;
    row.each([&](int token, float score) { weights[token] = int64_t(candidate_weight(token, score)); });
  }
  const uint64_t total = row.sum(candidate_weight);
  return row.token_at(sampled_position(uint64_t(p.seeds[b]), uint64_t(p.numbers[b]), total), candidate_weight);
}

template <bool kGreedy>
__global__ __launch_bounds__(kSampleThreads) void sample_kernel(SampleParams params) {
  __shared__ SampleSmem smem;
  const xlstm_draw& p = params.call;
  const int64_t b = blockIdx.x;
  const SampleRow row(p, params.rules.penalty, b, smem);
  const bool is_finished = p.going && !p.going[b], first = threadIdx.x == 0;
  const int64_t previous_token = p.tokens[b];
  __syncthreads();
  if (first && !is_finished && p.seen && previous_token >= 0 && previous_token < p.vocab)
    p.seen[b * p.vocab + previous_token] = 1;
  __syncthreads();
  if (is_finished) {
    if (first) p.tokens[b] = p.pad;
    for (int token = threadIdx.x; p.weights && token < row.vocab; token += kSampleThreads)
      p.weights[b * p.vocab + token] = 0;
    return;
  }
  uint64_t best = 0;
  row.each([&](int token, float score) {
    const uint64_t key = greedy_key(rank_of(score), token);
    best = key > best ? key : best;
  });
  best = row.over_block(best, [](uint64_t x, uint64_t y) { return x > y ? x : y; });
  const uint32_t rank = uint32_t(best >> 32);
  const bool nothing = nothing_to_sample(rank, kGreedy);
  int64_t sampled = kNothingSampled;
  if constexpr (kGreedy) {
    if (!nothing) sampled = token_of(best);
  } else {
    if (!nothing) sampled = sample(params, row, b, score_of_rank(rank));
    for (int token = threadIdx.x; nothing && p.weights && token < row.vocab; token += kSampleThreads)
      p.weights[b * p.vocab + token] = 0;
    __syncthreads();  // all threads have read the number
    if (first) ++p.numbers[b];
  }
  if (!first) return;
  p.tokens[b] = sampled;
  for (int64_t end = 0; end < p.ends_count; ++end)
    if (sampled == p.ends[end]) p.going[b] = 0;
}

}  // namespace xlstm::gpu::engine
