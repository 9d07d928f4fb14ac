// SPDX-License-Identifier: Apache-2.0
#include "launch_time.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <stdexcept>

#include "workgroup.h"

namespace gfx942::clock {

int room_for(const Constants& c, uint32_t vgprs, uint32_t lds_bytes, size_t waves) {
  const UnitLimits limits{uint32_t(c.simds), uint32_t(c.waves_of_simd), uint32_t(c.vgprs_of_simd),
                          uint32_t(c.lds_bytes)};
  return int(workgroups_of_unit(limits, vgprs, lds_bytes, uint32_t(waves)));
}

// ---- dealing

namespace {

// A compute unit while workgroups are dealt: what is left of each of its workgroups, as shares of their work.
struct Busy {
  double now = 0;
  std::vector<std::pair<double, double>> left;  // share that is left, work

  double slow(int resident, double alone) const {
    return resident == 1 ? 1 : alone + (1 - alone) * double(left.size() - 1) / (resident - 1);
  }
  double next_end(int resident, double alone) const {
    double least = 1e300;
    for (const auto& [share, work] : left) least = std::min(least, share * work);
    return now + least * slow(resident, alone);
  }
  void advance(double to, int resident, double alone) {
    const double done = (to - now) / slow(resident, alone);
    for (auto& [share, work] : left) share -= done / work;
    std::erase_if(left, [](const auto& x) { return x.first <= 1e-9; });
    now = to;
  }
};

double deal_to_xcd(const std::vector<double>& work, size_t first, size_t step, size_t cus, int resident, double alone) {
  std::vector<Busy> units(cus);
  size_t next = first;
  for (int round = 0; round < resident; ++round)
    for (Busy& u : units) {
      if (next >= work.size()) break;
      u.left.emplace_back(1.0, work[next]);
      next += step;
    }
  using End = std::pair<double, size_t>;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  for (size_t k = 0; k < cus; ++k)
    if (!units[k].left.empty()) ends.emplace(units[k].next_end(resident, alone), k);
  double last = 0;
  while (!ends.empty()) {
    const auto [time, k] = ends.top();
    ends.pop();
    last = time;
    units[k].advance(time, resident, alone);
    for (; units[k].left.size() < size_t(resident) && next < work.size(); next += step)
      units[k].left.emplace_back(1.0, work[next]);
    if (!units[k].left.empty()) ends.emplace(units[k].next_end(resident, alone), k);
  }
  return last;
}

}  // namespace

double deal(const Constants& c, const std::vector<double>& work, int resident, double alone) {
  double last = 0;
  const size_t xcds = size_t(c.xcds);
  for (size_t x = 0; x < xcds; ++x)
    last = std::max(last, deal_to_xcd(work, x, xcds, size_t(c.cus / c.xcds), resident, alone));
  return last;
}

// ---- what workgroups have in common

namespace {

using Lines = std::vector<uint32_t>;  // sorted

Lines lines_of(const std::vector<Step>& steps, const GroupWords& group, bool stored) {
  Lines lines;
  for (const auto& words : group) {
    Cursor cursor(words);
    while (cursor.next())
      if (steps[cursor.index].port == Port::memory && (stored || !steps[cursor.index].store))
        for_lines(cursor, [&](uint32_t line) { lines.push_back(line); });
  }
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  return lines;
}

double overlap(const Lines& a, const Lines& b) {
  if (a.empty() || b.empty()) return 0;
  size_t both = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    both += a[i] == b[j];
    if (a[i] < b[j])
      ++i;
    else
      ++j;
  }
  return double(both) / double(std::max(a.size(), b.size()));
}

// Some of a workgroup's lines are shared with some of the others: with those of the same head, say.
struct Sharing {
  double lines = 0;   // the share of lines that may be shared
  double others = 0;  // the share of other workgroups that each is shared with

  // Of the lines that one of `count` asks for, those that it alone asks for or asks for first.
  double first(double count) const { return 1 - lines + lines / (1 + others * std::max(0.0, count - 1)); }
  double overlap() const { return lines * others; }
};

// From overlaps of pairs: either a pair shares what may be shared, or it shares nothing.
class Overlaps {
 public:
  void add(double x) { sum_ += x, squares_ += x * x, ++count_; }
  int count() const { return count_; }
  Sharing sharing() const {
    return squares_ == 0 ? Sharing{} : Sharing{squares_ / sum_, sum_ * sum_ / (squares_ * count_)};
  }

 private:
  double sum_ = 0, squares_ = 0;
  int count_ = 0;
};

struct Footprint {
  Sharing near, far;              // among workgroups of an XCD at about the same time; among all
  double lines = 0, touched = 0;  // that a workgroup loads; that it loads or stores
};

Footprint footprint_of(const Constants& c, const std::vector<Step>& steps, const RecordedLaunch& launch) {
  constexpr size_t kMost = 24;  // workgroups that are looked at
  Footprint f;
  const double count = double(std::min(kMost, launch.groups.size()));
  std::vector<std::pair<uint64_t, Lines>> found;
  for (const auto& [number, words] : launch.groups) {
    if (found.size() == kMost) break;
    found.emplace_back(number, lines_of(steps, words, false));
    f.lines += double(found.back().second.size()) / count;
    f.touched += double(lines_of(steps, words, true).size()) / count;
  }
  if (!launch.begun.empty()) found.clear();
  for (const auto& [number, words] : launch.begun) found.emplace_back(number, lines_of(steps, words, false));
  Overlaps near, far;
  for (size_t i = 0; i < found.size(); ++i) {
    for (size_t j = i + 1; j < found.size(); ++j) {
      const uint64_t apart = found[j].first - found[i].first;
      const bool is_near = apart % uint64_t(c.xcds) == 0 && apart <= uint64_t(c.cus);
      (is_near ? near : far).add(overlap(found[i].second, found[j].second));
    }
  }
  f.far = far.sharing();
  f.near = near.count() ? near.sharing() : f.far;
  return f;
}

Share share_of(const Constants& c, const Footprint& f, double workgroups, int resident, const LaunchOptions& options) {
  constexpr double kLine = 128;
  Share share;
  share.busy_cus = std::min(c.cus, workgroups);
  share.busy_cus_of_xcd = std::min(c.cus / c.xcds, std::ceil(workgroups / c.xcds));
  const double stored = (f.touched - f.lines) * kLine * workgroups;
  const double bytes = f.lines * kLine * workgroups * f.far.first(workgroups) + stored;
  const double of_xcd = workgroups / c.xcds, bytes_of_xcd = f.lines * kLine * of_xcd * f.far.first(of_xcd);
  // Who asks before a line has left again: those at work now, or all there ever are if everything fits.
  const bool fits_l2 = bytes_of_xcd < c.cache_share * c.l2_bytes, fits_mall = bytes < c.cache_share * c.mall_bytes;
  const double units = workgroups / resident;
  const double first_of_xcd = fits_l2 ? f.far.first(units / c.xcds) : f.near.first(share.busy_cus_of_xcd);
  const double first_of_chip = fits_mall ? f.far.first(units) : f.near.first(share.busy_cus);
  share.first_of_xcd = first_of_xcd;
  share.first_of_chip = std::min(1.0, first_of_chip / first_of_xcd);
  share.l2_lines = c.l2_bytes / kLine / (share.busy_cus_of_xcd * f.near.first(share.busy_cus_of_xcd));
  share.mall_lines = c.mall_bytes / kLine / (share.busy_cus * f.near.first(share.busy_cus));
  share.fits = fits_mall, share.warm = options.warm && fits_mall;
  return share;
}

// ---- workgroups that were not sampled take what the nearest in the grid does

std::array<double, 3> place_of(const RecordedLaunch& l, uint64_t number) {
  const uint64_t x = number % l.grid[0], y = number / l.grid[0] % l.grid[1], z = number / l.grid[0] / l.grid[1];
  return {double(x) / l.grid[0], double(y) / l.grid[1], double(z) / l.grid[2]};
}

double apart(const std::array<double, 3>& a, const std::array<double, 3>& b) {
  return std::abs(a[0] - b[0]) + std::abs(a[1] - b[1]) + std::abs(a[2] - b[2]);
}

std::vector<double> work_of_all(const RecordedLaunch& launch, const std::vector<uint64_t>& numbers,
                                const std::vector<double>& cycles, uint64_t all) {
  if (numbers.size() == all) return cycles;
  std::vector<std::array<double, 3>> places;
  for (uint64_t n : numbers) places.push_back(place_of(launch, n));
  std::vector<double> work(all);
  for (uint64_t k = 0; k < all; ++k) {
    const auto at = place_of(launch, k);
    double least = 1e9;
    for (size_t j = 0; j < places.size(); ++j) {
      const double d = apart(at, places[j]);
      if (d < least) least = d, work[k] = cycles[j];
    }
  }
  return work;
}

// Of the sum over all, as far as neighbours in the grid differ.
double relative_error(const RecordedLaunch& launch, const std::vector<uint64_t>& numbers,
                      const std::vector<double>& cycles, uint64_t all) {
  const size_t count = cycles.size();
  if (count == all || count < 2) return 0;
  double mean = 0, square = 0;
  for (size_t j = 0; j < count; ++j) {
    double least = 1e9, other = 0;
    for (size_t k = 0; k < count; ++k)
      if (const double d = apart(place_of(launch, numbers[j]), place_of(launch, numbers[k])); k != j && d < least)
        least = d, other = cycles[k];
    mean += cycles[j] / double(count);
    square += (cycles[j] - other) * (cycles[j] - other) / 2 / double(count);
  }
  return std::sqrt(square / double(count)) / mean;
}

}  // namespace

// ---- a launch

namespace {

struct Grouped {
  std::vector<uint64_t> numbers;
  std::vector<const GroupWords*> words;
};

// In the order in which they are dealt, those of a pair beside each other.
Grouped in_order(const RecordedLaunch& launch) {
  Grouped g;
  for (const auto& [number, words] : launch.groups) g.numbers.push_back(number), g.words.push_back(&words);
  return g;
}

std::vector<double> cycles_of(const UnitTime& time, size_t count) {
  std::vector<double> cycles(count);
  for (const GroupTime& g : time.groups) cycles[g.which] = double(g.end - g.begin);
  return cycles;
}

double mean(const std::vector<double>& x, size_t count) {
  double sum = 0;
  for (size_t k = 0; k < count; ++k) sum += x[k];
  return sum / double(count);
}

// At one clock.
void time_at(const Constants& c, const RecordedLaunch& launch, const std::vector<Step>& steps, const Grouped& groups,
             size_t trace, LaunchTime& t) {
  UnitOptions options{t.resident, groups.words.size() < t.workgroups, trace};
  t.unit = time_unit(c, steps, t.share, groups.words, options);
  const auto cycles = cycles_of(t.unit, groups.words.size());
  t.group_cycles = mean(cycles, cycles.size());
  t.error = relative_error(launch, groups.numbers, cycles, t.workgroups);
  t.alone = 1;
  if (t.resident > 1) {
    const size_t some = std::min<size_t>(4, groups.words.size());
    const std::vector<const GroupWords*> few(groups.words.begin(), groups.words.begin() + ptrdiff_t(some));
    const auto alone = cycles_of(time_unit(c, steps, t.share, few, {1, false, 0}), some);
    t.alone = std::min(1.0, mean(alone, some) / mean(cycles, some));
  }
  const auto work = work_of_all(launch, groups.numbers, cycles, t.workgroups);
  const double all = deal(c, work, t.resident, t.alone);
  const double matrix_of_group =
      double(t.unit.matrix_busy) * t.group_cycles / (double(t.unit.cycles) * std::max(1, t.resident));
  t.matrix_busy = matrix_of_group * double(t.workgroups) / (all * c.cus * c.simds);
  t.microseconds = c.launch_microseconds + all / t.share.mhz;
}

}  // namespace

LaunchTime time_launch(const Constants& c, const RecordedLaunch& launch, const LaunchOptions& options) {
  if (launch.groups.empty()) throw std::invalid_argument("a launch of which nothing was recorded");
  const std::vector<Step> steps = steps_of(*launch.code, c);
  const Grouped groups = in_order(launch);
  LaunchTime t;
  t.workgroups = uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  t.sampled = groups.words.size();
  t.room = room_for(c, launch.code->vgprs, launch.code->lds_bytes + launch.dynamic_lds, groups.words[0]->size());
  t.resident = std::min(t.room, int(std::ceil(double(t.workgroups) / c.cus)));
  const Footprint f = footprint_of(c, steps, launch);
  t.near_overlap = f.near.overlap(), t.far_overlap = f.far.overlap();
  t.share = share_of(c, f, double(t.workgroups), t.resident, options);
  t.busy_cus = t.share.busy_cus;
  t.share.mhz = options.mhz ? options.mhz : c.peak_mhz;
  time_at(c, launch, steps, groups, options.trace, t);
  if (!options.mhz) {
    const double mhz = c.mhz_under_load(t.matrix_busy);
    if (mhz < 0.97 * t.share.mhz) {
      t.share.mhz = mhz;
      time_at(c, launch, steps, groups, options.trace, t);
    }
  }
  t.mhz = t.share.mhz;
  return t;
}

}  // namespace gfx942::clock
