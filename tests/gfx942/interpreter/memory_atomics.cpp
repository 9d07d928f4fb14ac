// SPDX-License-Identifier: Apache-2.0
// Atomics of memory. Workgroups run on several host threads, so each is a compare-and-swap of the host's; lanes of a
// wave take their turns in rising order, which programs must not depend on.
#include <atomic>

#include "atomic_operations.h"
#include "memory_access.h"
#include "memory_order.h"

namespace gfx942 {
namespace {

template <class U>
U value_of(const Wave& w, int reg, int lane) {
  if constexpr (sizeof(U) == 4)
    return w.v[reg].lane[lane];
  else
    return uint64_t(w.v[reg + 1].lane[lane]) << 32 | w.v[reg].lane[lane];
}

template <class U, AtomicFunction<U> f>
U update(U* at, U data, U other, AtomicMode& mode) {
  std::atomic_ref<U> cell(*at);
  U old = cell.load();
  while (!cell.compare_exchange_weak(old, f(old, data, other, mode))) {
  }
  return old;
}
template <class U, AtomicFunction<U> f>
U update_lds(Wave& w, const Instruction& i, uint32_t at, U data, U other, AtomicMode& mode, int lane, bool& defined) {
  Lds& lds = w.group.lds;
  if (!lds.note(Lds::Use::atomic, at, sizeof(U), w.number)) lds_race(w, i, Lds::Use::atomic, at, sizeof(U), true, lane);
  const U old = lds.value<U>(at);
  defined = lds.defined<U>(at);
  if (!defined) note_uninitialised(w, i, at, lane);
  lds.set_value<U>(at, f(old, data, other, mode), defined);
  return old;
}

// `returned`: where the old value goes, or nothing.
template <class U, AtomicFunction<U> f, bool compares>
void atomic(Wave& w, const Instruction& i, const LaneAddresses& p, const Operand& data, const Operand& returned) {
  constexpr int kRegisters = int(sizeof(U) / 4);
  if (data.registers != kRegisters * (compares ? 2 : 1)) w.fail(i, "data of another size was expected");
  check_addresses(w, i, p, sizeof(U), true);
  check_stored(w, i, data, p.memory | p.lds);
  if (p.scratch) w.fail(i, "an atomic in scratch is not implemented", std::countr_zero(p.scratch));
  if (returned) check_memory_result(w, i, returned);
  const OrderedStore order(w, i, p, sizeof(U), MemoryOrder::Use::atomic);
  Vector old[kRegisters];
  Mask defined = p.memory | p.lds;
  AtomicMode mode;
  for (Mask m = p.memory | p.lds; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    const uint64_t at = p.address[l];
    if (at % sizeof(U)) w.fail(i, "an atomic whose address is not aligned", l);
    const U x = value_of<U>(w, data.index, l), other = compares ? value_of<U>(w, data.index + kRegisters, l) : U(0);
    bool known = true;
    const U was = p.memory >> l & 1 ? update<U, f>(reinterpret_cast<U*>(at), x, other, mode)
                                    : update_lds<U, f>(w, i, uint32_t(at), x, other, mode, l, known);
    if (mode.unsure)
      w.fail(i, "denormals, NaN or signed zeros here are not implemented: nothing says what comes of them", l);
    if (!known) defined &= ~(Mask(1) << l);
    old[0].lane[l] = uint32_t(was);
    if constexpr (kRegisters == 2) old[1].lane[l] = uint32_t(was >> 32);
  }
  if (returned) {
    const Mask on = p.memory | p.lds;
    for (int r = 0; r < kRegisters; ++r) {
      uint32_t* to = w.v[returned.index + r].lane;
      for (int l = 0; l < kLanes; ++l) to[l] = on >> l & 1 ? old[r].lane[l] : to[l];
      w.v_defined[returned.index + r] = (w.v_defined[returned.index + r] & ~on) | defined;
    }
  }
  issue_memory(w, i, p, returned, Lds::Use::atomic, sizeof(U));
  tally_memory(w, i, p, sizeof(U));
}

bool returns_old_value(const Instruction& i) { return i.with.sc0 || i.with.glc; }

// The old value is returned into one more operand in front.
template <Segment segment, class U, AtomicFunction<U> f, bool compares>
void atomic_of(Wave& w, const Instruction& i) {
  const int first = returns_old_value(i) ? 1 : 0;
  const LaneAddresses p = places<segment>(w, i, first);
  atomic<U, f, compares>(w, i, p, i.operand[first + 1], first ? i.operand[0] : Operand{});
}
// A buffer's data and result are the same registers.
template <class U, AtomicFunction<U> f, bool compares>
void buffer_atomic(Wave& w, const Instruction& i) {
  const BufferPlaces p = buffer_places(w, i, 1, sizeof(U), 1);
  const Operand& data = i.operand[0];
  Operand returned = data;
  returned.registers = uint8_t(sizeof(U) / 4);
  if (!returns_old_value(i)) returned = {};
  if (returns_old_value(i) && p.memory != w.exec())
    w.fail(i, "an atomic beyond the buffer that returns a value is not implemented");
  atomic<U, f, compares>(w, i, p, data, returned);
}

template <class U, AtomicFunction<U> f, bool compares = false, bool of_buffers = true>
void add(Table& t, const std::string& end) {
  t[kept("global_atomic_" + end)] = {&atomic_of<Segment::global, U, f, compares>, Unit::memory, 4, 0, {}};
  t[kept("flat_atomic_" + end)] = {&atomic_of<Segment::flat, U, f, compares>, Unit::memory, 4, 0, {}};
  if (of_buffers) t[kept("buffer_atomic_" + end)] = {&buffer_atomic<U, f, compares>, Unit::memory, 4, 0, {}};
}

}  // namespace

void add_memory_atomics(Table& t) {
  using namespace atomics;
  using u32 = uint32_t;
  using u64 = uint64_t;
  add<u32, &atomics::add<u32>>(t, "add"), add<u64, &atomics::add<u64>>(t, "add_x2");
  add<u32, &subtract<u32>>(t, "sub"), add<u64, &subtract<u64>>(t, "sub_x2");
  add<u32, &signed_smallest<u32>>(t, "smin"), add<u64, &signed_smallest<u64>>(t, "smin_x2");
  add<u32, &signed_largest<u32>>(t, "smax"), add<u64, &signed_largest<u64>>(t, "smax_x2");
  add<u32, &smallest<u32>>(t, "umin"), add<u64, &smallest<u64>>(t, "umin_x2");
  add<u32, &largest<u32>>(t, "umax"), add<u64, &largest<u64>>(t, "umax_x2");
  add<u32, &and_<u32>>(t, "and"), add<u64, &and_<u64>>(t, "and_x2");
  add<u32, &or_<u32>>(t, "or"), add<u64, &or_<u64>>(t, "or_x2");
  add<u32, &xor_<u32>>(t, "xor"), add<u64, &xor_<u64>>(t, "xor_x2");
  add<u32, &increment<u32>>(t, "inc"), add<u64, &increment<u64>>(t, "inc_x2");
  add<u32, &decrement<u32>>(t, "dec"), add<u64, &decrement<u64>>(t, "dec_x2");
  add<u32, &exchange<u32>>(t, "swap"), add<u64, &exchange<u64>>(t, "swap_x2");
  add<u32, &compare_exchange<u32>, true>(t, "cmpswap"), add<u64, &compare_exchange<u64>, true>(t, "cmpswap_x2");
  add<u32, &add_float<float, u32>>(t, "add_f32"), add<u64, &add_float<double, u64>>(t, "add_f64");
  add<u64, &choose_float<double, u64, false>>(t, "min_f64"), add<u64, &choose_float<double, u64, true>>(t, "max_f64");
  add<u32, &add_packed<&add_half>>(t, "pk_add_f16"), add<u32, &add_packed<&add_bf16>, false, false>(t, "pk_add_bf16");
}

}  // namespace gfx942
