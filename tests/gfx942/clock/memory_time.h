// SPDX-License-Identifier: Apache-2.0
// How long a compute unit waits for memory: its L1, and its share of L2, Infinity Cache (MALL) and HBM.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace gfx942::clock {

// A set-associative cache that replaces what was used least recently.
class Cache {
 public:
  Cache(uint64_t lines, uint32_t ways);
  // Where the time is kept at which the line is there; if it was not, it takes the place of another.
  double& find(uint32_t line, bool& hit);

 private:
  uint32_t sets_, ways_;
  uint64_t time_ = 0;
  std::vector<uint32_t> tags_;
  std::vector<uint64_t> used_;
  std::vector<double> there_;
};

// Lines that were touched once, and how many others were brought since: those beyond `lines` are gone.
class FarCache {
 public:
  explicit FarCache(double lines) : lines_(lines) {}
  enum class Found : uint8_t { first, gone, there };
  Found find(uint32_t line);
  // Whether it is the first store to a line since it came: that is written back one day.
  bool writes(uint32_t line);

 private:
  struct Entry {
    uint32_t line = 0;
    uint64_t brought = 0;  // 0: no entry
    bool written = false;
  };
  void grow();
  Entry& entry(uint32_t line);

  double lines_;
  uint64_t brought_ = 0;
  std::vector<Entry> entries_ = std::vector<Entry>(1 << 12);
  uint64_t count_ = 0;
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
