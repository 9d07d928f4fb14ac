// SPDX-License-Identifier: Apache-2.0
#include "memory_time.h"

#include <algorithm>
#include <bit>

namespace gfx942::clock {

namespace {

constexpr uint32_t kLine = 128, kHalf = 64;

uint32_t mixed(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du;
  x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ x >> 16;
}
// Whether a line is among this share of all: the same each time that it is asked.
bool among(uint32_t line, uint32_t salt, double share) { return mixed(line + salt) < share * 4294967296.0; }

}  // namespace

Cache::Cache(uint32_t lines, uint32_t ways)
    : lines_(lines), ways_(ways), entries_(lines + lines / ways), chains_(std::bit_ceil(size_t(2 * lines)), kNone) {
  for (uint32_t set = 0; set < lines / ways; ++set) {
    uint32_t before = lines + set;
    for (uint32_t k = set * ways; k < (set + 1) * ways; before = k++)
      entries_[before].newer = k, entries_[k].older = before;
    entries_[before].newer = lines + set, entries_[lines + set].older = before;
  }
}

bool Cache::look(uint32_t line, uint32_t& at) const {
  uint32_t k = chains_[line & (chains_.size() - 1)];
  while (k != kNone && entries_[k].line != line) k = entries_[k].chained;
  if (k == kNone) return false;
  at = k;
  return true;
}

uint32_t Cache::replace(uint32_t line) {
  const uint32_t at = entries_[lines_ + line % (lines_ / ways_)].newer;
  Entry& e = entries_[at];
  if (e.line != ~0u) {
    uint32_t* link = &chain(e.line);
    while (*link != at) link = &entries_[*link].chained;
    *link = e.chained;
  }
  e.line = line, e.chained = chain(line);
  chain(line) = at;
  return at;
}

void Cache::use(uint32_t at) {
  Entry& e = entries_[at];
  entries_[e.older].newer = e.newer, entries_[e.newer].older = e.older;
  const uint32_t of_set = lines_ + at / ways_;
  e.newer = of_set, e.older = entries_[of_set].older;
  entries_[e.older].newer = at, entries_[of_set].older = at;
}

FarCache::Slot& FarCache::slot(uint32_t block) {
  for (size_t k = mixed(block) & (table_.size() - 1);; k = (k + 1) & (table_.size() - 1))
    if (!table_[k].index || table_[k].block == block) return table_[k];
}

void FarCache::grow() {
  std::vector<Slot> old(table_.size() * 2);
  old.swap(table_);
  for (const Slot& s : old)
    if (s.index) slot(s.block) = s;
}

FarCache::Entry& FarCache::entry(uint32_t line) {
  const uint32_t block = line / kBlock;
  if (!last_.index || last_.block != block) {
    if (2 * blocks_.size() > table_.size()) grow();
    Slot& found = slot(block);
    if (!found.index) {
      blocks_.emplace_back();
      found = {block, uint32_t(blocks_.size())};
    }
    last_ = found;
  }
  return blocks_[last_.index - 1][line % kBlock];
}

FarCache::Found FarCache::find(uint32_t line) {
  Entry& e = entry(line);
  Found found = Found::there;
  if (!e.brought)
    found = Found::first;
  else if (double(brought_ - e.brought) > lines_)
    found = Found::gone;
  if (found != Found::there) ++brought_, e.written = false;
  e.brought = brought_;
  return found;
}

bool FarCache::writes(uint32_t line) {
  Entry& e = entry(line);
  const bool first = !e.written;
  e.written = true;
  return first;
}

MemoryTime::MemoryTime(const Constants& c, const Share& share)
    : c_(c),
      share_(share),
      l1_(uint32_t(c.l1_bytes / kLine), 64),
      scalar_(uint32_t(c.scalar_cache_bytes / kLine), 64),
      l2_(share.l2_lines),
      mall_(share.mall_lines),
      misses_(size_t(c.l1_miss_lines), 0.0) {
  const double hz = share.mhz * 1e6, nanosecond = share.mhz / 1000;
  l2_cycles_a_byte_ = 1 / std::min(c.l1_bytes_a_cycle, c.l2_bytes_a_cycle / share.busy_cus_of_xcd);
  mall_cycles_a_byte_ = share.busy_cus * hz / (c.mall_gb_a_second * 1e9);
  hbm_cycles_a_byte_ = share.busy_cus * hz / (c.hbm_gb_a_second * 1e9);
  mall_latency_ = c.mall_nanoseconds * nanosecond, hbm_latency_ = c.hbm_nanoseconds * nanosecond;
}

// Beyond L1. Each level is a queue that gives this unit its share of the bandwidth.
double MemoryTime::far(double from, uint32_t line, bool store, uint32_t bytes) {
  l2_free_ = std::max(l2_free_, from) + bytes * l2_cycles_a_byte_;
  const FarCache::Found in_l2 = l2_.find(line);
  if (store) {  // the line goes on to memory once, behind the store's back
    if (l2_.writes(line)) {
      mall_free_ = std::max(mall_free_, from) + kLine * mall_cycles_a_byte_;
      if (!share_.fits) hbm_free_ = std::max(hbm_free_, from) + kLine * hbm_cycles_a_byte_;
    }
    return l2_free_ + c_.l2_latency;
  }
  // What this unit does not find, another may have brought.
  if (in_l2 == FarCache::Found::there || !among(line, 1, share_.first_of_xcd)) {
    ++counts.l2_hits;
    return l2_free_ + c_.l2_latency;
  }
  mall_free_ = std::max(mall_free_, from) + kLine * mall_cycles_a_byte_;
  const FarCache::Found in_mall = mall_.find(line);
  const bool mall_hit = in_mall == FarCache::Found::there || !among(line, 2, share_.first_of_chip) ||
                        (in_mall == FarCache::Found::first && share_.warm);
  ++(mall_hit ? counts.mall_hits : counts.hbm);
  if (mall_hit) return std::max(l2_free_, mall_free_) + mall_latency_;
  hbm_free_ = std::max(hbm_free_, from) + kLine * hbm_cycles_a_byte_;
  return std::max({l2_free_, mall_free_, hbm_free_}) + hbm_latency_;
}

double MemoryTime::vector(double now, const Step& step, const Cursor& cursor) {
  const double from = std::max(now, l1_free_);
  l1_free_ = from + std::max(c_.address_cycles, cursor.halves * kHalf / c_.l1_bytes_a_cycle);
  double done = l1_free_ + c_.l1_latency;
  const uint32_t bytes = cursor.lines ? cursor.halves * kHalf / cursor.lines : 0;
  for_lines(cursor, [&](uint32_t line) {
    double* there = nullptr;
    if (!step.bypasses_l1) {
      bool hit;
      there = &l1_.find(line, hit);
      if (hit) {
        ++counts.l1_hits;
        done = std::max(done, *there);
        return;
      }
    }
    if (step.store) ++counts.stored;
    const bool writes = step.store && !step.atomic;
    double& slot = misses_[oldest_++ % misses_.size()];
    slot = far(writes ? from : std::max(from, slot), line, writes, writes ? bytes : kLine);
    if (there) *there = slot;
    done = std::max(done, slot);
  });
  return done;
}

double MemoryTime::scalar(double now, const Cursor& cursor) {
  double done = now + c_.scalar_hit_cycles;
  for_lines(cursor, [&](uint32_t line) {
    bool hit;
    double& there = scalar_.find(line, hit);
    if (!hit) there = now + c_.scalar_miss_cycles;
    done = std::max(done, there);
  });
  return done;
}

}  // namespace gfx942::clock
