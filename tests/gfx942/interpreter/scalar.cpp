// SPDX-License-Identifier: Apache-2.0
// Scalar arithmetic, logic, comparisons, and EXEC by them. Definedness is followed bit by bit through logic,
// since compilers merge lane masks whose other bits were never set.
#include <type_traits>

#include "operations.h"
#include "workgroup.h"

namespace gfx942 {
namespace {

constexpr uint64_t kAll = ~uint64_t(0);

template <class T>
struct Known {
  T value;
  T defined;  // bit by bit
};
template <class T>
Known<T> read(Wave& w, const Instruction& i, const Operand& o) {
  uint64_t defined;
  const uint64_t x = w.scalar(i, o, &defined);
  return {T(x), T(defined)};
}
template <class T>
constexpr T kWhole = T(~std::make_unsigned_t<T>(0));
template <class T>
T whole(T defined) {
  return defined == kWhole<T> ? kWhole<T> : T(0);
}
template <class T>
void write(Wave& w, const Instruction& i, T x, T defined) {
  using U = std::make_unsigned_t<T>;
  w.set_scalar(i, i.destination(), U(x),
               sizeof(T) == 4 ? uint64_t(U(defined)) | 0xffffffff00000000u : uint64_t(U(defined)));
}
void set_scc(Wave& w, bool x, bool defined) { w.scc = x, w.scc_defined = defined; }

enum class Scc : uint8_t { kept, nonzero, by_function };

// Sources of the same type as the result. SCC: kept, or whether the result is not zero, or what F puts there.
template <class F, Scc scc, class T, size_t n>
void arithmetic(Wave& w, const Instruction& i) {
  T x[2] = {}, defined = kWhole<T>;
  for (size_t j = 0; j < n; ++j) {
    const auto s = read<T>(w, i, i.source(int(j)));
    x[j] = s.value, defined = defined & s.defined;
  }
  defined = whole(defined);
  bool carry = w.scc;
  if constexpr (scc == Scc::by_function) {
    const bool uses_carry = F::uses_carry;
    if (uses_carry && !w.scc_defined) defined = 0;
    const T r = F::apply(x[0], x[1], carry);
    write(w, i, r, defined);
    set_scc(w, carry, defined != 0);
  } else {
    T r;
    if constexpr (n == 1)
      r = F{}(x[0]);
    else
      r = F{}(x[0], x[1]);
    write(w, i, r, defined);
    if (scc == Scc::nonzero) set_scc(w, r != 0, defined != 0);
  }
}
template <class T, Scc scc, class F>
Operation unary(F) {
  return {&arithmetic<F, scc, T, 1>, Unit::scalar, 4, 1, {kType<T>, kType<T>}};
}
template <class T, Scc scc, class F>
Operation binary(F) {
  return {&arithmetic<F, scc, T, 2>, Unit::scalar, 4, 1, {kType<T>, kType<T>, kType<T>}};
}
template <class T, class F>
Operation carrying() {
  return {&arithmetic<F, Scc::by_function, T, 2>, Unit::scalar, 4, 1, {kType<T>, kType<T>, kType<T>}};
}

struct AddU {
  static constexpr bool uses_carry = false;
  static uint32_t apply(uint32_t a, uint32_t b, bool& c) {
    const uint32_t r = a + b;
    c = r < a;
    return r;
  }
};
struct AddC {
  static constexpr bool uses_carry = true;
  static uint32_t apply(uint32_t a, uint32_t b, bool& c) {
    const uint64_t r = uint64_t(a) + b + c;
    c = r >> 32;
    return uint32_t(r);
  }
};
struct SubU {
  static constexpr bool uses_carry = false;
  static uint32_t apply(uint32_t a, uint32_t b, bool& c) {
    c = b > a;
    return a - b;
  }
};
struct SubB {
  static constexpr bool uses_carry = true;
  static uint32_t apply(uint32_t a, uint32_t b, bool& c) {
    const uint64_t s = uint64_t(b) + c;
    c = s > a;
    return uint32_t(a - s);
  }
};
struct AddI {
  static constexpr bool uses_carry = false;
  static int32_t apply(int32_t a, int32_t b, bool& c) {
    int32_t r;
    c = __builtin_add_overflow(a, b, &r);
    return r;
  }
};
struct SubI {
  static constexpr bool uses_carry = false;
  static int32_t apply(int32_t a, int32_t b, bool& c) {
    int32_t r;
    c = __builtin_sub_overflow(a, b, &r);
    return r;
  }
};
template <class T>
struct Min {
  static constexpr bool uses_carry = false;
  static T apply(T a, T b, bool& c) {
    c = a < b;
    return c ? a : b;
  }
};
template <class T>
struct Max {
  static constexpr bool uses_carry = false;
  static T apply(T a, T b, bool& c) {
    c = a >= b;
    return c ? a : b;
  }
};

// ---- logic, bit by bit

enum class Logic : uint8_t { and_, or_, xor_, andn2, orn2, nand, nor, xnor };

template <class T>
Known<T> logic(Logic op, Known<T> a, Known<T> b) {
  if (op == Logic::andn2 || op == Logic::orn2) b.value = ~b.value;
  T x, defined;
  switch (op) {
    case Logic::and_:
    case Logic::andn2:
    case Logic::nand:
      x = a.value & b.value;  // a zero that is known decides
      defined = (a.defined & b.defined) | (a.defined & ~a.value) | (b.defined & ~b.value);
      break;
    case Logic::or_:
    case Logic::orn2:
    case Logic::nor:
      x = a.value | b.value;
      defined = (a.defined & b.defined) | (a.defined & a.value) | (b.defined & b.value);
      break;
    default:
      x = a.value ^ b.value;
      defined = a.defined & b.defined;
  }
  if (op == Logic::nand || op == Logic::nor || op == Logic::xnor) x = ~x;
  return {x, defined};
}
// Whether any bit is set is known when one known bit is, or when all are known.
template <class T>
void scc_of(Wave& w, Known<T> r) {
  set_scc(w, r.value != 0, r.defined == kWhole<T> || (r.value & r.defined) != 0);
}
template <class T, Logic op>
void logical(Wave& w, const Instruction& i) {
  const auto r = logic(op, read<T>(w, i, i.source(0)), read<T>(w, i, i.source(1)));
  write(w, i, r.value, r.defined);
  scc_of(w, r);
}
template <class T>
void not_(Wave& w, const Instruction& i) {
  auto r = read<T>(w, i, i.source(0));
  r.value = ~r.value;
  write(w, i, r.value, r.defined);
  scc_of(w, r);
}
// d = exec; exec = f(source, exec); SCC: exec is not zero.
template <Logic op, bool swapped = false>
void save_exec(Wave& w, const Instruction& i) {
  const auto x = read<uint64_t>(w, i, i.source(0));
  const Known<uint64_t> exec{w.exec(), kAll};
  const auto r = swapped ? logic(op, exec, x) : logic(op, x, exec);
  if (r.defined != kAll) w.complain_undefined(i, "EXEC becomes undefined", std::countr_one(r.defined));
  write(w, i, exec.value, kAll);
  w.set_exec(r.value);
  set_scc(w, r.value != 0, true);
}
template <class T>
void move(Wave& w, const Instruction& i) {
  const auto x = read<T>(w, i, i.source(0));
  write(w, i, x.value, x.defined);
}
template <class T>
void conditional_move(Wave& w, const Instruction& i) {
  if (!w.scc_defined) w.complain_undefined(i, "SCC is undefined");
  if (w.scc) move<T>(w, i);
}
template <class T>
void select(Wave& w, const Instruction& i) {
  const auto a = read<T>(w, i, i.source(0)), b = read<T>(w, i, i.source(1));
  const T agreed = a.defined & b.defined & ~(a.value ^ b.value);
  const auto r = w.scc ? a : b;
  write(w, i, r.value, w.scc_defined ? r.defined : agreed);
}
template <class T, bool logical_right, bool left = false>
void shift(Wave& w, const Instruction& i) {  // the amount is 32 bits wide
  using U = std::make_unsigned_t<T>;
  const auto x = read<T>(w, i, i.source(0));
  const auto n = read<uint32_t>(w, i, i.source(1));
  const int by = int(n.value & (sizeof(T) * 8 - 1));
  const T r = left ? T(U(x.value) << by) : logical_right ? T(U(x.value) >> by) : T(x.value >> by);
  T defined;
  if (n.defined != ~0u)
    defined = 0;
  else if (left)
    defined = T(U(x.defined) << by | (by ? (U(1) << by) - 1 : U(0)));
  else if (logical_right)
    defined = T(~(~U(x.defined) >> by));
  else
    defined = T(x.defined >> by);
  write(w, i, r, defined);
  scc_of(w, Known<T>{r, defined});
}
template <class T>
void bit_field(Wave& w, const Instruction& i) {  // source 1: offset in bits 0.., width in bits 16..22
  using U = std::make_unsigned_t<T>;
  const auto x = read<T>(w, i, i.source(0));
  const auto n = read<uint32_t>(w, i, i.source(1));
  const int bits = sizeof(T) * 8, offset = int(n.value) & (bits - 1), width = int(n.value >> 16) & 127;
  const U field = width >= bits ? ~U(0) : (U(1) << width) - 1;
  T r = T(U(x.value) >> offset & field);
  if (std::is_signed_v<T> && width > 0 && width + offset < bits && (U(r) >> (width - 1) & 1)) r = T(U(r) | ~field);
  if (std::is_signed_v<T> && width > 0 && width + offset >= bits) r = T(x.value >> offset);
  const bool known = n.defined == ~0u && (U(~x.defined) >> offset & field) == 0;
  write(w, i, r, known ? kWhole<T> : T(0));
  set_scc(w, r != 0, known);
}
template <class T>
void bit_field_mask(Wave& w, const Instruction& i) {
  const auto a = read<uint32_t>(w, i, i.source(0)), b = read<uint32_t>(w, i, i.source(1));
  constexpr uint32_t kMost = sizeof(T) * 8 - 1;
  const bool known = (a.defined & b.defined) == ~0u;
  write(w, i, T(((T(1) << (a.value & kMost)) - 1) << (b.value & kMost)), known ? kWhole<T> : T(0));
}
template <class T, class F>
void compare(Wave& w, const Instruction& i) {
  const auto a = read<T>(w, i, i.operand[0]), b = read<T>(w, i, i.operand[1]);
  set_scc(w, F{}(a.value, b.value), T(a.defined & b.defined) == kWhole<T>);
}
template <class T, class F>
Operation comparison(F) {
  return {&compare<T, F>, Unit::scalar, 4, 0, {kType<T>, kType<T>}};
}
// s_cmpk: the second operand is 16 bits, extended as the type says.
template <class T, class F>
void compare_short(Wave& w, const Instruction& i) {
  const auto a = read<T>(w, i, i.operand[0]);
  const uint16_t k = uint16_t(i.operand[1].value);
  set_scc(w, F{}(a.value, std::is_signed_v<T> ? T(int16_t(k)) : T(k)), a.defined == kWhole<T>);
}
template <class T, class F>
Operation short_comparison(F) {
  return {&compare_short<T, F>, Unit::scalar, 4, 0, {kType<T>, kType<T>}};
}
void count_bits(Wave& w, const Instruction& i) {
  const auto x = read<uint64_t>(w, i, i.source(0));
  const uint32_t n = uint32_t(std::popcount(x.value)), defined = x.defined == kAll ? ~0u : 0;
  write(w, i, n, defined);
  set_scc(w, n != 0, defined);
}
void first_one(Wave& w, const Instruction& i) {
  const auto x = read<uint64_t>(w, i, i.source(0));
  write(w, i, x.value ? uint32_t(std::countr_zero(x.value)) : ~0u, x.defined == kAll ? ~0u : 0);
}
template <bool set>
void bit_compare(Wave& w, const Instruction& i) {
  const auto a = read<uint32_t>(w, i, i.operand[0]), b = read<uint32_t>(w, i, i.operand[1]);
  const bool bit = a.value >> (b.value & 31) & 1;
  set_scc(w, bit == set, b.defined == ~0u && (a.defined >> (b.value & 31) & 1));
}
template <bool to>
void bit_set(Wave& w, const Instruction& i) {
  const auto old = read<uint32_t>(w, i, i.destination()), n = read<uint32_t>(w, i, i.source(0));
  const uint32_t bit = 1u << (n.value & 31);
  write(w, i, to ? old.value | bit : old.value & ~bit, n.defined == ~0u ? old.defined | bit : 0);
}

int32_t immediate16(const Operand& o) { return int16_t(uint16_t(o.value)); }
void move_short(Wave& w, const Instruction& i) { write<uint32_t>(w, i, uint32_t(immediate16(i.operand[1])), ~0u); }
void add_short(Wave& w, const Instruction& i) {
  const auto a = read<int32_t>(w, i, i.operand[0]);
  int32_t r;
  const bool over = __builtin_add_overflow(a.value, immediate16(i.operand[1]), &r);
  write(w, i, r, whole(a.defined));
  set_scc(w, over, a.defined == -1);
}
void multiply_short(Wave& w, const Instruction& i) {
  const auto a = read<int32_t>(w, i, i.operand[0]);
  write(w, i, int32_t(uint32_t(a.value) * uint32_t(immediate16(i.operand[1]))), whole(a.defined));
}
template <class T>
void absolute(Wave& w, const Instruction& i) {
  const auto a = read<T>(w, i, i.source(0));
  const T r = a.value < 0 ? T(0u - uint32_t(a.value)) : a.value;
  write(w, i, r, whole(a.defined));
  set_scc(w, r != 0, a.defined == kWhole<T>);
}
template <int by>
void shift_add(Wave& w, const Instruction& i) {
  const auto a = read<uint32_t>(w, i, i.source(0)), b = read<uint32_t>(w, i, i.source(1));
  const uint64_t r = (uint64_t(a.value) << by) + b.value;
  const uint32_t defined = whole(a.defined & b.defined);
  write(w, i, uint32_t(r), defined);
  set_scc(w, r >> 32, defined);
}
template <class T>
void sign_extend(Wave& w, const Instruction& i) {
  const auto a = read<uint32_t>(w, i, i.source(0));
  write(w, i, uint32_t(int32_t(T(a.value))), whole(a.defined));
}
template <int low, int high>  // which halves
void pack(Wave& w, const Instruction& i) {
  const auto a = read<uint32_t>(w, i, i.source(0)), b = read<uint32_t>(w, i, i.source(1));
  const auto half = [](uint32_t x, int h) { return h ? x >> 16 : x & 0xffff; };
  write(w, i, half(a.value, low) | half(b.value, high) << 16, half(a.defined, low) | half(b.defined, high) << 16);
}

Operation plain(Action run, Type a = Type::b32, Type b = Type::b32, Type c = Type::b32) {
  return {run, Unit::scalar, 4, 1, {a, b, c}};
}

}  // namespace

void add_scalar(Table& t) {
  using u32 = uint32_t;
  using i32 = int32_t;
  using u64 = uint64_t;
  using i64 = int64_t;
  constexpr Type b64 = Type::b64;

  t["s_mov_b32"] = plain(&move<u32>), t["s_mov_b64"] = plain(&move<u64>, b64, b64);
  t["s_cmov_b32"] = plain(&conditional_move<u32>), t["s_cmov_b64"] = plain(&conditional_move<u64>, b64, b64);
  t["s_cselect_b32"] = plain(&select<u32>), t["s_cselect_b64"] = plain(&select<u64>, b64, b64, b64);
  t["s_movk_i32"] = plain(&move_short), t["s_addk_i32"] = plain(&add_short), t["s_mulk_i32"] = plain(&multiply_short);

  t["s_add_u32"] = carrying<u32, AddU>(), t["s_addc_u32"] = carrying<u32, AddC>();
  t["s_sub_u32"] = carrying<u32, SubU>(), t["s_subb_u32"] = carrying<u32, SubB>();
  t["s_add_i32"] = carrying<i32, AddI>(), t["s_sub_i32"] = carrying<i32, SubI>();
  t["s_min_u32"] = carrying<u32, Min<u32>>(), t["s_min_i32"] = carrying<i32, Min<i32>>();
  t["s_max_u32"] = carrying<u32, Max<u32>>(), t["s_max_i32"] = carrying<i32, Max<i32>>();
  t["s_mul_i32"] = binary<u32, Scc::kept>([](u32 a, u32 b) { return a * b; });
  t["s_mul_hi_u32"] = binary<u32, Scc::kept>([](u32 a, u32 b) { return u32(u64(a) * b >> 32); });
  t["s_mul_hi_i32"] = binary<i32, Scc::kept>([](i32 a, i32 b) { return i32(i64(a) * b >> 32); });
  t["s_absdiff_i32"] = binary<i32, Scc::nonzero>([](i32 a, i32 b) {
    const i32 d = i32(u32(a) - u32(b));  // of 32 bits, as its sign
    return d < 0 ? i32(0u - u32(d)) : d;
  });
  t["s_abs_i32"] = plain(&absolute<i32>);
  t["s_lshl1_add_u32"] = plain(&shift_add<1>), t["s_lshl2_add_u32"] = plain(&shift_add<2>);
  t["s_lshl3_add_u32"] = plain(&shift_add<3>), t["s_lshl4_add_u32"] = plain(&shift_add<4>);
  t["s_sext_i32_i8"] = plain(&sign_extend<int8_t>), t["s_sext_i32_i16"] = plain(&sign_extend<int16_t>);
  t["s_pack_ll_b32_b16"] = plain(&pack<0, 0>), t["s_pack_lh_b32_b16"] = plain(&pack<0, 1>);
  t["s_pack_hh_b32_b16"] = plain(&pack<1, 1>);

  t["s_and_b32"] = plain(&logical<u32, Logic::and_>), t["s_and_b64"] = plain(&logical<u64, Logic::and_>, b64, b64, b64);
  t["s_or_b32"] = plain(&logical<u32, Logic::or_>), t["s_or_b64"] = plain(&logical<u64, Logic::or_>, b64, b64, b64);
  t["s_xor_b32"] = plain(&logical<u32, Logic::xor_>), t["s_xor_b64"] = plain(&logical<u64, Logic::xor_>, b64, b64, b64);
  t["s_andn2_b32"] = plain(&logical<u32, Logic::andn2>);
  t["s_andn2_b64"] = plain(&logical<u64, Logic::andn2>, b64, b64, b64);
  t["s_orn2_b32"] = plain(&logical<u32, Logic::orn2>),
  t["s_orn2_b64"] = plain(&logical<u64, Logic::orn2>, b64, b64, b64);
  t["s_nand_b32"] = plain(&logical<u32, Logic::nand>),
  t["s_nand_b64"] = plain(&logical<u64, Logic::nand>, b64, b64, b64);
  t["s_nor_b32"] = plain(&logical<u32, Logic::nor>), t["s_nor_b64"] = plain(&logical<u64, Logic::nor>, b64, b64, b64);
  t["s_xnor_b32"] = plain(&logical<u32, Logic::xnor>),
  t["s_xnor_b64"] = plain(&logical<u64, Logic::xnor>, b64, b64, b64);
  t["s_not_b32"] = plain(&not_<u32>), t["s_not_b64"] = plain(&not_<u64>, b64, b64);
  t["s_and_saveexec_b64"] = plain(&save_exec<Logic::and_>, b64, b64);
  t["s_or_saveexec_b64"] = plain(&save_exec<Logic::or_>, b64, b64);
  t["s_xor_saveexec_b64"] = plain(&save_exec<Logic::xor_>, b64, b64);
  t["s_andn2_saveexec_b64"] = plain(&save_exec<Logic::andn2>, b64, b64);        // source & ~exec
  t["s_orn2_saveexec_b64"] = plain(&save_exec<Logic::orn2>, b64, b64);          // source | ~exec
  t["s_andn1_saveexec_b64"] = plain(&save_exec<Logic::andn2, true>, b64, b64);  // ~source & exec
  t["s_orn1_saveexec_b64"] = plain(&save_exec<Logic::orn2, true>, b64, b64);

  t["s_lshl_b32"] = plain(&shift<u32, false, true>), t["s_lshl_b64"] = plain(&shift<u64, false, true>, b64, b64);
  t["s_lshr_b32"] = plain(&shift<u32, true>), t["s_lshr_b64"] = plain(&shift<u64, true>, b64, b64);
  t["s_ashr_i32"] = plain(&shift<i32, false>), t["s_ashr_i64"] = plain(&shift<i64, false>, b64, Type::i64);
  t["s_bfe_u32"] = plain(&bit_field<u32>), t["s_bfe_i32"] = plain(&bit_field<i32>);
  t["s_bfe_u64"] = plain(&bit_field<u64>, b64, b64), t["s_bfe_i64"] = plain(&bit_field<i64>, b64, Type::i64);
  t["s_bfm_b32"] = plain(&bit_field_mask<u32>), t["s_bfm_b64"] = plain(&bit_field_mask<u64>, b64);
  t["s_bitset0_b32"] = plain(&bit_set<false>), t["s_bitset1_b32"] = plain(&bit_set<true>);
  t["s_brev_b32"] = unary<u32, Scc::kept>([](u32 a) {
    u32 r = 0;
    for (int k = 0; k < 32; ++k) r |= (a >> k & 1) << (31 - k);
    return r;
  });
  t["s_bcnt1_i32_b64"] = {&count_bits, Unit::scalar, 4, 1, {Type::b32, b64}};
  t["s_bcnt1_i32_b32"] = unary<u32, Scc::nonzero>([](u32 a) { return u32(std::popcount(a)); });
  t["s_ff1_i32_b32"] = unary<u32, Scc::kept>([](u32 a) { return a ? u32(std::countr_zero(a)) : ~0u; });
  t["s_ff1_i32_b64"] = {&first_one, Unit::scalar, 4, 1, {Type::b32, b64}};
  t["s_flbit_i32_b32"] = unary<u32, Scc::kept>([](u32 a) { return a ? u32(std::countl_zero(a)) : ~0u; });

  const auto equal = [](auto a, auto b) { return a == b; };
  const auto differs = [](auto a, auto b) { return a != b; };
  const auto greater = [](auto a, auto b) { return a > b; };
  const auto at_least = [](auto a, auto b) { return a >= b; };
  const auto less = [](auto a, auto b) { return a < b; };
  const auto at_most = [](auto a, auto b) { return a <= b; };
  const auto all_compares = [&](auto signed_value, const char* const(&names)[6], const char* const(&shorts)[6]) {
    using T = decltype(signed_value);
    t[names[0]] = comparison<T>(equal), t[names[1]] = comparison<T>(differs), t[names[2]] = comparison<T>(greater);
    t[names[3]] = comparison<T>(at_least), t[names[4]] = comparison<T>(less), t[names[5]] = comparison<T>(at_most);
    t[shorts[0]] = short_comparison<T>(equal), t[shorts[1]] = short_comparison<T>(differs);
    t[shorts[2]] = short_comparison<T>(greater), t[shorts[3]] = short_comparison<T>(at_least);
    t[shorts[4]] = short_comparison<T>(less), t[shorts[5]] = short_comparison<T>(at_most);
  };
  all_compares(i32{}, {"s_cmp_eq_i32", "s_cmp_lg_i32", "s_cmp_gt_i32", "s_cmp_ge_i32", "s_cmp_lt_i32", "s_cmp_le_i32"},
               {"s_cmpk_eq_i32", "s_cmpk_lg_i32", "s_cmpk_gt_i32", "s_cmpk_ge_i32", "s_cmpk_lt_i32", "s_cmpk_le_i32"});
  all_compares(u32{}, {"s_cmp_eq_u32", "s_cmp_lg_u32", "s_cmp_gt_u32", "s_cmp_ge_u32", "s_cmp_lt_u32", "s_cmp_le_u32"},
               {"s_cmpk_eq_u32", "s_cmpk_lg_u32", "s_cmpk_gt_u32", "s_cmpk_ge_u32", "s_cmpk_lt_u32", "s_cmpk_le_u32"});
  t["s_cmp_eq_u64"] = comparison<u64>(equal), t["s_cmp_lg_u64"] = comparison<u64>(differs);
  t["s_bitcmp0_b32"] = {&bit_compare<false>, Unit::scalar, 4, 0, {Type::b32, Type::b32}};
  t["s_bitcmp1_b32"] = {&bit_compare<true>, Unit::scalar, 4, 0, {Type::b32, Type::b32}};
}

}  // namespace gfx942
