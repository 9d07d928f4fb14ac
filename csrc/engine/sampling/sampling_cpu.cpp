// SPDX-License-Identifier: Apache-2.0
// Samples the next token of each row on a CPU, by the rules of sampling.h. A row is a task. Nothing is sorted: the
// lowest rank that is kept is found digit by digit, in three passes over the logits, each with a histogram of one
// digit.
#include "engine/cpu/kernel_table.h"
#include "engine/sampling/sampling.h"
#include "tile/tasks.h"

namespace xlstm::XLSTM_ISA::engine {
namespace {

struct Row {
  const float* logits;
  const uint8_t* seen;  // or null
  int64_t vocab;
  float penalty;

  float score(int64_t token) const { return score_of(logits[token], seen && seen[token], penalty); }
  uint32_t rank(int64_t token) const { return rank_of(score(token)); }
};

// The lowest rank above which amount(token, rank) adds up to less than `limit`.
template <class Amount>
Edge find_edge(const Row& row, uint64_t limit, Amount&& amount) {
  Edge edge{0, 0};
  for (int digit = 0; digit < kDigits; ++digit) {
    uint64_t bins[kBins] = {};
    for (int64_t token = 0; token < row.vocab; ++token) {
      const uint32_t rank = row.rank(token);
      if (digit == 0 || (rank ^ edge.rank) >> digit_shift(digit - 1) == 0)
        bins[bin_of(rank, digit)] += amount(token, rank);
    }
    int bin = 0;
    while (edge.above + bins[bin] < limit) edge.above += bins[bin++];
    edge.rank |= bin_bits(bin, digit);
  }
  return edge;
}

int64_t sample(const xlstm_draw& p, const SampleRules& rules, const Row& row, int64_t b, float max_score) {
  const auto weight = [&](int64_t token) { return weight_of(row.score(token), max_score, rules.steepness); };
  uint32_t min_rank = 0;
  if (rules.some_k) min_rank = find_edge(row, uint64_t(p.top_k), [](int64_t, uint32_t) { return 1; }).rank;
  int64_t tie_candidates = p.vocab;  // how many tokens of rank min_rank are kept, from the first one on
  if (rules.some_p) {
    const auto amount = [&](int64_t token, uint32_t rank) { return rank >= min_rank ? weight(token) : 0; };
    uint64_t total = 0;
    for (int64_t token = 0; token < p.vocab; ++token) total += amount(token, row.rank(token));
    const uint64_t limit = share_of(rules.share, total);
    const Edge edge = find_edge(row, limit, amount);
    min_rank = edge.rank;
    tie_candidates =
        int64_t(ties_to_keep(limit, edge.above, weight_of(score_of_rank(min_rank), max_score, rules.steepness)));
  }
  // Calls f(token, weight) for kept tokens, in their order, until it returns false.
  const auto for_each_candidate = [&](auto&& f) {
    int64_t ties_met = 0;
    for (int64_t token = 0; token < p.vocab; ++token) {
      const uint32_t rank = row.rank(token);
      if (rank > min_rank || (rank == min_rank && ties_met++ < tie_candidates))
        if (!f(token, weight(token))) return;
    }
  };
  int64_t* const weights = p.weights ? p.weights + b * p.vocab : nullptr;
  uint64_t total = 0;
  for_each_candidate([&](int64_t token, uint64_t w) {
    if (weights) weights[token] = int64_t(w);
    total += w;
    return true;
  });
  const uint64_t position = sampled_position(uint64_t(p.seeds[b]), uint64_t(p.numbers[b]), total);
  int64_t sampled = kNothingSampled;
  total = 0;
  for_each_candidate([&](int64_t token, uint64_t w) {
    sampled = token;
    total += w;
    return total <= position;
  });
  return sampled;
}

void next_token(const xlstm_draw& p, const SampleRules& rules, int64_t b) {
  if (p.weights) memset(p.weights + b * p.vocab, 0, size_t(p.vocab) * sizeof(int64_t));
  if (p.going && !p.going[b]) {
    p.tokens[b] = p.pad;
    return;
  }
  uint8_t* const seen = p.seen ? p.seen + b * p.vocab : nullptr;
  if (seen && p.tokens[b] >= 0 && p.tokens[b] < p.vocab) seen[p.tokens[b]] = 1;
  const Row row{p.logits + b * p.vocab, seen, p.vocab, rules.penalty};
  uint64_t best = 0;
  for (int64_t token = 0; token < p.vocab; ++token) {
    const uint64_t key = greedy_key(row.rank(token), token);
    best = key > best ? key : best;
  }
  const uint32_t rank = uint32_t(best >> 32);
  int64_t sampled = kNothingSampled;
  if (!nothing_to_sample(rank, rules.greedy))
    sampled = rules.greedy ? token_of(best) : sample(p, rules, row, b, score_of_rank(rank));
  if (!rules.greedy) ++p.numbers[b];
  p.tokens[b] = sampled;
  for (int64_t end = 0; end < p.ends_count; ++end)
    if (sampled == p.ends[end]) p.going[b] = 0;
}

}  // namespace

void sample_tokens(const xlstm_draw& p, const Executor& executor) {
  const SampleRules rules = rules_of(p);
  parallel_tasks(executor, p.batch, [&](int64_t b, int32_t) { next_token(p, rules, b); });
}

}  // namespace xlstm::XLSTM_ISA::engine
