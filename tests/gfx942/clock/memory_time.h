// SPDX-License-Identifier: Apache-2.0
// How long a compute unit waits for memory: its L1, and its share of L2, Infinity Cache (MALL) and HBM.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program.h"

namespace gfx942::clock {

// A set-associative cache that replaces what was used least recently.
class Cache {
 public:
  Cache(uint32_t lines, uint32_t ways);
  // Where the time is kept at which the line is there; if it was not, it takes the place of another.
  double& find(uint32_t line, bool& hit) {
    uint32_t anywhere = 0;
    return find(line, hit, anywhere);
  }
  // at: where the same caller's last line was, which most ask for again.
  double& find(uint32_t line, bool& hit, uint32_t& at) {
    hit = entries_[at].line == line || look(line, at);
    if (!hit) at = replace(line);
    if (entries_[at].newer < lines_) use(at);
    return entries_[at].there;
  }

 private:
  struct Entry {
    uint32_t line = ~0u;
    uint32_t chained = 0;           // another one of the same chain
    uint32_t older = 0, newer = 0;  // of the same set
    double there = 0;
  };
  static constexpr uint32_t kNone = ~0u;
  uint32_t& chain(uint32_t line) { return chains_[line & (chains_.size() - 1)]; }
  bool look(uint32_t line, uint32_t& at) const;
  uint32_t replace(uint32_t line);
  void use(uint32_t at);

  uint32_t lines_, ways_;
  std::vector<Entry> entries_;    // then one for each set: its neighbours are the oldest and the newest of the set
  std::vector<uint32_t> chains_;  // the first entry of each
};

// Lines that were touched once, and how many others were brought since: those beyond `lines` are gone.
class FarCache {
 public:
  explicit FarCache(double lines) : lines_(lines), table_(1 << 10) {}
  enum class Found : uint8_t { first, gone, there };
  Found find(uint32_t line);
  // Whether it is the first store to a line since it came: that is written back one day.
  bool writes(uint32_t line);

 private:
  struct Entry {
    uint64_t brought : 63 = 0;  // 0: no entry
    uint64_t written : 1 = 0;
  };
  // Neighbours in memory are touched one after the other, and lie in one line of the host's cache.
  static constexpr uint32_t kBlock = 16;
  struct Slot {
    uint32_t block = 0, index = 0;  // of blocks_, from 1; 0: a free slot
  };
  Slot& slot(uint32_t block);
  void grow();
  Entry& entry(uint32_t line);

  double lines_;
  uint64_t brought_ = 0;
  std::vector<Slot> table_;
  std::vector<std::array<Entry, kBlock>> blocks_;
  Slot last_;
};

// What a compute unit has of what the chip shares, while all that are busy do the same.
struct Share {
  double mhz = 2100;
  double busy_cus = 1, busy_cus_of_xcd = 1;
  double first_of_xcd = 1;   // of lines that this unit asks L2 for, the share that no other of its XCD asked for before
  double first_of_chip = 1;  // and of those, which no other XCD did
  double l2_lines = 0, mall_lines = 0;  // of this unit's lines that these hold: others' are there as well
  bool fits = true;                     // whether the Infinity Cache holds all that the launch touches
  bool warm = true;                     // whether what fits into the Infinity Cache was there before the launch
};

struct MemoryCounts {
  uint64_t l1_hits = 0, l2_hits = 0, mall_hits = 0, hbm = 0;  // lines that were loaded, by where they were found
  uint64_t stored = 0;                                        // lines
};

class MemoryTime {
 public:
  MemoryTime(const Constants& c, const Share& share);
  // When the access that the cursor is at is done, if it is issued now.
  double vector(double now, const Step& step, const Cursor& cursor);
  double scalar(double now, const Cursor& cursor);
  // When the address unit can take the next instruction.
  double free() const { return l1_free_; }
  MemoryCounts counts;

 private:
  double far(double from, uint32_t line, bool store, uint32_t bytes);

  const Constants& c_;
  Share share_;
  Cache l1_, scalar_;
  FarCache l2_, mall_;
  double l2_cycles_a_byte_, mall_cycles_a_byte_, hbm_cycles_a_byte_, mall_latency_, hbm_latency_;
  double l1_free_ = 0, l2_free_ = 0, mall_free_ = 0, hbm_free_ = 0;
  std::vector<double> misses_;  // when each of the L1's misses that are out comes back
  size_t oldest_ = 0;
};

}  // namespace gfx942::clock
