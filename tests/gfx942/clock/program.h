// SPDX-License-Identifier: Apache-2.0
// A kernel's instructions as the clock sees them: what each occupies, what it waits for, which registers it joins.
#pragma once

#include <array>
#include <vector>

#include "code.h"
#include "constants.h"
#include "events.h"

namespace gfx942::clock {

// A SIMD issues at most one instruction of each port in a slot, each from another wave. `none`: those that the
// instruction buffer takes by itself.
enum class Port : uint8_t { vector, scalar, lds, memory, branch, none };
constexpr int kPorts = 5;

struct Registers {
  uint16_t first = 0, count = 0;
};

struct Step {
  Unit unit = Unit::scalar;
  Port port = Port::none;
  bool store = false, atomic = false, bypasses_l1 = false, ends = false;
  bool vector_writes_scalar = false;  // VCC, a scalar register: later for scalar instructions
  uint16_t cycles = 4;                // of the vector or the matrix unit
  int16_t vmcnt = -1, lgkmcnt = -1;   // of s_waitcnt; nothing is counted in expcnt
  int16_t priority = -1;              // of s_setprio
  uint16_t pause = 0;                 // cycles of s_nop, s_sleep
  std::array<Registers, 6> read = {};
  std::array<Registers, 3> written = {};
  uint8_t reads = 0, writes = 0;
  uint8_t accumulator = 255;  // which read is the C of a matrix product with D in the same place
  uint32_t line = 0;          // of the instruction cache
};

std::vector<Step> steps_of(const Code& code, const Constants& constants);

// Goes along a wave's words.
class Cursor {
 public:
  explicit Cursor(const std::vector<uint32_t>& words) : at_(words.data()), end_(at_ + words.size()) {}
  // The next instruction; false after the last.
  bool next();

  uint32_t index = 0;        // of the instruction
  uint32_t lds = 0;          // its cycles of LDS
  bool touches_lds = false;  // whether they were counted
  uint32_t halves = 0, lanes = 0, lines = 0;
  const uint32_t* memory = nullptr;  // its words of memory, one after the other
  const uint32_t* memory_end = nullptr;

 private:
  void read_requests();

  const uint32_t *at_, *end_;
  uint32_t more_ = 0;
};

// f(line) for each that the cursor's instruction touches.
template <class F>
void for_lines(const Cursor& c, F f) {
  for (const uint32_t* w = c.memory; w != c.memory_end;) {
    const uint32_t count = *w++ & 255;
    for (uint32_t k = 0; k < count; ++k) f(*w++);
  }
}

}  // namespace gfx942::clock
