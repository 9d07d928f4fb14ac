// SPDX-License-Identifier: Apache-2.0
// Atomics of LDS. Lanes take their turns in rising order; programs must not depend on it.
#include "atomic_operations.h"
#include "lds_access.h"

namespace gfx942 {
namespace {

template <class U>
U data_of(const Wave& w, const Operand& o, int lane) {
  if constexpr (sizeof(U) == 4)
    return w.v[o.index].lane[lane];
  else
    return uint64_t(w.v[o.index + 1].lane[lane]) << 32 | w.v[o.index].lane[lane];
}

// Floats of 32 bits obey MODE's denormal bits; those of 64 bits keep denormals in any mode.
template <class U, AtomicFunction<U> f, int sources, bool returns, bool is_float32>
void atomic(Wave& w, const Instruction& i) {
  if (i.with.gds) w.fail(i, "global data share is not implemented");
  const int first = returns ? 1 : 0;
  const Operand &address = i.operand[first], &data = i.operand[first + 1], &other = i.operand[first + sources];
  const Vector at = lds_addresses(w, i, address, uint32_t(i.with.offset), sizeof(U), true);
  const Mask on = w.exec();
  Mask known = read_registers(w, i, data);
  if (sources == 2) known &= read_registers(w, i, other);
  if (returns) check_overwrites(w, i, w.lgkm, i.operand[0]);
  AtomicMode mode;
  if (is_float32) mode.flush = !w.mode.keeps_input_denormals32() || !w.mode.keeps_output_denormals32();
  if (mode.flush && (w.mode.keeps_input_denormals32() || w.mode.keeps_output_denormals32()))
    w.fail(i, "a mode that keeps denormals on one side only is not implemented here");
  Lds& lds = w.group.lds;
  Mask returned = 0;
  for (Mask m = on; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    const uint32_t a = at.lane[l];
    if (a % sizeof(U)) w.fail(i, "an atomic at LDS address " + std::to_string(a) + ", which is not aligned", l);
    if (!lds.note(Lds::Use::atomic, a, sizeof(U), w.number)) lds_race(w, i, Lds::Use::atomic, a, sizeof(U), true, l);
    const U old = lds.value<U>(a);
    const bool was_known = lds.defined<U>(a);
    const U x = f(old, data_of<U>(w, data, l), sources == 2 ? data_of<U>(w, other, l) : U(0), mode);
    if (mode.unsure)
      w.fail(i, "denormals, NaN or signed zeros here are not implemented: nothing says what comes of them", l);
    const bool replaces = f == AtomicFunction<U>(&atomics::exchange<U>);
    lds.set_value<U>(a, x, (known >> l & 1) && (was_known || replaces));
    if (!was_known && (!replaces || returns)) note_uninitialised(w, i, a, l);
    if (!returns) continue;
    w.v[i.operand[0].index].lane[l] = uint32_t(old);
    if constexpr (sizeof(U) == 8) w.v[i.operand[0].index + 1].lane[l] = uint32_t(old >> 32);
    returned |= Mask(was_known) << l;
  }
  if (returns)
    for (int r = 0; r < i.operand[0].registers; ++r) {
      Mask& defined = w.v_defined[i.operand[0].index + r];
      defined = (defined & ~on) | returned;
    }
  w.issue_lgkm(returns ? i.operand[0] : Operand{});
  w.remember(Lds::Use::atomic, sizeof(U), on, at);
  tally_lds<sizeof(U)>(w, i, at, false);
}

template <class U, AtomicFunction<U> f, int sources = 1, bool is_float32 = false>
void add(Table& t, const char* name, const char* returning) {
  t[name] = {&atomic<U, f, sources, false, is_float32>, Unit::lds, 4, 0, {}};
  t[returning] = {&atomic<U, f, sources, true, is_float32>, Unit::lds, 4, 1, {}};
}

}  // namespace

void add_lds_atomics(Table& t) {
  using namespace atomics;
  using u32 = uint32_t;
  using u64 = uint64_t;
  add<u32, &atomics::add<u32>>(t, "ds_add_u32", "ds_add_rtn_u32");
  add<u64, &atomics::add<u64>>(t, "ds_add_u64", "ds_add_rtn_u64");
  add<u32, &subtract<u32>>(t, "ds_sub_u32", "ds_sub_rtn_u32");
  add<u64, &subtract<u64>>(t, "ds_sub_u64", "ds_sub_rtn_u64");
  add<u32, &subtract_from<u32>>(t, "ds_rsub_u32", "ds_rsub_rtn_u32");
  add<u64, &subtract_from<u64>>(t, "ds_rsub_u64", "ds_rsub_rtn_u64");
  add<u32, &signed_smallest<u32>>(t, "ds_min_i32", "ds_min_rtn_i32");
  add<u64, &signed_smallest<u64>>(t, "ds_min_i64", "ds_min_rtn_i64");
  add<u32, &signed_largest<u32>>(t, "ds_max_i32", "ds_max_rtn_i32");
  add<u64, &signed_largest<u64>>(t, "ds_max_i64", "ds_max_rtn_i64");
  add<u32, &smallest<u32>>(t, "ds_min_u32", "ds_min_rtn_u32");
  add<u64, &smallest<u64>>(t, "ds_min_u64", "ds_min_rtn_u64");
  add<u32, &largest<u32>>(t, "ds_max_u32", "ds_max_rtn_u32");
  add<u64, &largest<u64>>(t, "ds_max_u64", "ds_max_rtn_u64");
  add<u32, &and_<u32>>(t, "ds_and_b32", "ds_and_rtn_b32");
  add<u64, &and_<u64>>(t, "ds_and_b64", "ds_and_rtn_b64");
  add<u32, &or_<u32>>(t, "ds_or_b32", "ds_or_rtn_b32");
  add<u64, &or_<u64>>(t, "ds_or_b64", "ds_or_rtn_b64");
  add<u32, &xor_<u32>>(t, "ds_xor_b32", "ds_xor_rtn_b32");
  add<u64, &xor_<u64>>(t, "ds_xor_b64", "ds_xor_rtn_b64");
  add<u32, &increment<u32>>(t, "ds_inc_u32", "ds_inc_rtn_u32");
  add<u64, &increment<u64>>(t, "ds_inc_u64", "ds_inc_rtn_u64");
  add<u32, &decrement<u32>>(t, "ds_dec_u32", "ds_dec_rtn_u32");
  add<u64, &decrement<u64>>(t, "ds_dec_u64", "ds_dec_rtn_u64");
  add<u32, &masked_or<u32>, 2>(t, "ds_mskor_b32", "ds_mskor_rtn_b32");
  add<u64, &masked_or<u64>, 2>(t, "ds_mskor_b64", "ds_mskor_rtn_b64");
  add<u32, &exchange_if_equal<u32>, 2>(t, "ds_cmpst_b32", "ds_cmpst_rtn_b32");
  add<u64, &exchange_if_equal<u64>, 2>(t, "ds_cmpst_b64", "ds_cmpst_rtn_b64");
  t["ds_wrxchg_rtn_b32"] = {&atomic<u32, &exchange<u32>, 1, true, false>, Unit::lds, 4, 1, {}};
  t["ds_wrxchg_rtn_b64"] = {&atomic<u64, &exchange<u64>, 1, true, false>, Unit::lds, 4, 1, {}};
  add<u32, &add_float<float, u32>, 1, true>(t, "ds_add_f32", "ds_add_rtn_f32");
  add<u64, &add_float<double, u64>>(t, "ds_add_f64", "ds_add_rtn_f64");
  add<u32, &choose_float<float, u32, false>, 1, true>(t, "ds_min_f32", "ds_min_rtn_f32");
  add<u32, &choose_float<float, u32, true>, 1, true>(t, "ds_max_f32", "ds_max_rtn_f32");
  add<u64, &choose_float<double, u64, false>>(t, "ds_min_f64", "ds_min_rtn_f64");
  add<u64, &choose_float<double, u64, true>>(t, "ds_max_f64", "ds_max_rtn_f64");
  add<u32, &add_packed<&add_half>>(t, "ds_pk_add_f16", "ds_pk_add_rtn_f16");
  add<u32, &add_packed<&add_bf16>>(t, "ds_pk_add_bf16", "ds_pk_add_rtn_bf16");
}

}  // namespace gfx942
