// SPDX-License-Identifier: Apache-2.0
// What all instructions that touch LDS have in common.
#pragma once

#include "lds_banks.h"
#include "operations.h"
#include "workgroup.h"

namespace gfx942 {

// A register that a load writes. Results of one counter come back in order unless one of them is of a kind that does
// not; then, or when the other counter's is still out, it is unknown which of the two stays.
inline void check_overwrites(const Wave& w, const Instruction& i, const Outstanding& counter, const Operand& result) {
  if (!w.vm.any() && !w.lgkm.any()) return;
  const Outstanding& other = &counter == &w.vm ? w.lgkm : w.vm;
  for (int r = kScalars + result.index; r < kScalars + result.index + result.registers; ++r)
    if (other.pending(r) || (counter.pending(r) && counter.unordered > counter.done)) w.check_arrived_slowly(i, r, 1);
}

// Registers that an instruction reads. The lanes where all of them are defined.
inline Mask read_registers(const Wave& w, const Instruction& i, const Operand& o) {
  if (!o.is_vector()) w.fail(i, "a vector register was expected");
  w.check_arrived(i, kScalars + o.index, o.registers);
  Mask defined = ~Mask(0);
  for (int r = 0; r < o.registers; ++r) defined &= w.v_defined[o.index + r];
  return defined;
}

// The value of a byte or a word, as a load leaves it in its register.
enum class Part : uint8_t { zero_extended, sign_extended, low, high };
template <class U>
uint32_t placed(uint32_t old, U x, Part part) {
  switch (part) {
    case Part::sign_extended:
      return uint32_t(int32_t(std::make_signed_t<U>(x)));
    case Part::low:
      return (old & 0xffff0000u) | uint32_t(x);
    case Part::high:
      return (old & 0xffffu) | uint32_t(x) << 16;
    default:
      return uint32_t(x);
  }
}
template <class U>
uint32_t placed_half(uint32_t old, U x, bool sign_extend, Part part) {
  return placed<uint16_t>(old, sign_extend ? uint16_t(int16_t(std::make_signed_t<U>(x))) : uint16_t(x), part);
}

// After the access: Lds knows then whether a write changed anything.
inline void lds_race(const Wave& w, const Instruction& i, Lds::Use use, uint32_t at, uint32_t bytes, bool changes,
                     int lane) {
  const Lds::Race found = w.group.lds.race(use, at, bytes, w.number);
  const Check check = found.late                           ? Check::lds_wait
                      : use == Lds::Use::write && !changes ? Check::lds_same_bytes
                                                           : Check::lds_race;
  w.complain(check, i, lane, [&] { return Lds::text_of(found, use); });
}
[[noreturn]] inline void outside_lds(const Wave& w, const Instruction& i, bool write, uint32_t at, uint32_t bytes,
                                     int lane) {
  w.fail(i,
         std::string(write ? "writes " : "reads ") + std::to_string(bytes) + " bytes at LDS address " +
             std::to_string(at) + ", outside the workgroup's " + std::to_string(w.group.lds.size()) + " bytes",
         lane);
}

// An access that races, in the lanes where it does.
inline void find_races(const Wave& w, const Instruction& i, Lds::Use use, const Vector& at, uint32_t bytes) {
  const bool changes = w.group.lds.take_changed();
  for (Mask m = w.exec(); m; m &= m - 1) {
    const int l = std::countr_zero(m);
    if (!w.group.lds.note(use, at.lane[l], bytes, w.number)) lds_race(w, i, use, at.lane[l], bytes, changes, l);
  }
}

// f(lane) for each that is on.
template <class F>
inline void for_lanes(Mask on, F f) {
  if (on == ~Mask(0))
    for (int l = 0; l < kLanes; ++l) f(l);
  else
    for (Mask m = on; m; m &= m - 1) f(std::countr_zero(m));
}

// Where each lane that is on goes; the others have 0. The sum wraps around, which compilers rely on.
inline Vector lds_addresses(Wave& w, const Instruction& i, const Operand& from, uint32_t offset, uint32_t bytes,
                            bool write) {
  const Mask on = w.exec();
  w.check_known(i, on & ~read_registers(w, i, from), "the address");
  const uint32_t* a = w.v[from.index].lane;
  Vector at;
  for (int l = 0; l < kLanes; ++l) at.lane[l] = a[l] + offset;
  if (on != ~Mask(0))
    for (int l = 0; l < kLanes; ++l) at.lane[l] &= -uint32_t(on >> l & 1);
  uint32_t most = 0;
  for (int l = 0; l < kLanes; ++l) most = std::max(most, at.lane[l]);
  const uint32_t size = w.group.lds.size();
  if (size < bytes || most > size - bytes)
    for (Mask m = on; m; m &= m - 1) {
      const int l = std::countr_zero(m);
      if (size < bytes || at.lane[l] > size - bytes) outside_lds(w, i, write, at.lane[l], bytes, l);
    }
  if (!w.lds_loads.empty()) [[unlikely]]
    for (Mask m = on; m; m &= m - 1) w.check_loaded(i, at.lane[std::countr_zero(m)], bytes, std::countr_zero(m));
  return at;
}

template <int bytes>
void tally_lds(Wave& w, const Instruction& i, const Vector& at, bool read) {
  constexpr int kMostBanks = banks::banks_of(true, bytes, true);
  const bool cdna4 = w.group.launch.code->object->chip().isa == Isa::cdna4;
  const BankCycles c = banks::banks_of(cdna4, bytes, read) == kMostBanks
                           ? bank_cycles<kMostBanks, bytes>(at, w.exec(), read)
                           : bank_cycles<32, bytes>(at, w.exec(), read);
  w.tally->cycles[i.index] += c.cycles, w.tally->ideal[i.index] += c.ideal;
  if (w.events) w.events->lds(c.cycles);
}

inline void note_uninitialised(Wave& w, const Instruction& i, uint32_t at, int lane) {
  if (!w.uninitialised_lds.instruction) w.uninitialised_lds = {&i, at, lane};
}

void add_lds_atomics(Table&);

}  // namespace gfx942
