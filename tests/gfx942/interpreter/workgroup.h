// SPDX-License-Identifier: Apache-2.0
// A workgroup: its waves and its LDS.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "code.h"
#include "memory.h"
#include "wave.h"

namespace gfx942 {

// What a kernel did, instruction by instruction. Sums over all waves of a launch, or of several.
struct Tally {
  explicit Tally(size_t instructions = 0)
      : executed(instructions),
        lanes(instructions),
        cycles(instructions),
        ideal(instructions),
        bytes(instructions),
        lines(instructions) {}
  void add(const Tally& other);

  std::vector<uint64_t> executed, lanes;  // times; lanes that were on
  std::vector<uint64_t> cycles, ideal;    // of LDS, with and without bank conflicts
  std::vector<uint64_t> bytes, lines;     // of memory; lines of 128 bytes
  uint64_t workgroups = 0, waves = 0, launches = 0;
};

struct Launch {
  const Code* code = nullptr;
  std::array<uint32_t, 3> grid = {1, 1, 1}, block = {1, 1, 1};  // workgroups; threads of one
  uint32_t dynamic_lds = 0;
  const uint8_t* arguments = nullptr;  // the kernarg segment, complete with the hidden ones
  const uint8_t* packet = nullptr;     // the dispatch packet

  uint32_t threads() const { return block[0] * block[1] * block[2]; }
  uint32_t waves() const { return (threads() + kLanes - 1) / kLanes; }
  uint32_t lds_bytes() const { return code->lds_bytes + dynamic_lds; }
};

class Workgroup {
 public:
  Workgroup(const Launch& launch, Tally& tally, bool records = false);

  // From start to end, for the workgroup of that position in the grid.
  void run(std::array<uint32_t, 3> id, uint64_t most_words = 0);
  // The same by turns of its waves: all are at the kernel's start; each has ended, or waits at the barrier.
  void begin(std::array<uint32_t, 3> id);
  void leave_barrier();
  std::span<const std::unique_ptr<Wave>> waves() const { return waves_; }
  // What its waves did, if that is recorded.
  std::vector<std::vector<uint32_t>> take_events();

  const Launch& launch;
  Lds lds;
  std::array<uint32_t, 3> id = {};
  std::array<Memory::Range, 4> last_ranges;  // of the last accesses to memory: most are to the same few
  uint32_t oldest_range = 0;
  uint64_t last_generation = ~uint64_t(0);

 private:
  void start(Wave& wave, int number);
  void check_barrier() const;

  Tally& tally_;
  std::vector<std::unique_ptr<Wave>> waves_;
  std::vector<Events> events_;  // of each wave, if they are recorded
};

// How many workgroups a compute unit holds: by its waves, their registers and its LDS.
struct UnitLimits {
  uint32_t simds, waves_of_simd, vgprs_of_simd, lds_bytes;
};
uint32_t workgroups_of_unit(const UnitLimits& limits, uint32_t vgprs, uint32_t lds_bytes, uint32_t waves);
uint32_t workgroups_of_unit(const Launch& launch);  // of the kernel's chip

// All workgroups of a launch on the host's threads, each from start to end. Throws the first Fault.
struct RunOptions {
  uint32_t sample = 1;  // only each sample-th workgroup: counters are then of those, and results incomplete
  std::vector<uint64_t> chosen = {};   // or these, by their numbers in the grid
  RecordedLaunch* recorded = nullptr;  // what their waves did
  uint64_t most_words = 0;             // a workgroup stops at the barrier after so many words; 0: it runs to its end
};
void run(const Launch& launch, Tally& tally, const RunOptions& options);

}  // namespace gfx942
