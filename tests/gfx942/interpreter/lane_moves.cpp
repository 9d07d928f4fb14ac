// SPDX-License-Identifier: Apache-2.0
// Moves, selections, and values that go between lanes and scalar registers. What is moved keeps its definedness.
#include <algorithm>

#include "operations.h"

namespace gfx942 {
namespace {

using u32 = uint32_t;
using u64 = uint64_t;

void swap(Wave& w, const Instruction& i) {
  Mask da = ~Mask(0), db = ~Mask(0);
  Vector buffer_a, buffer_b;
  const Vector a = *reinterpret_cast<const Vector*>(w.source32(i, i.operand[0], buffer_a, da));
  const Vector b = *reinterpret_cast<const Vector*>(w.source32(i, i.operand[1], buffer_b, db));
  w.result32(i, i.operand[0], b.lane, db, w.exec());
  w.result32(i, i.operand[1], a.lane, da, w.exec());
}

// Lane by lane the second source where the mask is set, else the first.
void select(Wave& w, const Instruction& i) {
  Mask da = ~Mask(0), db = ~Mask(0), dm = ~Mask(0);
  Vector buffer_a, buffer_b;
  Lanes<u32> r;
  const u32* a = w.source32(i, i.source(0), buffer_a, da);
  const u32* b = w.source32(i, i.source(1), buffer_b, db);
  const Mask m = w.lane_mask(i, i.source(2), dm);
  // neg and abs mean a float's bits; whatever MODE says, denormals are selected as they are.
  u32 keep[2], flip[2];
  for (int j = 0; j < 2; ++j)
    keep[j] = i.source(j).absolute ? 0x7fffffffu : ~0u, flip[j] = i.source(j).negate ? 0x80000000u : 0;
  const Vector second = expanded(m);
  for (int l = 0; l < kLanes; ++l)
    r.lane[l] = (((b[l] & keep[1]) ^ flip[1]) & second.lane[l]) | (((a[l] & keep[0]) ^ flip[0]) & ~second.lane[l]);
  store_lanes(w, i, i.destination(), r, dm & ((m & db) | (~m & da)), w.exec());
}

// The first lane that is on; lane 0 where none is.
void read_first(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0);
  Vector buffer;
  const u32* x = w.source32(i, i.source(0), buffer, defined);
  const int lane = w.exec() ? std::countr_zero(w.exec()) : 0;
  w.set_scalar(i, i.destination(), x[lane], defined >> lane & 1 ? ~u64(0) : 0xffffffff00000000u);
}
void read_lane(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0);
  Vector buffer;
  const u32* x = w.source32(i, i.source(0), buffer, defined);
  const int lane = int(w.known_scalar(i, i.source(1), "the number of a lane") & 63);
  w.set_scalar(i, i.destination(), x[lane], defined >> lane & 1 ? ~u64(0) : 0xffffffff00000000u);
}
void write_lane(Wave& w, const Instruction& i) {  // whatever EXEC says
  u64 defined;
  const u32 x = u32(w.scalar(i, i.source(0), &defined));
  const int lane = int(w.known_scalar(i, i.source(1), "the number of a lane") & 63);
  const Mask one = Mask(1) << lane;
  Vector whole;
  std::fill_n(whole.lane, kLanes, x);
  w.result32(i, i.destination(), whole.lane, u32(defined) == ~0u ? one : 0, one);
}

// How many bits of a mask are below a lane's own, in its lower or upper half.
template <bool high>
void count_below(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0);
  Lanes<u32> room_m, room_n, r;
  const u32* mask = source<u32>(w, i, 0, room_m, defined);
  const u32* n = source<u32>(w, i, 1, room_n, defined);
  for (int l = 0; l < kLanes; ++l) {
    const u64 below = (u64(1) << l) - 1;
    r.lane[l] = n[l] + u32(std::popcount(mask[l] & u32(high ? below >> 32 : below)));
  }
  store_lanes(w, i, i.destination(), r, defined, w.exec());
}

// Two registers, each as defined as its source.
void move_pair(Wave& w, const Instruction& i) {
  const Operand &from = i.source(0), &to = i.destination();
  Mask defined[2] = {~Mask(0), ~Mask(0)}, either = ~Mask(0);
  uint64_t known = ~uint64_t(0);
  if (!from.is_vector()) w.scalar(i, from, &known);
  for (int half = 0; half < 2; ++half) {
    if (from.is_vector())
      defined[half] = w.v_defined[from.index + half];
    else if (uint32_t(known >> 32 * half) != ~0u)
      defined[half] = 0;
  }
  uint64_t x[kLanes];
  w.source64(i, from, x, either);
  w.result64(i, to, x, either, w.exec());
  for (int half = 0; half < 2; ++half) {
    Mask& d = w.v_defined[to.index + half];
    d = (d & ~w.exec()) | (defined[half] & w.exec());
  }
}

}  // namespace

void add_lane_moves(Table& t) {
  constexpr Type b = Type::b32;
  t["v_mov_b32"] = vector_op([](u32 a) { return a; });
  t["v_mov_b64"] = {&move_pair, Unit::vector, 4, 1, {Type::b64, Type::b64}};
  t["v_accvgpr_read_b32"] = t["v_accvgpr_write_b32"] = t["v_accvgpr_mov_b32"] = t["v_mov_b32"];
  t["v_swap_b32"] = {&swap, Unit::vector, 4, 2, {b, b}};
  t["v_cndmask_b32"] = {&select, Unit::vector, 4, 1, {b, b, b, Type::b64}};
  t["v_readfirstlane_b32"] = {&read_first, Unit::vector, 4, 1, {b, b}};
  t["v_readlane_b32"] = {&read_lane, Unit::vector, 4, 1, {b, b, b}};
  t["v_writelane_b32"] = {&write_lane, Unit::vector, 4, 1, {b, b, b}};
  t["v_mbcnt_lo_u32_b32"] = {&count_below<false>, Unit::vector, 4, 1, {b, b, b}};
  t["v_mbcnt_hi_u32_b32"] = {&count_below<true>, Unit::vector, 4, 1, {b, b, b}};
  t["v_nop"] = {[](Wave&, const Instruction&) {}, Unit::vector, 4, 0, {}};
}

}  // namespace gfx942
