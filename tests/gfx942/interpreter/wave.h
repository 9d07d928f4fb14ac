// SPDX-License-Identifier: Apache-2.0
// A wave: its registers, what of them is defined, and what of them is still on its way from memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "checks.h"
#include "code.h"
#include "events.h"
#include "fault.h"
#include "instruction.h"
#include "lds_memory.h"

namespace gfx942 {

// The upper halves of flat addresses that mean LDS and scratch.
constexpr uint32_t kSharedAperture = 0xfffe0000u, kPrivateAperture = 0xfffd0000u;

class MemoryOrder;
class Workgroup;
struct Tally;

struct alignas(64) Vector {
  uint32_t lane[kLanes];
};

// All bits of a lane where the mask has it, none where it has not: so that loops over lanes need no shift of a mask.
inline Vector expanded(Mask m) {
  Vector v;
  const uint32_t low = uint32_t(m), high = uint32_t(m >> 32);
  for (int l = 0; l < kLanes / 2; ++l) v.lane[l] = -(low >> l & 1);
  for (int l = 0; l < kLanes / 2; ++l) v.lane[kLanes / 2 + l] = -(high >> l & 1);
  return v;
}

// The bits of the MODE register that arithmetic obeys.
struct Mode {
  uint32_t bits = 0;
  int round32() const { return bits & 3; }
  int round64() const { return bits >> 2 & 3; }  // and of 16-bit floats
  bool keeps_input_denormals32() const { return bits >> 4 & 1; }
  bool keeps_output_denormals32() const { return bits >> 5 & 1; }
  bool keeps_input_denormals64() const { return bits >> 6 & 1; }
  bool keeps_output_denormals64() const { return bits >> 7 & 1; }
  bool dx10_clamp() const { return bits >> 8 & 1; }
  bool ieee() const { return bits >> 9 & 1; }
  bool indexes_vectors() const { return bits & kIndexes; }
  bool skips_vectors() const { return bits & kSkips; }
  void set(uint32_t bit, bool on) { bits = on ? bits | bit : bits & ~bit; }
  static constexpr uint32_t kIndexes = 1u << 27, kSkips = 1u << 28;
};

// Results that a counter (vmcnt, lgkmcnt) says are under way. Registers remember the number of the access that writes
// them; an access is done once a wait has passed its number.
struct Outstanding {
  uint32_t issued = 0, done = 0;
  uint32_t unordered = 0;  // the newest that may return out of order: a wait for some says nothing while it is out
  std::array<uint32_t, kScalars + kVectors> writes = {};

  bool any() const { return issued != done; }
  bool pending(int reg) const { return writes[reg] > done; }
  void wait(int most) {
    if (most == 0)
      done = issued;
    else if (unordered <= done && issued > done + uint32_t(most))
      done = issued - most;
  }
};

class Wave {
 public:
  Wave(Workgroup& group, const Code& code, int number);

  // ---- registers, as they are: operations go through the checked ones below
  std::unique_ptr<Vector[]> v;           // VGPRs, then AGPRs from kAccumulators
  alignas(8) uint32_t s[kScalars] = {};  // VCC, M0 and EXEC among them
  std::array<Mask, kVectors> v_defined = {};
  std::array<uint32_t, kScalars> s_defined = {};  // bit by bit
  bool scc = false, scc_defined = false;
  Mode mode;
  uint32_t pc = 0;  // index of the instruction
  bool ended = false, at_barrier = false;
  int number;  // within the workgroup
  Workgroup& group;
  const Code& code;
  Tally* tally = nullptr;
  Events* events = nullptr;      // where what it does is recorded, if it is
  MemoryOrder* order = nullptr;  // of the launch, where its waves take turns
  Outstanding vm, lgkm;
  std::vector<uint8_t> scratch, scratch_defined;  // lane by lane, of code.scratch_bytes each

  Mask exec() const { return pair(kExec); }
  void set_exec(Mask m) { set_pair(kExec, m); }
  uint64_t pair(int reg) const {
    uint64_t x;
    std::memcpy(&x, &s[reg], 8);
    return x;
  }
  void set_pair(int reg, uint64_t x) { std::memcpy(&s[reg], &x, 8); }
  uint64_t pair_defined(int reg) const { return uint64_t(s_defined[reg + 1]) << 32 | s_defined[reg]; }
  void set_pair_defined(int reg, uint64_t x) { s_defined[reg] = uint32_t(x), s_defined[reg + 1] = uint32_t(x >> 32); }

  void reset();
  void run();  // until it ends or waits at a barrier
  // The same, but at most so many instructions: the other waves of a launch then have their turns (schedule.h).
  void run_turn(uint32_t instructions);
  void end_turn() { turn_ = 0; }
  void leave_barrier();

  // LDS accesses that no wait has passed yet, an instruction at a time.
  struct LdsAccess {
    uint32_t number, bytes;
    Lds::Use use;
    Mask lanes;
    Vector address;
  };
  std::vector<LdsAccess> lds_accesses;
  // Loads from memory into LDS that no wait has passed yet: a dword for each lane, side by side.
  struct LdsLoad {
    uint32_t number;
    Mask lanes;
    uint32_t address;  // of lane 0
  };
  std::vector<LdsLoad> lds_loads;
  // The wave's own access to LDS: it must wait for such loads as any other wave.
  void check_loaded(const Instruction& i, uint32_t at, uint32_t bytes, int lane);
  void remember(Lds::Use use, uint32_t bytes, Mask lanes, const Vector& address);  // of what lgkm counted last
  // Where LDS was first read that nothing had been written to: a report tells, since a fault may come of it.
  struct {
    const Instruction* instruction = nullptr;
    uint32_t address = 0;
    int lane = 0;
  } uninitialised_lds;

  [[noreturn]] void fail(const Instruction& i, const std::string& what, int lane = -1) const;
  // What a check found: the end, or a warning.
  template <class Words>
  void complain(Check c, const Instruction& i, int lane, Words what) const {
    if (!checks().warns(c)) fail(i, what() + named(c), lane);
    checks().warn(c, code.name, i.address - code.base, [&] { return report(i, what() + named(c), lane); });
  }
  void complain_undefined(const Instruction& i, const std::string& what, int lane = -1) const {
    complain(Check::undefined, i, lane, [&] { return what; });
  }

  // ---- what is under way
  // Before registers are read or written: they must not wait for memory.
  void check_arrived(const Instruction& i, int reg, int count) const {
    if (!vm.any() && !lgkm.any()) return;
    bool late = false;
    for (int r = reg; r < reg + count; ++r) late |= vm.pending(r) || lgkm.pending(r);
    if (late) [[unlikely]]
      check_arrived_slowly(i, reg, count);
  }
  void check_arrived_slowly(const Instruction& i, int reg, int count) const;
  void issue_vm(const Operand& result, bool unordered = false) { issue(vm, result, unordered); }
  void issue_lgkm(const Operand& result, bool unordered = false) { issue(lgkm, result, unordered); }

  // ---- scalar operands
  uint64_t scalar(const Instruction& i, const Operand& o, uint64_t* defined = nullptr) const;
  void set_scalar(const Instruction& i, const Operand& o, uint64_t x, uint64_t defined);

  // ---- vector operands. Sources: a pointer to 64 values, in the register itself or in `buffer`; lanes outside EXEC
  // are whatever they are. `defined` loses the lanes where the operand is not.
  const uint32_t* source32(const Instruction& i, const Operand& o, Vector& buffer, Mask& defined) const;
  void source64(const Instruction& i, const Operand& o, uint64_t (&to)[kLanes], Mask& defined) const;
  void result32(const Instruction& i, const Operand& o, const uint32_t* x, Mask defined, Mask lanes);
  void result64(const Instruction& i, const Operand& o, const uint64_t* x, Mask defined, Mask lanes);
  // A bit for each lane: a scalar pair.
  uint64_t lane_mask(const Instruction& i, const Operand& o, Mask& defined) const;
  void set_lane_mask(const Instruction& i, const Operand& o, Mask x, Mask defined);

  // One value that everything depends on: a fault where it is undefined.
  uint64_t known_scalar(const Instruction& i, const Operand& o, const char* as) const;
  void check_known(const Instruction& i, Mask undefined, const char* as) const {
    if (undefined) complain_undefined(i, std::string(as) + " is undefined", std::countr_zero(undefined));
  }

 private:
  template <bool records, bool takes_turns>
  void run_on();
  uint32_t turn_ = 0;  // instructions that are left of it
  std::string report(const Instruction& i, const std::string& what, int lane) const;
  void run_indexed(const Instruction& i);
  const uint32_t* moved(const Instruction& i, const uint32_t* x, Vector& buffer, Mask& defined) const;
  Mask dpp_sources_on(const Instruction& i) const;
  Mask dpp_writes(const Instruction& i) const;
  void store_part(const Instruction& i, const Operand& o, const uint32_t* x, Mask lanes);
  void issue(Outstanding& counter, const Operand& result, bool unordered) {
    ++counter.issued;
    if (unordered) counter.unordered = counter.issued;
    if (!result) return;
    const int first = result.is_vector() ? kScalars + result.index : result.index;
    std::fill_n(counter.writes.begin() + first, result.registers, counter.issued);
  }
};

// Of such modifiers, made once and kept.
const DppSources* dpp_sources(const Modifiers& m);

}  // namespace gfx942
