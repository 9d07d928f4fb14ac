// SPDX-License-Identifier: Apache-2.0
#include "recording.h"

#include <numeric>
#include <set>

namespace gfx942 {

namespace {

constexpr uint64_t kXcds = 8, kCusOfXcd = 38;

// The fraction of a multiple of the golden ratio: spread evenly, however many are taken.
uint64_t spread(uint64_t k, uint64_t over) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  return uint64_t((unsigned __int128)(k * kGolden) * over >> 64);
}

// Workgroups i, i + 8, i + 16 ... are dealt to one XCD.
std::vector<uint64_t> pairs(uint64_t all, uint64_t count) {
  std::set<uint64_t> found;
  for (uint64_t k = 1; found.size() + 1 < count && k < 4 * count + 16; ++k) {
    const uint64_t one = spread(k, all), apart = kXcds * (1 + spread(3 * k, kCusOfXcd));
    found.insert(one);
    if (one + apart < all)
      found.insert(one + apart);
    else if (one >= apart)
      found.insert(one - apart);
  }
  return {found.begin(), found.end()};
}

// Eight that one XCD has at about the same time, in two places of the grid.
std::vector<uint64_t> neighbours(uint64_t all) {
  std::set<uint64_t> found;
  for (uint64_t place : {all / 5, all - all / 5}) {
    const uint64_t first = place > kXcds * kCusOfXcd ? place - kXcds * kCusOfXcd : 0;
    for (uint64_t k = 1; k <= 8; ++k)
      if (const uint64_t one = first / kXcds * kXcds + kXcds * spread(k, kCusOfXcd); one < all) found.insert(one);
  }
  return {found.begin(), found.end()};
}

uint64_t executed(const Tally& tally) { return std::accumulate(tally.executed.begin(), tally.executed.end(), 0ull); }

}  // namespace

RecordedLaunch record(const Launch& launch, Tally& tally, uint64_t wave_instructions) {
  RecordedLaunch recorded{launch.code, launch.grid, launch.block, launch.dynamic_lds, {}, {}};
  const uint64_t all = uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  RunOptions options;
  options.recorded = &recorded;
  options.chosen = {all / 2};
  Tally first(launch.code->instructions.size());
  run(launch, first, options);
  constexpr uint64_t kLeast = 8;  // fewer say little of how workgroups differ
  const uint64_t most = std::max<uint64_t>(kLeast, wave_instructions / std::max<uint64_t>(1, executed(first)));
  options.chosen.clear();
  if (most >= all)
    for (uint64_t k = 0; k < all; ++k) options.chosen.push_back(k);
  else
    options.chosen = pairs(all, most);
  // It has run; a second time it may find its own results.
  std::erase(options.chosen, all / 2);
  if (!options.chosen.empty()) run(launch, tally, options);
  first.launches = options.chosen.empty();
  tally.add(first);
  if (most < all) {
    Tally uncounted(launch.code->instructions.size());
    options.chosen = neighbours(all);
    options.most_words = 10'000;
    run(launch, uncounted, options);
  }
  return recorded;
}

}  // namespace gfx942
