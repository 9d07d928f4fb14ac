// SPDX-License-Identifier: Apache-2.0
// One compute unit, cycle by cycle: which wave issues what, and what the others wait for.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "memory_time.h"
#include "program.h"

namespace gfx942::clock {

// Where a wave's cycles go. The first ones are those of instructions that issue, by what they occupy; the others are
// those of waiting, by what for.
enum class Spent : uint8_t {
  matrix,
  vector,
  scalar,
  lds,
  memory,
  other,
  wait_matrix_unit,
  wait_vector_unit,
  wait_port,
  wait_matrix_result,
  wait_result,
  wait_memory,
  wait_lds,
  wait_scalar_memory,
  wait_queue,
  wait_barrier,
  wait_instructions,
  pause,
};
constexpr int kSpent = 18;
extern const std::array<std::string_view, kSpent> kSpentNames;

struct GroupTime {
  size_t which = 0;  // of the groups given
  uint64_t begin = 0, end = 0;
};

// A stretch of a wave's time.
struct Stretch {
  uint32_t group, wave, simd;
  uint64_t begin, end;
  Spent spent;
};

struct UnitTime {
  uint64_t cycles = 0;
  std::vector<GroupTime> groups;
  std::array<uint64_t, kSpent> spent = {};    // cycles of all waves
  uint64_t wave_cycles = 0;                   // their sum
  std::vector<uint64_t> stalls, executed;     // of each instruction: cycles that waves waited before it, times
  std::vector<Spent> stalled_for;             // what most of that was for
  uint64_t matrix_busy = 0, vector_busy = 0;  // cycles, of all SIMDs
  double lds_busy = 0;
  uint64_t instructions = 0;
  MemoryCounts memory;
  std::vector<Stretch> trace;
};

using GroupWords = std::vector<std::vector<uint32_t>>;  // of each wave

struct UnitOptions {
  int resident = 1;    // workgroups at once
  bool refill = true;  // the first ones follow the last, so that these do not end alone; they count once
  size_t trace = 0;    // stretches that are kept
};

UnitTime time_unit(const Constants& c, const std::vector<Step>& steps, const Share& share,
                   const std::vector<const GroupWords*>& groups, const UnitOptions& options);

}  // namespace gfx942::clock
