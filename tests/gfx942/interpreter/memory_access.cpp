// SPDX-License-Identifier: Apache-2.0
// Loads and stores: scalar, global, flat and scratch.
#include "memory_access.h"

#include <algorithm>
#include <atomic>

#include "memory_order.h"

namespace gfx942 {

// ---- where lanes go

namespace {

const uint32_t* address_register(const Wave& w, const Instruction& i, const Operand& o, int registers) {
  const Mask defined = read_registers(w, i, o);
  if (o.registers != registers) w.fail(i, "an address of " + std::to_string(registers) + " registers was expected");
  w.check_known(i, w.exec() & ~defined, "the address");
  return w.v[o.index].lane;
}
void wide_addresses(const Wave& w, const Instruction& i, const Operand& o, uint64_t (&to)[kLanes]) {
  const uint32_t* low = address_register(w, i, o, 2);
  const uint32_t* high = w.v[o.index + 1].lane;
  const uint64_t offset = uint64_t(int64_t(i.with.offset));
  for (int l = 0; l < kLanes; ++l) to[l] = (uint64_t(high[l]) << 32 | low[l]) + offset;
}

std::string hex(uint64_t x) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(x));
  return text;
}

}  // namespace

LaneAddresses global_addresses(const Wave& w, const Instruction& i, const Operand& address, const Operand& base) {
  LaneAddresses p;
  p.memory = w.exec();
  if (!base) {
    wide_addresses(w, i, address, p.address);
    return p;
  }
  const uint64_t from = w.known_scalar(i, base, "the base address") + uint64_t(int64_t(i.with.offset));
  const uint32_t* a = address_register(w, i, address, 1);
  for (int l = 0; l < kLanes; ++l) p.address[l] = from + a[l];
  return p;
}

LaneAddresses flat_addresses(const Wave& w, const Instruction& i, const Operand& address) {
  LaneAddresses p;
  wide_addresses(w, i, address, p.address);
  for (Mask m = w.exec(); m; m &= m - 1) {
    const int l = std::countr_zero(m);
    const uint32_t high = uint32_t(p.address[l] >> 32);
    const bool local = high == kSharedAperture || high == kPrivateAperture;
    (high == kSharedAperture ? p.lds : high == kPrivateAperture ? p.scratch : p.memory) |= Mask(1) << l;
    if (local) p.address[l] = uint32_t(p.address[l]);
  }
  return p;
}

LaneAddresses scratch_addresses(const Wave& w, const Instruction& i, const Operand& address, const Operand& base) {
  LaneAddresses p;
  p.scratch = w.exec();
  uint32_t from = uint32_t(i.with.offset);
  if (base) from += uint32_t(w.known_scalar(i, base, "the base address"));
  const uint32_t* a = address ? address_register(w, i, address, 1) : nullptr;
  for (int l = 0; l < kLanes; ++l) p.address[l] = uint32_t(from + (a ? a[l] : 0));
  return p;
}

// ---- checks and counts

namespace {

// Whether one of the allocations that were found last, or another, holds it.
bool is_allocated(Workgroup& group, uint64_t address, uint64_t bytes) {
  const uint64_t now = memory().generation();
  if (group.last_generation != now) {
    group.last_ranges.fill({});
    group.last_generation = now;
  }
  for (const Memory::Range& r : group.last_ranges)
    if (r.holds(address, bytes)) return true;
  const Memory::Range found = memory().find(address, bytes);
  if (found.end == 0) return false;
  group.last_ranges[group.oldest_range++ % group.last_ranges.size()] = found;
  return true;
}
[[noreturn]] void outside(const Wave& w, const Instruction& i, bool write, uint64_t at, uint32_t bytes, int lane) {
  w.fail(i,
         std::string(write ? "writes " : "reads ") + std::to_string(bytes) + " bytes at " + hex(at) +
             ", outside every allocation",
         lane);
}

// The addresses in memory, those of other lanes replaced by one of them: so that loops need no mask.
const uint64_t* in_memory(const LaneAddresses& p, uint64_t (&buffer)[kLanes]) {
  if (p.memory == ~Mask(0)) return p.address;
  const uint64_t one = p.address[std::countr_zero(p.memory)];
  for (int l = 0; l < kLanes; ++l) buffer[l] = p.memory >> l & 1 ? p.address[l] : one;
  return buffer;
}

// How many lines of 128 bytes the lanes touch.
uint64_t count_lines(const LaneAddresses& p, uint32_t bytes) {
  if (!p.memory) return 0;
  constexpr uint64_t kLine = 128;
  alignas(64) uint64_t buffer[kLanes];
  const uint64_t* at = in_memory(p, buffer);
  // Mostly addresses rise, and none is across two lines.
  uint64_t apart = 0, across = 0, falling = 0;
  for (int l = 0; l < kLanes; ++l) across += at[l] % kLine + bytes > kLine;
  for (int l = 1; l < kLanes; ++l)
    apart += at[l] / kLine != at[l - 1] / kLine, falling += at[l] / kLine < at[l - 1] / kLine;
  if (!across && !falling) return apart + 1;
  // Neighbours mostly are in one line, so that few are left to sort.
  uint64_t lines[2 * kLanes], count = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t first = at[l] / kLine, last = (at[l] + bytes - 1) / kLine;
    if (!count || lines[count - 1] != first) lines[count++] = first;
    if (last != first) lines[count++] = last;
  }
  std::sort(lines, lines + count);
  return uint64_t(std::unique(lines, lines + count) - lines);
}

// ---- what is recorded

// Adjacent bytes that one lane, or the whole wave, asks for.
void record_range(Events& events, uint64_t at, uint32_t bytes) {
  const uint64_t last = at + bytes - 1;
  events.memory(uint32_t(last / 128 - at / 128 + 1), uint32_t(last / 64 - at / 64 + 1), 1);
  for (uint64_t line = at / 128; line <= last / 128; ++line) events.line(line * 128);
}

// Each line once, in the order of the lanes that ask first. A lane's scratch is taken for memory of its wave's alone.
void record_memory(Wave& w, const LaneAddresses& p, uint32_t bytes) {
  uint64_t halves[4 * kLanes];
  size_t count = 0;
  const auto touch = [&](uint64_t at) {
    for (uint64_t half = at / 64; half <= (at + bytes - 1) / 64; ++half)
      if (!count || halves[count - 1] != half) halves[count++] = half;
  };
  for (Mask m = p.memory; m; m &= m - 1) touch(p.address[std::countr_zero(m)]);
  const uint64_t scratch = reinterpret_cast<uint64_t>(w.scratch.data());
  for (Mask m = p.scratch; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    touch(scratch + (p.address[l] / 4 * kLanes + uint64_t(l)) * 4);
  }
  if (!count) return;
  std::sort(halves, halves + count);
  const auto end = std::unique(halves, halves + count);
  uint32_t lines = 0;
  for (auto h = halves; h != end; ++h) lines += h == halves || h[0] / 2 != h[-1] / 2;
  w.events->memory(lines, uint32_t(end - halves), uint32_t(std::popcount(p.memory | p.scratch)));
  for (auto h = halves; h != end; ++h)
    if (h == halves || h[0] / 2 != h[-1] / 2) w.events->line(*h * 64);
}

}  // namespace

void check_addresses(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes, bool write) {
  if (p.memory) {
    alignas(64) uint64_t buffer[kLanes];
    const uint64_t* at = in_memory(p, buffer);
    uint64_t least = at[0], most = at[0];
    for (int l = 0; l < kLanes; ++l) least = std::min(least, at[l]), most = std::max(most, at[l]);
    if (!is_allocated(w.group, least, most - least + bytes))
      for (Mask m = p.memory; m; m &= m - 1) {
        const int l = std::countr_zero(m);
        if (!is_allocated(w.group, p.address[l], bytes)) outside(w, i, write, p.address[l], bytes, l);
      }
  }
  for (Mask m = p.lds; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    if (p.address[l] + bytes > w.group.lds.size()) outside_lds(w, i, write, uint32_t(p.address[l]), bytes, l);
    w.check_loaded(i, uint32_t(p.address[l]), bytes, l);
  }
  for (Mask m = p.scratch; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    if (p.address[l] + bytes > w.code.scratch_bytes)
      w.fail(i,
             std::string(write ? "writes " : "reads ") + std::to_string(bytes) + " bytes at scratch address " +
                 std::to_string(p.address[l]) + ", outside the lane's " + std::to_string(w.code.scratch_bytes),
             l);
  }
}

// Scratch is laid out so that the lanes' same dwords lie side by side.
void tally_memory(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes) {
  const uint64_t scratch = uint64_t(std::popcount(p.scratch)) * bytes;
  w.tally->bytes[i.index] += uint64_t(std::popcount(p.memory)) * bytes + scratch;
  w.tally->lines[i.index] += count_lines(p, bytes) + (scratch + 127) / 128;
  if (w.events) record_memory(w, p, bytes);
}

void check_memory_result(const Wave& w, const Instruction& i, const Operand& result) {
  if (!result.is_vector()) w.fail(i, "a vector destination was expected");
  check_overwrites(w, i, w.vm, result);
}

// A flat instruction that no lane takes to LDS behaves as a global one: LGKM_CNT takes it back at once.
void issue_memory(Wave& w, const Instruction&, const LaneAddresses& p, const Operand& result, Lds::Use use,
                  uint32_t bytes) {
  w.issue_vm(result, p.lds != 0);
  if (!p.lds) return;
  w.issue_lgkm(result, true);
  Vector at;
  for (int l = 0; l < kLanes; ++l) at.lane[l] = uint32_t(p.address[l]);
  w.remember(use, bytes, p.lds, at);
}

// ---- the instructions

namespace {

template <Segment segment, class Kind>
void load(Wave& w, const Instruction& i) {
  if (i.with.lds) w.fail(i, "loads from memory to LDS are not implemented");
  const Operand& to = i.operand[0];
  const LaneAddresses p = places<segment>(w, i, 1);
  check_addresses(w, i, p, Kind::bytes, false);
  check_memory_result(w, i, to);
  order_load(w, i, p, Kind::bytes);
  Kind::load(w, i, p, to);
  issue_memory(w, i, p, to, Lds::Use::read, Kind::bytes);
  tally_memory(w, i, p, Kind::bytes);
}
template <Segment segment, class Kind>
void store(Wave& w, const Instruction& i) {
  const Operand& from = i.operand[1];
  const LaneAddresses p = places<segment>(w, i, 0);
  check_addresses(w, i, p, Kind::bytes, true);
  read_registers(w, i, from);
  check_stored(w, i, from, p.memory);  // LDS and scratch remember that a value is undefined
  const OrderedStore order(w, i, p, Kind::bytes);
  Kind::store(w, i, p, from);
  issue_memory(w, i, p, {}, Lds::Use::write, Kind::bytes);
  tally_memory(w, i, p, Kind::bytes);
}

// Of an instruction of scalar memory, whose registers, base and offset are checked.
template <int count>
uint64_t scalar_address(Wave& w, const Instruction& i, bool write) {
  const Operand &data = i.operand[0], &base = i.operand[1], &offset = i.operand[2];
  const uint64_t from = w.known_scalar(i, base, "the base address");
  const uint64_t by = w.known_scalar(i, offset, "the offset");
  const uint64_t at = from + (offset.is_scalar() ? uint32_t(by) : by) + uint64_t(int64_t(i.with.offset));
  if (at % 4)
    w.fail(i, std::string("a scalar ") + (write ? "store" : "load") + " at " + hex(at) + ", which is not aligned");
  if (!data.is_scalar() || data.registers != count || data.index + count > kExec)
    w.fail(i, "scalar registers were expected");
  if (!is_allocated(w.group, at, 4 * count)) outside(w, i, write, at, 4 * count, -1);
  w.check_arrived(i, data.index, count);
  w.tally->bytes[i.index] += 4 * count;
  w.tally->lines[i.index] += (at + 4 * count - 1) / 128 - at / 128 + 1;
  if (w.events) record_range(*w.events, at, 4 * count);
  return at;
}
template <int count>
void check_scalars_stored(Wave& w, const Instruction& i) {
  for (int r = 0; r < count; ++r)
    if (w.s_defined[i.operand[0].index + r] != ~0u) w.complain_undefined(i, "stores an undefined value");
}
// As if one lane did it.
LaneAddresses one_lane(uint64_t at) {
  LaneAddresses p;
  p.address[0] = at, p.memory = 1;
  return p;
}
template <int count>
void scalar_store(Wave& w, const Instruction& i) {
  const uint64_t at = scalar_address<count>(w, i, true);
  check_scalars_stored<count>(w, i);
  const LaneAddresses p = one_lane(at);
  const OrderedStore order(w, i, p, 4 * count);
  std::memcpy(reinterpret_cast<void*>(at), &w.s[i.operand[0].index], 4 * count);
  w.issue_lgkm({}, true);
}
// One up, and 0 after the data's value. With glc the old value comes back.
void scalar_increment(Wave& w, const Instruction& i) {
  const uint64_t at = scalar_address<1>(w, i, true);
  check_scalars_stored<1>(w, i);
  const Operand& data = i.operand[0];
  const uint32_t most = w.s[data.index];
  const LaneAddresses p = one_lane(at);
  const OrderedStore order(w, i, p, 4, MemoryOrder::Use::atomic);
  std::atomic_ref<uint32_t> cell(*reinterpret_cast<uint32_t*>(at));
  uint32_t old = cell.load();
  while (!cell.compare_exchange_weak(old, old >= most ? 0 : old + 1)) {
  }
  if (i.with.glc) w.s[data.index] = old;
  w.issue_lgkm(i.with.glc ? data : Operand{}, true);
}

template <int count>
void scalar_load(Wave& w, const Instruction& i) {
  const Operand& to = i.operand[0];
  const uint64_t at = scalar_address<count>(w, i, false);
  if (w.order) w.order->access(w, i, one_lane(at), 4 * count, MemoryOrder::Use::scalar_load);
  std::memcpy(&w.s[to.index], reinterpret_cast<const void*>(at), 4 * count);
  std::fill_n(&w.s_defined[to.index], count, ~0u);
  w.issue_lgkm(to, true);
}

template <Segment segment>
void add(Table& t, const std::string& name) {
  for_each_load([&](const char* end, auto kind) {
    t[kept(name + "_load_" + end)] = {&load<segment, decltype(kind)>, Unit::memory, 4, 1, {}};
  });
  for_each_store([&](const char* end, auto kind) {
    t[kept(name + "_store_" + end)] = {&store<segment, decltype(kind)>, Unit::memory, 4, 0, {}};
  });
}

// Caches, of which there are none here: they matter for what waves pass to each other.
void nothing(Wave&, const Instruction&) {}
void write_back(Wave& w, const Instruction& i) {
  if (w.order && i.with.sc1) w.order->write_back(w);
}
void invalidate(Wave& w, const Instruction& i) {
  if (w.order && i.with.sc1) w.order->invalidate(w);
}

}  // namespace

void add_memory(Table& t) {
  add<Segment::global>(t, "global");
  add<Segment::flat>(t, "flat");
  add<Segment::scratch>(t, "scratch");
  t["s_load_dword"] = {&scalar_load<1>, Unit::scalar_memory, 4, 1, {}};
  t["s_load_dwordx2"] = {&scalar_load<2>, Unit::scalar_memory, 4, 1, {}};
  t["s_load_dwordx4"] = {&scalar_load<4>, Unit::scalar_memory, 4, 1, {}};
  t["s_load_dwordx8"] = {&scalar_load<8>, Unit::scalar_memory, 4, 1, {}};
  t["s_load_dwordx16"] = {&scalar_load<16>, Unit::scalar_memory, 4, 1, {}};
  t["s_store_dword"] = {&scalar_store<1>, Unit::scalar_memory, 4, 0, {}};
  t["s_store_dwordx2"] = {&scalar_store<2>, Unit::scalar_memory, 4, 0, {}};
  t["s_store_dwordx4"] = {&scalar_store<4>, Unit::scalar_memory, 4, 0, {}};
  t["s_atomic_inc"] = {&scalar_increment, Unit::scalar_memory, 4, 0, {}};
  t["buffer_wbl2"] = {&write_back, Unit::wait, 4, 0, {}};
  t["buffer_inv"] = {&invalidate, Unit::wait, 4, 0, {}};
  for (const char* name : {"buffer_invl2", "buffer_wbinvl1", "buffer_wbinvl1_vol"})
    t[name] = {&nothing, Unit::wait, 4, 0, {}};
  add_buffers(t);
  add_memory_atomics(t);
}

}  // namespace gfx942
