// SPDX-License-Identifier: Apache-2.0
// Where the lanes of a memory instruction go, and the checks of it.
#pragma once

#include "lds_access.h"

namespace gfx942 {

struct LaneAddresses {
  // Of each lane that is on: a host address, or one within LDS or within the lane's scratch.
  alignas(64) uint64_t address[kLanes];
  Mask memory = 0, lds = 0, scratch = 0;
};

LaneAddresses global_addresses(const Wave& w, const Instruction& i, const Operand& address, const Operand& base);
LaneAddresses flat_addresses(const Wave& w, const Instruction& i, const Operand& address);
LaneAddresses scratch_addresses(const Wave& w, const Instruction& i, const Operand& address, const Operand& base);

// A V#, and where in it the lanes go. A lane's dwords are checked against the size of the buffer one by one: those that
// are within are the first ones.
struct BufferPlaces : LaneAddresses {
  std::array<Mask, 4> within = {};
};
// The operands after the data: address, descriptor, offset. A unit is what is checked as one.
BufferPlaces buffer_places(const Wave& w, const Instruction& i, int first_operand, uint32_t unit, int units);

// Faults where a lane leaves the allocation that it is in, the LDS or its scratch.
void check_addresses(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes, bool write);
void tally_memory(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes);
// After the access: what counts it. Flat instructions that reached LDS are in both counters, and out of order.
void issue_memory(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& result, Lds::Use use,
                  uint32_t bytes);
// Before: the result's registers.
void check_memory_result(const Wave& w, const Instruction& i, const Operand& result);

inline void check_stored(const Wave& w, const Instruction& i, const Operand& data, Mask lanes) {
  if (const Mask undefined = lanes & ~read_registers(w, i, data))
    w.complain_undefined(i, "stores an undefined value", std::countr_zero(undefined));
}

void add_buffers(Table&);
void add_memory_atomics(Table&);

// What an instruction does once it knows the places: Access is one of those in memory_access.cpp.
enum class Segment : uint8_t { global, flat, scratch };
template <Segment segment>
LaneAddresses places(const Wave& w, const Instruction& i, int first_operand) {
  const Operand& address = i.operand[first_operand];
  const Operand& base = i.operand[i.operands - 1];
  if constexpr (segment == Segment::global) return global_addresses(w, i, address, base);
  if constexpr (segment == Segment::flat) return flat_addresses(w, i, address);
  return scratch_addresses(w, i, address, base);
}

// ---- moving data: U is a byte, a word or a dword; dwords are `count` registers

template <class U>
U read_lane(Wave& w, const Instruction& i, const LaneAddresses& p, int lane, uint32_t offset, bool& defined) {
  const uint64_t at = p.address[lane] + offset;
  U x;
  if (p.memory >> lane & 1) {
    std::memcpy(&x, reinterpret_cast<const void*>(at), sizeof x);
  } else if (p.lds >> lane & 1) {
    const Lds::View lds = w.group.lds.view(w.number);
    if (lds.read<U>(uint32_t(at), x)) lds_race(w, i, Lds::Use::read, uint32_t(at), sizeof(U), true, lane);
    if (lds.defined<U>(uint32_t(at)) != U(~U(0))) {
      defined = false;
      note_uninitialised(w, i, uint32_t(at), lane);
    }
  } else {
    const size_t byte = size_t(w.code.scratch_bytes) * lane + at;
    std::memcpy(&x, &w.scratch[byte], sizeof x);
    for (size_t k = 0; k < sizeof(U); ++k) defined &= w.scratch_defined[byte + k] != 0;
  }
  return x;
}
template <class U>
void write_lane(Wave& w, const Instruction& i, const LaneAddresses& p, int lane, uint32_t offset, U x, bool defined) {
  const uint64_t at = p.address[lane] + offset;
  if (p.memory >> lane & 1) {
    std::memcpy(reinterpret_cast<void*>(at), &x, sizeof x);
  } else if (p.lds >> lane & 1) {
    if (w.group.lds.view(w.number).write<U>(uint32_t(at), x, U(defined ? ~U(0) : U(0))))
      lds_race(w, i, Lds::Use::write, uint32_t(at), sizeof(U), w.group.lds.take_changed(), lane);
  } else {
    const size_t byte = size_t(w.code.scratch_bytes) * lane + at;
    std::memcpy(&w.scratch[byte], &x, sizeof x);
    std::memset(&w.scratch_defined[byte], defined, sizeof x);
  }
}

template <int count>
void load_dwords(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& to) {
  const Mask on = p.memory | p.lds | p.scratch;
  uint32_t* lanes[count];
  for (int r = 0; r < count; ++r) lanes[r] = w.v[to.index + r].lane;
  Mask known[count];
  std::fill_n(known, count, on);
  if (on == p.memory) {
    for (Mask m = on; m; m &= m - 1) {
      const int l = std::countr_zero(m);
      uint32_t x[count];
      std::memcpy(x, reinterpret_cast<const void*>(p.address[l]), sizeof x);
      for (int r = 0; r < count; ++r) lanes[r][l] = x[r];
    }
  } else {
    for (Mask m = on; m; m &= m - 1) {
      const int l = std::countr_zero(m);
      for (int r = 0; r < count; ++r) {
        bool defined = true;
        lanes[r][l] = read_lane<uint32_t>(w, i, p, l, 4 * r, defined);
        if (!defined) known[r] &= ~(Mask(1) << l);
      }
    }
  }
  for (int r = 0; r < count; ++r) w.v_defined[to.index + r] = (w.v_defined[to.index + r] & ~on) | known[r];
}
template <int count>
void store_dwords(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& from) {
  const Mask on = p.memory | p.lds | p.scratch;
  const uint32_t* lanes[count];
  for (int r = 0; r < count; ++r) lanes[r] = w.v[from.index + r].lane;
  if (on == p.memory) {
    for (Mask m = on; m; m &= m - 1) {
      const int l = std::countr_zero(m);
      uint32_t x[count];
      for (int r = 0; r < count; ++r) x[r] = lanes[r][l];
      std::memcpy(reinterpret_cast<void*>(p.address[l]), x, sizeof x);
    }
  } else {
    for (Mask m = on; m; m &= m - 1) {
      const int l = std::countr_zero(m);
      for (int r = 0; r < count; ++r)
        write_lane<uint32_t>(w, i, p, l, 4 * r, lanes[r][l], w.v_defined[from.index + r] >> l & 1);
    }
  }
}
template <class U, Part part, bool sign_extend>
void load_part(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& to) {
  const Mask on = p.memory | p.lds | p.scratch;
  uint32_t* lanes = w.v[to.index].lane;
  Mask known = on;
  for (Mask m = on; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    bool defined = true;
    const U x = read_lane<U>(w, i, p, l, 0, defined);
    if constexpr (part == Part::low || part == Part::high)
      lanes[l] = placed_half<U>(lanes[l], x, sign_extend, part);
    else
      lanes[l] = placed<U>(0, x, part);
    if (!defined) known &= ~(Mask(1) << l);
  }
  w.v_defined[to.index] = (w.v_defined[to.index] & ~on) | known;
}
template <class U, int shift>
void store_part(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& from) {
  const uint32_t* lanes = w.v[from.index].lane;
  for (Mask m = p.memory | p.lds | p.scratch; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    write_lane<U>(w, i, p, l, 0, U(lanes[l] >> shift), w.v_defined[from.index] >> l & 1);
  }
}

// The kinds of loads and stores: how many bytes, and what moves them.
template <int count>
struct Dwords {
  static constexpr uint32_t bytes = 4 * count;
  static void load(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& to) {
    load_dwords<count>(w, i, p, to);
  }
  static void store(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& from) {
    store_dwords<count>(w, i, p, from);
  }
};
template <class U, Part part, bool sign_extend = false>
struct PartOf {
  static constexpr uint32_t bytes = sizeof(U);
  static void load(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& to) {
    load_part<U, part, sign_extend>(w, i, p, to);
  }
  static void store(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& from) {
    store_part<U, part == Part::high ? 16 : 0>(w, i, p, from);
  }
  static uint32_t zero(uint32_t old) { return placed_half<U>(old, 0, false, part); }  // what 0 leaves
};

// Every kind, by the end of its mnemonic: f(name, kind).
template <class F>
void for_each_load(F f) {
  using u8 = uint8_t;
  using u16 = uint16_t;
  f("ubyte", PartOf<u8, Part::zero_extended>{}), f("sbyte", PartOf<u8, Part::sign_extended>{});
  f("ushort", PartOf<u16, Part::zero_extended>{}), f("sshort", PartOf<u16, Part::sign_extended>{});
  f("ubyte_d16", PartOf<u8, Part::low>{}), f("ubyte_d16_hi", PartOf<u8, Part::high>{});
  f("sbyte_d16", PartOf<u8, Part::low, true>{}), f("sbyte_d16_hi", PartOf<u8, Part::high, true>{});
  f("short_d16", PartOf<u16, Part::low>{}), f("short_d16_hi", PartOf<u16, Part::high>{});
  f("dword", Dwords<1>{}), f("dwordx2", Dwords<2>{}), f("dwordx3", Dwords<3>{}), f("dwordx4", Dwords<4>{});
}
template <class F>
void for_each_store(F f) {
  f("byte", PartOf<uint8_t, Part::low>{}), f("byte_d16_hi", PartOf<uint8_t, Part::high>{});
  f("short", PartOf<uint16_t, Part::low>{}), f("short_d16_hi", PartOf<uint16_t, Part::high>{});
  f("dword", Dwords<1>{}), f("dwordx2", Dwords<2>{}), f("dwordx3", Dwords<3>{}), f("dwordx4", Dwords<4>{});
}

}  // namespace gfx942
