// SPDX-License-Identifier: Apache-2.0
// Sampling the next token by the C API: probabilities are tested against long double, the filters top-k, top-p and
// min-p against a sort; the bits are the same on every instruction set and on one to three threads; buffers are between
// guard bytes; and bad arguments are refused.
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "buffer.h"
#include "each_isa.h"

namespace {

struct Options {
  double temperature;
  int64_t top_k;
  double top_p, penalty;
};
constexpr Options kOptions[] = {{0, 0, 1, 1},   {0, 0, 1, 1.5},      {1, 0, 1, 1},        {0.7, 5, 1, 1},
                                {1, 0, 0.9, 1}, {0.8, 40, 0.7, 1.3}, {2, 1000, 0.999, 1}, {1e-3, 0, 0.5, 1}};
constexpr int64_t kBatch = 3;

uint64_t* hashes;  // of the first instruction set, by problem; shared with the processes of the other sets

struct Problem {
  Problem(int64_t size, const Options& o, uint32_t seed)
      : vocab(size), logits(kBatch * size * sizeof(float)), seen(kBatch * size), weights(kBatch * size * 8) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, 3);
    for (int64_t j = 0; j < kBatch * vocab; ++j) {
      score()[j] = std::round(normal(rng) * 64) / 64;  // so that some scores tie
      was_seen()[j] = rng() % 5 == 0;
    }
    call.batch = kBatch, call.vocab = vocab, call.logits = score(), call.tokens = tokens;
    call.temperature = o.temperature, call.top_k = o.top_k, call.top_p = o.top_p, call.repetition_penalty = o.penalty;
    if (o.penalty != 1) call.seen = was_seen();
    if (o.temperature > 0) call.seeds = seeds, call.numbers = numbers, call.weights = weight();
  }
  float* score() { return static_cast<float*>(logits.data()); }
  uint8_t* was_seen() { return static_cast<uint8_t*>(seen.data()); }
  int64_t* weight() { return static_cast<int64_t*>(weights.data()); }

  int64_t vocab;
  Buffer logits, seen, weights;
  int64_t tokens[kBatch] = {-1, 0, -1}, seeds[kBatch] = {1, -2, INT64_MAX}, numbers[kBatch] = {};
  xlstm_draw call{};
};

// The tokens that pass the filters, and their probabilities, by sorting.
void check_row(Problem& p, int64_t b) {
  const xlstm_draw& call = p.call;
  std::vector<float> scores(p.score() + b * p.vocab, p.score() + (b + 1) * p.vocab);
  const float penalty = float(call.repetition_penalty);
  for (int64_t j = 0; call.seen && j < p.vocab; ++j)
    if (p.was_seen()[b * p.vocab + j])
      scores[size_t(j)] = scores[size_t(j)] > 0 ? scores[size_t(j)] / penalty : scores[size_t(j)] * penalty;
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) { return scores[i] > scores[j]; });
  if (call.temperature == 0) {
    CHECK(p.tokens[b] == int64_t(order[0]));
    return;
  }
  const auto exact = [&](size_t token) {
    return std::exp2(40.0L) * std::exp((long double)(scores[token] - scores[order[0]]) / call.temperature);
  };
  size_t candidates = order.size();
  if (call.top_k && size_t(call.top_k) < candidates) {
    candidates = size_t(call.top_k);
    while (candidates < order.size() && scores[order[candidates]] == scores[order[candidates - 1]]) ++candidates;
  }
  long double total = 0, before = 0;
  for (size_t j = 0; j < candidates; ++j) total += exact(order[j]);
  for (size_t j = 0; j < order.size(); ++j) {
    const int64_t weight = p.weight()[b * p.vocab + int64_t(order[j])];
    const bool near = std::fabs(before - call.top_p * total) < double(p.vocab);  // rounding of weights decides
    const bool taken = j < candidates && (call.top_p == 1 || before < call.top_p * total);
    if (!near) CHECK(taken ? std::fabs(weight - exact(order[j])) <= 0.51L : weight == 0, "token %zu", order[j]);
    before += exact(order[j]);
  }
  CHECK(p.weight()[b * p.vocab + p.tokens[b]] > 0 && p.numbers[b] == 1);
}

void test_draws() {
  int problem = 0;
  for (int64_t vocab : {1, 2, 97, 4099})
    for (const Options& options : kOptions) {
      uint64_t hash = 0;
      for (int32_t threads = 1; threads <= 3; ++threads) {
        Problem p(vocab, options, uint32_t(problem));
        xlstm_runtime runtime{};
        runtime.threads = threads;
        CHECK(xlstm_draw_tokens(&p.call, &runtime) == XLSTM_OK, "%s", xlstm_last_error());
        uint64_t hash_of_threads = 1;
        for (int64_t b = 0; b < kBatch; ++b) {
          check_row(p, b);
          hash_of_threads = (hash_of_threads ^ uint64_t(p.tokens[b])) * 0x100000001b3u;
          for (int64_t j = 0; p.call.weights && j < vocab; ++j)
            hash_of_threads = (hash_of_threads ^ uint64_t(p.weight()[b * vocab + j])) * 0x100000001b3u;
        }
        CHECK(threads == 1 || hash_of_threads == hash);
        hash = hash_of_threads;
      }
      if (!hashes[problem]) hashes[problem] = hash;
      CHECK(hashes[problem] == hash, "problem %d", problem);
      ++problem;
    }
}

void test_errors() {
  const auto refused = [](const std::string& words, auto&& change) {
    Problem p(5, {1, 0, 1, 1}, 1);
    change(p.call);
    const xlstm_runtime runtime{};
    CHECK(xlstm_draw_tokens(&p.call, &runtime) == XLSTM_INVALID_ARGUMENT);
    CHECK(std::string(xlstm_last_error()).find(words) == 0, "%s", xlstm_last_error());
  };
  refused("batch: expected >= 1, got 0", [](xlstm_draw& p) { p.batch = 0; });
  refused("vocab: expected 1 to 4194304, got 4194305", [](xlstm_draw& p) { p.vocab = 4194305; });
  refused("top_k: expected 0 to", [](xlstm_draw& p) { p.top_k = -1; });
  refused("top_p: expected a finite number above 0", [](xlstm_draw& p) { p.top_p = NAN; });
  refused("temperature: expected above 0 with seeds", [](xlstm_draw& p) { p.temperature = 0; });
  refused("seeds, numbers: expected data", [](xlstm_draw& p) { p.numbers = nullptr; });
  refused("seen: expected with a repetition_penalty", [](xlstm_draw& p) { p.repetition_penalty = 2; });
  refused("logits, tokens: expected data", [](xlstm_draw& p) { p.logits = nullptr; });
  CHECK(xlstm_draw_tokens(nullptr, nullptr) == XLSTM_INVALID_ARGUMENT);
}

void tests() {
  test_draws();
  test_errors();
}

}  // namespace

int main() {
  hashes = static_cast<uint64_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return run_for_each_isa(tests);
}
