// SPDX-License-Identifier: Apache-2.0
// Two operations in one instruction, and dot products. Of each source, op_sel names the half that the lower result
// takes and op_sel_hi the one of the upper; neg_lo and neg_hi negate them.
#include <algorithm>

#include "operations.h"

namespace gfx942 {
namespace {

// ---- pairs of 32 bits

// The two words of a source, for every lane. Compilers load a pair for one word of it, and use an instruction for one
// result of it: what the selections leave out may be undefined, and makes the other result no less defined. `first` and
// `second`: whether the lower and the upper result take the upper word.
struct Pair {
  Lanes<uint32_t> low, high;
};
void read_pair(Wave& w, const Instruction& i, int j, bool first, bool second, Pair& p, Mask (&defined)[2]) {
  const Operand& o = i.source(j);
  Vector buffer;
  if (o.kind == Operand::Kind::constant) {  // 32 bits, which is the lower word; both results take that one
    if (first || second) w.fail(i, "the upper word of a constant is not implemented");
    std::fill_n(p.low.lane, kLanes, uint32_t(o.value));
    return;
  }
  if (o.registers != 2) w.fail(i, "a pair of registers was expected");
  Operand half = o;
  half.registers = 1;
  Mask low = ~Mask(0), high = ~Mask(0);
  std::memcpy(&p.low, w.source32(i, half, buffer, low), sizeof p.low);
  ++half.index;
  std::memcpy(&p.high, w.source32(i, half, buffer, high), sizeof p.high);
  defined[0] &= first ? high : low;
  defined[1] &= second ? high : low;
}
template <class T>
T part_of(const Pair& p, const Instruction& i, int j, int result, int lane) {
  const bool high = (result ? i.with.op_sel_hi : i.with.op_sel) >> j & 1;
  const uint32_t bits = high ? p.high.lane[lane] : p.low.lane[lane];
  T x = std::bit_cast<T>(bits);
  if constexpr (std::is_same_v<T, float>)
    if ((result ? i.with.neg_hi : i.with.neg_lo) >> j & 1) x = negated(x);
  return x;
}

template <class T, int n, class F>
void pair_action(Wave& w, const Instruction& i) {
  Mask defined[2] = {~Mask(0), ~Mask(0)};
  Pair p[n];
  for (int j = 0; j < n; ++j) read_pair(w, i, j, i.with.op_sel >> j & 1, i.with.op_sel_hi >> j & 1, p[j], defined);
  Lanes<T> in[2][n], result[2];
  for (int r = 0; r < 2; ++r)
    for (int j = 0; j < n; ++j) {
      for (int l = 0; l < kLanes; ++l) in[r][j].lane[l] = part_of<T>(p[j], i, j, r, l);
      if (flushes_inputs<T>(w.mode))
        if constexpr (kIsFloat<T>)
          for (T& x : in[r][j].lane) x = flushed(x);
    }
  {
    const Rounding rounding(rounding_of<T>(w.mode));
    for (int r = 0; r < 2; ++r) {
      if constexpr (std::is_same_v<F, Fused<T>>) {
        F::lanes(w.mode, result[r].lane, in[r][0].lane, in[r][1].lane, in[r][2].lane);
        continue;
      }
      for (int l = 0; l < kLanes; ++l) {
        if constexpr (n == 2)
          result[r].lane[l] = F{}(in[r][0].lane[l], in[r][1].lane[l]);
        else
          result[r].lane[l] = F{}(in[r][0].lane[l], in[r][1].lane[l], in[r][2].lane[l]);
      }
    }
  }
  Operand to = i.destination();
  to.registers = 1;
  for (int r = 0; r < 2; ++r) {
    if constexpr (n == 2)
      name_nans(result[r], +in[r][0].lane, +in[r][1].lane);
    else
      name_nans(result[r], +in[r][0].lane, +in[r][1].lane, +in[r][2].lane);
    finish(w, i, result[r]);
    store_lanes(w, i, to, result[r], defined[r], w.exec());
    ++to.index;
  }
}
template <class T, int n, class F>
Operation pair_op(F) {
  constexpr Type x = kType<T>;  // constants are of 32 bits
  return {&pair_action<T, n, F>, Unit::vector, 4, 1, {x, x, x, x}};
}
// v_pk_mov_b32: the lower result is of source 0, the upper of source 1.
void pair_move(Wave& w, const Instruction& i) {
  refuse_clamp(w, i);
  Mask defined[2];
  Pair p[2];
  for (int j = 0; j < 2; ++j) {
    const bool upper = i.with.op_sel >> j & 1;
    Mask own[2] = {~Mask(0), ~Mask(0)};
    read_pair(w, i, j, upper, upper, p[j], own);
    defined[j] = own[0];
  }
  Lanes<uint32_t> r[2];
  for (int l = 0; l < kLanes; ++l) {
    r[0].lane[l] = i.with.op_sel & 1 ? p[0].high.lane[l] : p[0].low.lane[l];
    r[1].lane[l] = i.with.op_sel >> 1 & 1 ? p[1].high.lane[l] : p[1].low.lane[l];
  }
  Operand to = i.destination();
  to.registers = 1;
  store_lanes(w, i, to, r[0], defined[0], w.exec());
  ++to.index;
  store_lanes(w, i, to, r[1], defined[1], w.exec());
}

// ---- pairs of 16 bits

template <class T>
T half_of(const Modifiers& m, uint32_t x, int j, int result, bool is_float) {
  uint16_t bits = uint16_t(x >> ((result ? m.op_sel_hi : m.op_sel) >> j & 1 ? 16 : 0));
  if (is_float && (result ? m.neg_hi : m.neg_lo) >> j & 1) bits ^= 0x8000;
  return std::bit_cast<T>(bits);
}
template <class T, int n, class F>
void halves(Wave& w, const Instruction& i) {
  constexpr bool is_float = std::is_same_v<T, Half>;
  Mask defined = ~Mask(0);
  Vector buffer[n];
  const uint32_t* x[n];
  // A constant has 32 bits: a float is in the lower half with zero above it, an integer is extended.
  for (int j = 0; j < n; ++j) x[j] = w.source32(i, i.source(j), buffer[j], defined);
  const Rounding rounding(w.mode.round64());
  Vector to;
  for (int l = 0; l < kLanes; ++l) {
    uint32_t both = 0;
    for (int r = 0; r < 2; ++r) {
      T in[n];
      for (int j = 0; j < n; ++j) {
        in[j] = half_of<T>(i.with, x[j][l], j, r, is_float);
        if constexpr (is_float)
          if (flushes_inputs<Half>(w.mode)) in[j] = flushed(in[j]);
      }
      T y;
      if constexpr (n == 2)
        y = of_lane<F>(w.mode, in[0], in[1]);
      else
        y = of_lane<F>(w.mode, in[0], in[1], in[2]);
      if constexpr (is_float) {
        if (is_nan(y) && !kTakesMode<F, T>) {
          y = default_nan<Half>();
          for (int j = n - 1; j >= 0; --j)
            if (is_nan(in[j])) y = quiet(in[j]);
        }
        if (flushes_outputs<Half>(w.mode)) y = flushed(y);
        if (i.with.clamp) y = clamped(y, w.mode.dx10_clamp());
      } else if (i.with.clamp) {
        w.fail(i, "clamp of this instruction is not implemented");
      }
      both |= uint32_t(std::bit_cast<uint16_t>(y)) << 16 * r;
    }
    to.lane[l] = both;
  }
  w.result32(i, i.destination(), to.lane, defined, w.exec());
}
template <class T, int n, class F>
Operation halves_op(F) {
  constexpr Type x = std::is_same_v<T, Half> ? Type::f16 : Type::b16;
  return {&halves<T, n, F>, Unit::vector, 4, 1, {Type::b32, x, x, x}};
}

// ---- v_fma_mix: floats, or halves where op_sel_hi says so; neg and abs stand on the operands

enum class Part : uint8_t { whole, low, high };

template <Part part>
void mixed(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0);
  Lanes<float> in[3];
  const uint8_t is_half = i.with.op_sel_hi_given ? i.with.op_sel_hi : 0;
  for (int j = 0; j < 3; ++j) {
    const Operand& o = i.source(j);
    Vector buffer;
    const uint32_t* x = w.source32(i, o, buffer, defined);
    if (is_half >> j & 1 && o.kind == Operand::Kind::constant && o.value)
      w.fail(i, "a constant half is not implemented");
    for (int l = 0; l < kLanes; ++l) {
      float y = std::bit_cast<float>(x[l]);
      if (is_half >> j & 1) y = widen(Half{uint16_t(x[l] >> (i.with.op_sel >> j & 1 ? 16 : 0))});
      if (flushes_inputs<float>(w.mode)) y = flushed(y);
      if (o.absolute) y = magnitude(y);
      if (o.negate) y = negated(y);
      in[j].lane[l] = y;
    }
  }
  Vector old_room;
  const uint32_t* old = nullptr;  // the other half stays
  Mask old_defined = ~Mask(0);
  if (part != Part::whole) old = w.source32(i, i.destination(), old_room, old_defined);
  Lanes<float> r;
  {
    const Rounding rounding(w.mode.round32());
    fused_lanes(r.lane, in[0].lane, in[1].lane, in[2].lane);
  }
  name_nans(r, +in[0].lane, +in[1].lane, +in[2].lane);
  if constexpr (part == Part::whole) {
    finish(w, i, r);
    store_lanes(w, i, i.destination(), r, defined, w.exec());
  } else {  // rounded to a float first, as the hardware's f32 path gives it, then to a half
    Vector to;
    const int shift = part == Part::high ? 16 : 0;
    for (int l = 0; l < kLanes; ++l) {
      Half h = narrow(r.lane[l], w.mode.round64());
      if (i.with.clamp) h = clamped(h, w.mode.dx10_clamp());
      to.lane[l] = (old[l] & ~(0xffffu << shift)) | uint32_t(h.bits) << shift;
    }
    w.result32(i, i.destination(), to.lane, defined, w.exec());
  }
}

// ---- dot products with a 32-bit sum

template <class Product>
void dot(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0);
  Lanes<uint32_t> buffer[2];
  const uint32_t* a = source<uint32_t>(w, i, 0, buffer[0], defined);
  const uint32_t* b = source<uint32_t>(w, i, 1, buffer[1], defined);
  Vector buffer_c, r;
  const uint32_t* c = w.source32(i, i.source(2), buffer_c, defined);
  if (i.with.clamp || i.with.op_sel || i.with.neg_lo || i.with.neg_hi)
    w.fail(i, "modifiers of this instruction are not implemented");
  for (int l = 0; l < kLanes; ++l) r.lane[l] = Product{}(a[l], b[l], c[l]);
  w.result32(i, i.destination(), r.lane, defined, w.exec());
}
template <class Product>
Operation dot_op(Product) {
  return {&dot<Product>, Unit::vector, 4, 1, {Type::b32, Type::b32, Type::b32, Type::b32}};
}

}  // namespace

void add_packed(Table& t) {
  using u16 = uint16_t;
  using i16 = int16_t;
  t["v_pk_add_f32"] = pair_op<float, 2>([](float a, float b) { return a + b; });
  t["v_pk_mul_f32"] = pair_op<float, 2>([](float a, float b) { return a * b; });
  t["v_pk_fma_f32"] = pair_op<float, 3>(Fused<float>{});
  t["v_pk_mov_b32"] = {&pair_move, Unit::vector, 4, 1, {Type::b32, Type::b32, Type::b32}};

  t["v_pk_add_f16"] = halves_op<Half, 2>([](Half a, Half b) { return narrow_now(double(widen(a)) + widen(b)); });
  t["v_pk_mul_f16"] = halves_op<Half, 2>([](Half a, Half b) { return narrow_now(double(widen(a)) * widen(b)); });
  t["v_pk_fma_f16"] = halves_op<Half, 3>(
      [](Half a, Half b, Half c) { return narrow_now((long double)(widen(a))*widen(b) + widen(c)); });
  t["v_pk_max_f16"] = halves_op<Half, 2>([](const Mode& m, Half a, Half b) { return larger(m, a, b); });
  t["v_pk_min_f16"] = halves_op<Half, 2>([](const Mode& m, Half a, Half b) { return smaller(m, a, b); });
  t["v_pk_add_u16"] = halves_op<u16, 2>([](u16 a, u16 b) { return u16(a + b); });
  t["v_pk_add_i16"] = t["v_pk_add_u16"];
  t["v_pk_sub_u16"] = halves_op<u16, 2>([](u16 a, u16 b) { return u16(a - b); });
  t["v_pk_sub_i16"] = t["v_pk_sub_u16"];
  t["v_pk_mul_lo_u16"] = halves_op<u16, 2>([](u16 a, u16 b) { return u16(uint32_t(a) * b); });
  t["v_pk_mad_u16"] = halves_op<u16, 3>([](u16 a, u16 b, u16 c) { return u16(uint32_t(a) * b + c); });
  t["v_pk_mad_i16"] = t["v_pk_mad_u16"];
  t["v_pk_lshlrev_b16"] = halves_op<u16, 2>([](u16 n, u16 a) { return u16(a << (n & 15)); });
  t["v_pk_lshrrev_b16"] = halves_op<u16, 2>([](u16 n, u16 a) { return u16(a >> (n & 15)); });
  t["v_pk_ashrrev_i16"] = halves_op<i16, 2>([](i16 n, i16 a) { return i16(a >> (n & 15)); });
  t["v_pk_max_u16"] = halves_op<u16, 2>([](u16 a, u16 b) { return std::max(a, b); });
  t["v_pk_min_u16"] = halves_op<u16, 2>([](u16 a, u16 b) { return std::min(a, b); });
  t["v_pk_max_i16"] = halves_op<i16, 2>([](i16 a, i16 b) { return std::max(a, b); });
  t["v_pk_min_i16"] = halves_op<i16, 2>([](i16 a, i16 b) { return std::min(a, b); });

  constexpr Type f = Type::f32;
  t["v_fma_mix_f32"] = {&mixed<Part::whole>, Unit::vector, 4, 1, {f, f, f, f}};
  t["v_fma_mixlo_f16"] = {&mixed<Part::low>, Unit::vector, 4, 1, {f, f, f, f}};
  t["v_fma_mixhi_f16"] = {&mixed<Part::high>, Unit::vector, 4, 1, {f, f, f, f}};

  t["v_pack_b32_f16"] = vector_op([](Half low, Half high) { return uint32_t(high.bits) << 16 | low.bits; });
  t["v_dot4_i32_i8"] = dot_op([](uint32_t a, uint32_t b, uint32_t c) {
    for (int k = 0; k < 32; k += 8) c += uint32_t(int8_t(a >> k) * int8_t(b >> k));
    return c;
  });
  t["v_dot4_u32_u8"] = dot_op([](uint32_t a, uint32_t b, uint32_t c) {
    for (int k = 0; k < 32; k += 8) c += (a >> k & 255) * (b >> k & 255);
    return c;
  });
}

}  // namespace gfx942
