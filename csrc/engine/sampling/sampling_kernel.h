// SPDX-License-Identifier: Apache-2.0
// The next token of a row on a GPU, by the rules of sampling.h: a block has a row, each of its waves a range of tokens.
//
// The lowest kept rank is found by sums over bins in LDS, added by atomics: integers, so in any order. The first bins
// are equal steps of the score below the greatest, which spreads a row's tokens; the digits of the rank then part those
// of one such bin. A row comes from memory once and from L2 in later passes, twelve in all with top_k and top_p. What
// binds is latency, and exponentials in double where all tokens are weighed, twice at the most: 17 of its instructions
// each.
#pragma once

#include "arch/fragments.h"
#include "engine/sampling/sampling.h"

namespace xlstm::gpu::engine {

constexpr int kDrawThreads = 1024, kDrawWaves = kDrawThreads / kWave, kLoadsAtOnce = 4;
constexpr int kOwnBins = kBins / kDrawThreads;
// Steps of the coarse bins for each halving: beyond the last bin weights are 0.
constexpr double kCoarseSteps = 48;
static_assert(kCoarseSteps * (kWeightBits + 2) < kBins - 1 && kOwnBins == 2);

struct DrawParams {
  xlstm_draw call;
  DrawRules rules;
};

struct DrawRoom {  // of a block, in LDS
  unsigned long long bins[kBins];
  uint64_t of_wave[kDrawWaves];
  uint64_t above;
  int bin, token;
};

template <class Op>
XLSTM_DEVICE uint64_t over_wave(uint64_t x, Op&& op) {
#pragma unroll
  for (int mask = 1; mask < kWave; mask *= 2) x = op(x, shuffle_from(x, lane_id() ^ mask, kWave));
  return x;
}
XLSTM_DEVICE uint64_t sum_up_to(uint64_t x) {  // over this lane and those before it
#pragma unroll
  for (int apart = 1; apart < kWave; apart *= 2) {
    const uint64_t other = shuffle_from(x, lane_id() - apart, kWave);
    x += lane_id() >= apart ? other : 0;
  }
  return x;
}

// One row, and this thread's share of it.
struct DrawRow {
  const float* logits;
  const uint8_t* seen;  // or null
  int vocab, begin, end;
  float penalty;
  DrawRoom& room;

  XLSTM_DEVICE DrawRow(const xlstm_draw& p, float penalty_, int64_t b, DrawRoom& r)
      : logits(p.logits + b * p.vocab),
        seen(p.seen ? p.seen + b * p.vocab : nullptr),
        vocab(int(p.vocab)),
        penalty(penalty_),
        room(r) {
    const int range = (vocab + kDrawThreads - 1) / kDrawThreads * kWave;
    begin = wave_id() * range;
    end = begin + range < vocab ? begin + range : vocab;
  }
  // f(token, score) for each token of this thread. Several are loaded at once, and then moved up one by one: f is
  // large, and would otherwise be there for each.
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

  // op over what the waves have; the same in every thread.
  template <class Op>
  XLSTM_DEVICE uint64_t over_block(uint64_t x, Op&& op) const {
    x = over_wave(x, op);
    __syncthreads();
    if (lane_id() == 0) room.of_wave[wave_id()] = x;
    __syncthreads();
    x = room.of_wave[0];
    for (int wave = 1; wave < kDrawWaves; ++wave) x = op(x, room.of_wave[wave]);
    return x;
  }
  template <class Amount>
  XLSTM_DEVICE uint64_t sum(Amount&& amount) const {
    uint64_t own = 0;
    each([&](int token, float score) { own += amount(token, score); });
    return over_block(own, [](uint64_t x, uint64_t y) { return x + y; });
  }

  // After a sum of the same amounts: the first token at which their running sum exceeds `place`.
  template <class Amount>
  XLSTM_DEVICE int token_at(uint64_t place, Amount&& amount) const {
    uint64_t before = 0;
    for (int wave = 0; wave < wave_id(); ++wave) before += room.of_wave[wave];
    const bool here = before <= place && place < before + room.of_wave[wave_id()];
    for (int first = begin; here && first < end && before <= place; first += kWave) {
      const int token = first + lane_id();
      const uint64_t own = token < end ? amount(token, score(token)) : 0, up_to = before + sum_up_to(own);
      if (up_to > place && up_to - own <= place) room.token = token;
      before = shuffle_from(up_to, kWave - 1, kWave);
    }
    __syncthreads();
    return room.token;
  }

  // The bin at whose end sums of bins reach `limit`, and what stands before it is added to `above`; the same in every
  // thread.
  XLSTM_DEVICE int bin_at(uint64_t limit, uint64_t& above) const {
    const unsigned long long* own = room.bins + kOwnBins * threadIdx.x;
    const uint64_t first = own[0], both = first + own[1], up_to = sum_up_to(both);
    if (lane_id() == kWave - 1) room.of_wave[wave_id()] = up_to;
    __syncthreads();
    uint64_t before = above + up_to - both;
    for (int wave = 0; wave < wave_id(); ++wave) before += room.of_wave[wave];
    if (before < limit && before + both >= limit) {
      const bool second = before + first < limit;
      room.bin = kOwnBins * threadIdx.x + second;
      room.above = before + (second ? first : 0);
    }
    __syncthreads();
    above = room.above;
    return room.bin;
  }
  // amount(score, rank) of the tokens that belongs(score, rank), to the bins that bin(score, rank) says.
  template <class Amount, class Belongs, class Bin>
  XLSTM_DEVICE void fill_bins(Amount&& amount, Belongs&& belongs, Bin&& bin) const {
    __syncthreads();
    for (int j = 0; j < kOwnBins; ++j) room.bins[j * kDrawThreads + threadIdx.x] = 0;
    __syncthreads();
    each([&](int, float score) {
      const uint32_t rank = rank_of(score);
      if (belongs(score, rank)) atomicAdd(room.bins + bin(score, rank), (unsigned long long)amount(score, rank));
    });
    __syncthreads();
  }
  // The lowest rank above which less than `limit` stands, of amount(score, rank).
  template <class Amount>
  XLSTM_DEVICE Edge find_edge(uint64_t limit, float greatest, double steepness, Amount&& amount) const {
    const auto coarse = [&](float score) {
      const double steps = score == greatest ? 0 : halvings(score, greatest, steepness) * kCoarseSteps;
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

// A token by the weights of those that are kept; all threads of the block call it.
XLSTM_DEVICE int64_t draw(const DrawParams& params, const DrawRow& row, int64_t b, float greatest) {
  const xlstm_draw& p = params.call;
  const DrawRules& rules = params.rules;
  const auto weight = [&](float score) { return weight_of(score, greatest, rules.steepness); };
  uint32_t least = 0;
  int last = row.vocab;  // of the tokens that have that rank, the last one that is kept
  if (rules.some_k)
    least = row.find_edge(uint64_t(p.top_k), greatest, rules.steepness, [](float, uint32_t) { return 1; }).rank;
  if (rules.some_p) {
    const auto amount = [&](float score, uint32_t rank) -> uint64_t { return rank >= least ? weight(score) : 0; };
    const uint64_t total = row.sum([&](int, float score) { return amount(score, rank_of(score)); });
    const uint64_t limit = share_of(rules.share, total);
    const Edge edge = row.find_edge(limit, greatest, rules.steepness, amount);
    const uint64_t kept = kept_at_edge(limit, edge.above, weight(score_of_rank(edge.rank)));
    const auto ties = [&](int, float score) -> uint64_t { return rank_of(score) == edge.rank; };
    if (row.sum(ties) > kept) last = row.token_at(kept - 1, ties);
    least = edge.rank;
  }
  const auto kept = [&](int token, float score) -> uint64_t {
    const uint32_t rank = rank_of(score);
    return rank > least || (rank == least && token <= last) ? weight(score) : 0;
  };
  if (p.weights) {
    int64_t* const weights = p.weights + b * p.vocab;
    row.each([&](int token, float score) { weights[token] = int64_t(kept(token, score)); });
  }
  const uint64_t total = row.sum(kept);
  return row.token_at(drawn_place(uint64_t(p.seeds[b]), uint64_t(p.numbers[b]), total), kept);
}

template <bool kGreedy>
__global__ __launch_bounds__(kDrawThreads) void draw_token(DrawParams params) {
  __shared__ DrawRoom room;
  const xlstm_draw& p = params.call;
  const int64_t b = blockIdx.x;
  const DrawRow row(p, params.rules.penalty, b, room);
  const bool over = p.going && !p.going[b], first = threadIdx.x == 0;
  const int64_t read = p.tokens[b];
  __syncthreads();
  if (first && !over && p.seen && read >= 0 && read < p.vocab) p.seen[b * p.vocab + read] = 1;
  __syncthreads();
  if (over) {
    if (first) p.tokens[b] = p.pad;
    for (int token = threadIdx.x; p.weights && token < row.vocab; token += kDrawThreads)
      p.weights[b * p.vocab + token] = 0;
    return;
  }
  uint64_t best = 0;
  row.each([&](int token, float score) {
    const uint64_t place = place_of(rank_of(score), token);
    best = place > best ? place : best;
  });
  best = row.over_block(best, [](uint64_t x, uint64_t y) { return x > y ? x : y; });
  const uint32_t rank = uint32_t(best >> 32);
  const bool nothing = nothing_to_draw(rank, kGreedy);
  int64_t drawn = kNothingDrawn;
  if constexpr (kGreedy) {
    if (!nothing) drawn = token_of(best);
  } else {
    if (!nothing) drawn = draw(params, row, b, score_of_rank(rank));
    for (int token = threadIdx.x; nothing && p.weights && token < row.vocab; token += kDrawThreads)
      p.weights[b * p.vocab + token] = 0;
    __syncthreads();  // all have read the number
    if (first) ++p.numbers[b];
  }
  if (!first) return;
  p.tokens[b] = drawn;
  for (int64_t end = 0; end < p.ends_count; ++end)
    if (drawn == p.ends[end]) p.going[b] = 0;
}

}  // namespace xlstm::gpu::engine
