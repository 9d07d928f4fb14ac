// SPDX-License-Identifier: Apache-2.0
// Where a wave goes on, what it waits for, and its MODE.
#include <algorithm>

#include "memory_order.h"
#include "operations.h"
#include "workgroup.h"

namespace gfx942 {
namespace {

constexpr uint64_t kAll = ~uint64_t(0);

void go(Wave& w, const Instruction& i) { w.pc = i.target; }
template <bool when>
void branch_scc(Wave& w, const Instruction& i) {
  if (!w.scc_defined) w.complain_undefined(i, "SCC is undefined");
  if (w.scc == when) w.pc = i.target;
}
template <bool zero>
void branch_vcc(Wave& w, const Instruction& i) {
  const uint64_t defined = w.pair_defined(kVcc), x = w.pair(kVcc);
  w.check_arrived(i, kVcc, 2);
  if (defined != kAll && !(x & defined)) w.complain_undefined(i, "VCC is undefined", std::countr_one(defined));
  if ((x == 0) == zero) w.pc = i.target;
}
template <bool zero>
void branch_exec(Wave& w, const Instruction& i) {
  if ((w.exec() == 0) == zero) w.pc = i.target;
}
uint64_t address_of(const Wave& w, uint32_t index) {
  return index < w.code.instructions.size() ? w.code.instructions[index].address
                                            : w.code.instructions.back().address + w.code.instructions.back().bytes;
}
void get_pc(Wave& w, const Instruction& i) { w.set_scalar(i, i.destination(), address_of(w, i.next), kAll); }
void jump(Wave& w, const Instruction& i, const Operand& to) {
  const uint64_t address = w.known_scalar(i, to, "the address of a jump");
  const auto& all = w.code.instructions;
  const auto at =
      std::lower_bound(all.begin(), all.end(), address, [](const Instruction& x, uint64_t a) { return x.address < a; });
  if (at == all.end() || at->address != address) w.fail(i, "a jump out of the kernel is not implemented");
  w.pc = at->index;
}
void set_pc(Wave& w, const Instruction& i) { jump(w, i, i.operand[0]); }
void swap_pc(Wave& w, const Instruction& i) {
  const uint64_t back = address_of(w, i.next);
  jump(w, i, i.source(0));
  w.set_scalar(i, i.destination(), back, kAll);
}
void end(Wave& w, const Instruction&) { w.ended = true; }
void barrier(Wave& w, const Instruction&) { w.at_barrier = true; }
void nothing(Wave&, const Instruction&) {}
void sleep(Wave& w, const Instruction&) { w.end_turn(); }
void wait(Wave& w, const Instruction& i) {
  if (i.with.vmcnt >= 0) w.vm.wait(i.with.vmcnt);
  if (i.with.lgkmcnt >= 0) w.lgkm.wait(i.with.lgkmcnt);
  if (w.order && i.with.vmcnt >= 0) w.order->wait(w, i.with.vmcnt == 0);
}
void halt(Wave& w, const Instruction& i) {
  if (i.operand[0].value & 1) w.fail(i, "the wave halts");
}
void trap(Wave& w, const Instruction& i) { w.fail(i, "the kernel trapped"); }

struct Field {
  uint32_t id, offset, mask;
};
Field field_of(const Operand& o) {
  const uint32_t x = uint32_t(o.value), width = (x >> 11 & 31) + 1;
  return {x & 63, x >> 6 & 31, width == 32 ? ~0u : (1u << width) - 1};
}
constexpr uint32_t kModeRegister = 1;
void get_register(Wave& w, const Instruction& i) {
  const Field f = field_of(i.operand[1]);
  if (f.id != kModeRegister) w.fail(i, "only the MODE register can be read");
  w.set_scalar(i, i.destination(), w.mode.bits >> f.offset & f.mask, kAll);
}
void set_mode(Wave& w, const Instruction& i, uint32_t x) {
  const Field f = field_of(i.operand[0]);
  if (f.id != kModeRegister || f.offset + std::popcount(f.mask) > 10) w.fail(i, "only MODE's bits 0 to 9 can be set");
  w.mode.bits = (w.mode.bits & ~(f.mask << f.offset)) | (x & f.mask) << f.offset;
}
void set_register(Wave& w, const Instruction& i) {
  set_mode(w, i, uint32_t(w.known_scalar(i, i.operand[1], "the MODE register")));
}

// Vector instructions do nothing, and count as nothing, while it is on.
void set_skip(Wave& w, const Instruction& i) {
  const uint64_t bits = w.known_scalar(i, i.operand[0], "whether vector instructions are skipped");
  w.mode.set(Mode::kSkips, bits >> (w.known_scalar(i, i.operand[1], "the bit") & 31) & 1);
}

// ---- registers by an index: M0's bits 0 to 7, and which operands it moves: bits 12 to 15

void put_in_m0(Wave& w, uint32_t x, uint32_t mask) {
  w.s[kM0] = (w.s[kM0] & ~mask) | (x & mask);
  w.s_defined[kM0] |= mask;
}
void set_index(Wave& w, const Instruction& i) {
  put_in_m0(w, uint32_t(w.known_scalar(i, i.operand[0], "the index of registers")), 0xff);
}
void index_on(Wave& w, const Instruction& i) {
  set_index(w, i);
  put_in_m0(w, uint32_t(i.operand[1].value) << 12, 0xf000);
  w.mode.set(Mode::kIndexes, true);
}
void index_off(Wave& w, const Instruction&) { w.mode.set(Mode::kIndexes, false); }
void set_index_mode(Wave& w, const Instruction& i) { put_in_m0(w, uint32_t(i.operand[0].value) << 12, 0xf000); }

Operation of_unit(Unit unit, Action run) { return {run, unit, 4, 0, {Type::b32, Type::b32}}; }

}  // namespace

void add_control(Table& t) {
  constexpr Type b64 = Type::b64;
  t["s_branch"] = of_unit(Unit::branch, &go);
  t["s_cbranch_scc0"] = of_unit(Unit::branch, &branch_scc<false>);
  t["s_cbranch_scc1"] = of_unit(Unit::branch, &branch_scc<true>);
  t["s_cbranch_vccz"] = of_unit(Unit::branch, &branch_vcc<true>);
  t["s_cbranch_vccnz"] = of_unit(Unit::branch, &branch_vcc<false>);
  t["s_cbranch_execz"] = of_unit(Unit::branch, &branch_exec<true>);
  t["s_cbranch_execnz"] = of_unit(Unit::branch, &branch_exec<false>);
  t["s_setpc_b64"] = {&set_pc, Unit::branch, 4, 0, {b64}};
  t["s_swappc_b64"] = {&swap_pc, Unit::branch, 4, 1, {b64, b64}};
  t["s_getpc_b64"] = {&get_pc, Unit::scalar, 4, 1, {b64}};
  t["s_endpgm"] = of_unit(Unit::branch, &end);
  t["s_trap"] = of_unit(Unit::wait, &trap);
  t["s_barrier"] = of_unit(Unit::barrier, &barrier);
  t["s_waitcnt"] = of_unit(Unit::wait, &wait);
  t["s_sleep"] = of_unit(Unit::wait, &sleep);
  for (const char* name : {"s_nop", "s_setprio", "s_icache_inv", "s_dcache_wb"})
    t[name] = of_unit(Unit::wait, &nothing);
  t["s_setvskip"] = of_unit(Unit::scalar, &set_skip);
  t["s_set_gpr_idx_on"] = of_unit(Unit::scalar, &index_on);
  t["s_set_gpr_idx_off"] = of_unit(Unit::scalar, &index_off);
  t["s_set_gpr_idx_idx"] = of_unit(Unit::scalar, &set_index);
  t["s_set_gpr_idx_mode"] = of_unit(Unit::scalar, &set_index_mode);
  t["s_sethalt"] = of_unit(Unit::wait, &halt);
  t["s_getreg_b32"] = {&get_register, Unit::scalar, 4, 1, {Type::b32, Type::b32}};
  t["s_setreg_b32"] = {&set_register, Unit::scalar, 4, 0, {Type::b32, Type::b32}};
  t["s_setreg_imm32_b32"] = {&set_register, Unit::scalar, 4, 0, {Type::b32, Type::b32}};
}

}  // namespace gfx942
