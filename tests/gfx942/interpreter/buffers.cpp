// SPDX-License-Identifier: Apache-2.0
// Buffers: memory behind a descriptor (V#) whose size the hardware checks. Loads beyond it give 0, stores are dropped.
#include "memory_access.h"
#include "memory_order.h"

namespace gfx942 {

namespace {

struct Buffer {
  uint64_t base;
  uint32_t stride, records;
};
Buffer descriptor(const Wave& w, const Instruction& i, const Operand& o) {
  if (!o.is_scalar() || o.registers != 4) w.fail(i, "a descriptor of four scalar registers was expected");
  w.check_arrived(i, o.index, 4);
  const uint32_t* word = &w.s[o.index];
  for (int k = 0; k < 4; ++k)
    if (w.s_defined[o.index + k] != ~0u) w.complain_undefined(i, "the descriptor is undefined");
  const uint32_t swizzle = word[1] >> 31, user_vm = word[3] >> 19 & 3, add_lane = word[3] >> 23 & 1,
                 type = word[3] >> 30;
  if (swizzle || user_vm || add_lane || type)
    w.fail(i, "a descriptor that is swizzled, adds the lane, is of user memory or of no buffer is not implemented");
  return {uint64_t(word[1] & 0xffff) << 32 | word[0], word[1] >> 16 & 0x3fff, word[2]};
}

}  // namespace

BufferPlaces buffer_places(const Wave& w, const Instruction& i, int first_operand, uint32_t unit, int units) {
  const Operand& address = i.operand[first_operand];
  const Buffer buffer = descriptor(w, i, i.operand[first_operand + 1]);
  const uint64_t scalar = uint32_t(w.known_scalar(i, i.operand[first_operand + 2], "the scalar offset"));
  const int registers = int(i.with.idxen) + int(i.with.offen);
  const Mask on = w.exec();
  if (registers) {
    w.check_known(i, on & ~read_registers(w, i, address), "the address");
    if (address.registers != registers)
      w.fail(i, "an address of " + std::to_string(registers) + " registers was expected");
  }
  const uint32_t* index = i.with.idxen ? w.v[address.index].lane : nullptr;
  const uint32_t* offset = i.with.offen ? w.v[address.index + registers - 1].lane : nullptr;
  const bool structured = buffer.stride && index;
  if (buffer.stride && !index)
    w.complain(Check::buffer_stride, i, -1, [] { return std::string("a descriptor with a stride, without an index"); });

  BufferPlaces p;
  std::fill_n(p.address, kLanes, 0);
  for (Mask m = on; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    const uint64_t record = index ? index[l] : 0, within = uint64_t(uint32_t(i.with.offset)) + (offset ? offset[l] : 0);
    p.address[l] = buffer.base + scalar + record * buffer.stride + within;
    for (int k = 0; k < units; ++k) {
      const uint64_t first = within + uint64_t(unit) * k, end = first + unit;
      bool fits;
      if (structured) {
        fits = record < buffer.records;
        if (fits && end > buffer.stride)
          w.complain(Check::buffer_stride, i, l,
                     [] { return std::string("an offset beyond the descriptor's stride"); });
      } else {
        // Documents differ in whether the scalar offset counts, and in what an element on the edge gives.
        fits = first + scalar < buffer.records;
        if (!fits && first < buffer.records)
          w.complain(Check::buffer_offset, i, l,
                     [] { return std::string("an element beyond the buffer by the scalar offset"); });
        if (fits && end + scalar > buffer.records)
          w.fail(i, "an element across the end of the buffer is not implemented", l);
      }
      if (fits) p.within[k] |= Mask(1) << l;
    }
  }
  p.memory = p.within[0];
  return p;
}

namespace {

template <class Kind>
constexpr int kUnits = Kind::bytes >= 4 ? int(Kind::bytes / 4) : 1;
template <class Kind>
constexpr uint32_t kUnit = Kind::bytes >= 4 ? 4 : Kind::bytes;

// Lanes by how much of their access is within the buffer.
void tally_buffer(Wave& w, const Instruction& i, BufferPlaces p, uint32_t unit, int units) {
  for (int k = 0; k < units; ++k) {
    p.memory = p.within[k] & ~(k + 1 < units ? p.within[k + 1] : 0);
    tally_memory(w, i, p, unit * uint32_t(k + 1));
  }
}

// A dword of each lane that is on, lane by lane from M0 and the instruction's offset; 0 from beyond the buffer.
void load_to_lds(Wave& w, const Instruction& i) {
  BufferPlaces p = buffer_places(w, i, 0, 4, 1);
  check_addresses(w, i, p, 4, false);
  order_load(w, i, p, 4);
  Operand m0;
  m0.kind = Operand::Kind::scalar, m0.index = kM0;
  const uint32_t base = uint32_t(w.known_scalar(i, m0, "M0") & 0xffff) + uint32_t(i.with.offset);
  const Lds::View lds = w.group.lds.view(w.number);
  const Mask on = w.exec();
  Vector at = {};
  uint32_t rivals = 0;
  for (Mask m = on; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    at.lane[l] = base + 4 * uint32_t(l);
    if (at.lane[l] + 4 > w.group.lds.size()) outside_lds(w, i, true, at.lane[l], 4, l);
    uint32_t x = 0;
    if (p.memory >> l & 1) std::memcpy(&x, reinterpret_cast<const void*>(p.address[l]), 4);
    rivals |= lds.write<uint32_t>(at.lane[l], x, ~0u);
  }
  if (rivals) [[unlikely]]
    find_races(w, i, Lds::Use::write, at, 4);
  w.issue_vm({});
  w.lds_loads.push_back({w.vm.issued, on, base});
  tally_buffer(w, i, p, 4, 1);
  tally_lds<4>(w, i, at, false);
}

// Dwords are within the buffer one by one: as if each were an access of its own.
template <class Kind>
void load(Wave& w, const Instruction& i) {
  if (i.with.lds) {
    if (i.mnemonic != "buffer_load_dword") w.fail(i, "loads to LDS of another size than a dword are not implemented");
    return load_to_lds(w, i);
  }
  const Operand& to = i.operand[0];
  BufferPlaces p = buffer_places(w, i, 1, kUnit<Kind>, kUnits<Kind>);
  check_memory_result(w, i, to);
  tally_buffer(w, i, p, kUnit<Kind>, kUnits<Kind>);
  const Mask on = w.exec();
  constexpr bool kWords = Kind::bytes >= 4;
  for (int k = 0; k < kUnits<Kind>; ++k) {
    p.memory = p.within[k];
    check_addresses(w, i, p, kUnit<Kind>, false);
    order_load(w, i, p, kUnit<Kind>);
    Operand one = to;
    one.index = uint16_t(to.index + k), one.registers = 1;
    if constexpr (kWords)
      load_dwords<1>(w, i, p, one);
    else
      Kind::load(w, i, p, one);
    for (Mask m = on & ~p.memory; m; m &= m - 1) {
      uint32_t& x = w.v[one.index].lane[std::countr_zero(m)];
      if constexpr (kWords)
        x = 0;
      else
        x = Kind::zero(x);
    }
    w.v_defined[one.index] |= on;
    for (uint64_t& a : p.address) a += kUnit<Kind>;
  }
  w.issue_vm(to);
}
template <class Kind>
void store(Wave& w, const Instruction& i) {
  const Operand& from = i.operand[0];
  BufferPlaces p = buffer_places(w, i, 1, kUnit<Kind>, kUnits<Kind>);
  check_stored(w, i, from, p.memory);
  tally_buffer(w, i, p, kUnit<Kind>, kUnits<Kind>);
  for (int k = 0; k < kUnits<Kind>; ++k) {
    p.memory = p.within[k];
    check_addresses(w, i, p, kUnit<Kind>, true);
    Operand one = from;
    one.index = uint16_t(from.index + k), one.registers = 1;
    {
      const OrderedStore order(w, i, p, kUnit<Kind>);
      if constexpr (Kind::bytes >= 4)
        store_dwords<1>(w, i, p, one);
      else
        Kind::store(w, i, p, one);
    }
    for (uint64_t& a : p.address) a += kUnit<Kind>;
  }
  w.issue_vm({});
}

}  // namespace

void add_buffers(Table& t) {
  for_each_load([&](const char* end, auto kind) {
    t[kept(std::string("buffer_load_") + end)] = {&load<decltype(kind)>, Unit::memory, 4, 1, {}};
  });
  for_each_store([&](const char* end, auto kind) {
    t[kept(std::string("buffer_store_") + end)] = {&store<decltype(kind)>, Unit::memory, 4, 0, {}};
  });
}

}  // namespace gfx942
