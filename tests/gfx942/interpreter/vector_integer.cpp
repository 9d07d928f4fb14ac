// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic and logic of a lane. "rev" takes the sources in the other order.
#include <algorithm>
#include <limits>

#include "operations.h"

namespace gfx942 {
namespace {

using u16 = uint16_t;
using i16 = int16_t;
using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

constexpr uint8_t kQuarterRate = 16;

u32 low24(u32 x) { return x & 0xffffff; }
i32 signed24(i32 x) { return i32(u32(x) << 8) >> 8; }
u32 reversed(u32 x) {
  u32 r = 0;
  for (int k = 0; k < 32; ++k) r |= (x >> k & 1) << (31 - k);
  return r;
}
template <class T>
T middle(T a, T b, T c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}
u32 sum_of_differences(u32 a, u32 b, u32 c) {
  for (int k = 0; k < 32; k += 8) {
    const i32 d = i32(a >> k & 255) - i32(b >> k & 255);
    c += u32(d < 0 ? -d : d);
  }
  return c;
}
// A byte of each selection: 0 to 3 of b, 4 to 7 of a; signs of b and a's words; 12 is 0x00, above 0xff.
u32 permuted(u32 a, u32 b, u32 selections) {
  const u64 both = u64(a) << 32 | b;
  u32 r = 0;
  for (int k = 0; k < 4; ++k) {
    const u32 s = selections >> 8 * k & 255;
    u32 byte;
    if (s < 8)
      byte = u32(both >> 8 * s & 255);
    else if (s < 12)
      byte = both >> (16 * (s - 8) + 15) & 1 ? 255 : 0;
    else
      byte = s == 12 ? 0 : 255;
    r |= byte << 8 * k;
  }
  return r;
}

struct Permuted {
  u32 operator()(u32 a, u32 b, u32 selections) const { return permuted(a, b, selections); }
  // Bytes of the sources are what is mostly selected, not signs and constants.
  static void lanes(const Mode&, u32* to, const u32* a, const u32* b, const u32* selections) {
    u32 others = 0;
    for (int l = 0; l < kLanes; ++l) others |= selections[l] & 0xf8f8f8f8u;
    if (others) {
      for (int l = 0; l < kLanes; ++l) to[l] = permuted(a[l], b[l], selections[l]);
      return;
    }
    for (int l = 0; l < kLanes; ++l) {
      u32 r = 0;
      for (int k = 0; k < 32; k += 8) {
        const u32 s = selections[l] >> k, upper = -(s >> 2 & 1);
        r |= (((a[l] & upper) | (b[l] & ~upper)) >> 8 * (s & 3) & 255) << k;
      }
      to[l] = r;
    }
  }
};

// ---- sums that clamp saturates: F of numbers that hold any of them

template <class T, class F>
void sum(Wave& w, const Instruction& i) {
  using U = std::make_unsigned_t<T>;
  using Plain = decltype([](U a, U b) { return U(F{}(a, b)); });
  if (!i.with.clamp) return VectorAction<Plain, Nan::named, false, U, U, U>::run(w, i);
  Mask defined = ~Mask(0);
  Lanes<T> buffer_a, buffer_b, r;
  const T* a = source<T>(w, i, 0, buffer_a, defined);
  const T* b = source<T>(w, i, 1, buffer_b, defined);
  constexpr i64 low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  for (int l = 0; l < kLanes; ++l) r.lane[l] = T(std::clamp(i64(F{}(i64(a[l]), i64(b[l]))), low, high));
  store_lanes(w, i, i.destination(), r, defined, w.exec());
}
template <class T, class F>
Operation sum_op(F) {
  return {&sum<T, F>, Unit::vector, 4, 1, {kType<T>, kType<T>, kType<T>}};
}

// ---- sums with a carry in a lane mask: v_add_co_u32 d, carry_out, a, b [, carry_in]

template <bool subtract, bool reverse, bool takes>
void carry(Wave& w, const Instruction& i) {
  refuse_clamp(w, i);
  Mask defined = ~Mask(0);
  Lanes<u32> buffer_a, buffer_b, r;
  const u32* a = source<u32>(w, i, 0, buffer_a, defined);
  const u32* b = source<u32>(w, i, 1, buffer_b, defined);
  if (reverse) std::swap(a, b);
  const Mask in = takes ? w.lane_mask(i, i.source(2), defined) : 0;
  Mask out = 0;
  for (int l = 0; l < kLanes; ++l) {
    const u64 c = in >> l & 1;
    const u64 x = subtract ? u64(a[l]) - b[l] - c : u64(a[l]) + b[l] + c;
    r.lane[l] = u32(x);
    out |= Mask(x >> 32 & 1) << l;
  }
  store_lanes(w, i, i.operand[0], r, defined, w.exec());
  w.set_lane_mask(i, i.operand[1], out, defined);
}
template <bool subtract, bool reverse, bool takes>
Operation carry_op() {
  return {
      &carry<subtract, reverse, takes>, Unit::vector, 4, 2, {Type::b32, Type::b64, Type::b32, Type::b32, Type::b64}};
}

// 64 bits from 32 x 32 + 64, and the bit above them: a carry, or a signed sum's sign.
template <class T, class Wide>
void multiply_add(Wave& w, const Instruction& i) {
  refuse_clamp(w, i);
  const LowerHalf lower(w, i);
  Mask defined = ~Mask(0);
  Lanes<T> buffer_a, buffer_b;
  Lanes<Wide> buffer_c, r;
  const T* a = source<T>(w, i, 0, buffer_a, defined);
  const T* b = source<T>(w, i, 1, buffer_b, defined);
  const Wide* c = source<Wide>(w, i, 2, buffer_c, defined);
  Mask over = 0;
  for (int l = 0; l < kLanes; ++l) {
    const __int128 sum = __int128(Wide(a[l]) * b[l]) + c[l];
    r.lane[l] = Wide(sum);
    over |= Mask(uint64_t(sum >> 64) & 1) << l;
  }
  store_lanes(w, i, i.operand[0], r, defined, w.exec());
  w.set_lane_mask(i, i.operand[1], over, defined);
}
template <class T, class Wide>
Operation multiply_add_op() {
  return {
      &multiply_add<T, Wide>, Unit::vector, kQuarterRate, 2, {Type::b64, Type::b64, kType<T>, kType<T>, kType<Wide>}};
}

// ---- 16 bits that leave the other half of the destination alone: which one, the last bit of op_sel says
template <class T, class F>
void keep_half(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0);
  Lanes<T> buffer[3], result;
  const T* a = source<T>(w, i, 0, buffer[0], defined);
  const T* b = source<T>(w, i, 1, buffer[1], defined);
  const T* c = source<T>(w, i, 2, buffer[2], defined);
  {
    const Rounding rounding(rounding_of<T>(w.mode));
    for (int l = 0; l < kLanes; ++l) result.lane[l] = F{}(a[l], b[l], c[l]);
  }
  name_nans(result, a, b, c);
  finish(w, i, result);
  Vector old_room, r;
  const u32* old = w.source32(i, i.destination(), old_room, defined);
  const int shift = i.with.op_sel & 8 ? 16 : 0;
  for (int l = 0; l < kLanes; ++l)
    r.lane[l] = (old[l] & ~(0xffffu << shift)) | u32(std::bit_cast<u16>(result.lane[l])) << shift;
  w.result32(i, i.destination(), r.lane, defined, w.exec());
}
template <class T, class F>
Operation keep_half_op(F) {
  return {&keep_half<T, F>, Unit::vector, 4, 1, {Type::b32, kType<T>, kType<T>, kType<T>}};
}

void add_arithmetic(Table& t) {
  t["v_add_u32"] = sum_op<u32>([](auto a, auto b) { return a + b; });
  t["v_sub_u32"] = sum_op<u32>([](auto a, auto b) { return a - b; });
  t["v_subrev_u32"] = sum_op<u32>([](auto a, auto b) { return b - a; });
  t["v_add_i32"] = sum_op<i32>([](auto a, auto b) { return a + b; });
  t["v_sub_i32"] = sum_op<i32>([](auto a, auto b) { return a - b; });
  t["v_add_co_u32"] = carry_op<false, false, false>();
  t["v_addc_co_u32"] = carry_op<false, false, true>();
  t["v_sub_co_u32"] = carry_op<true, false, false>();
  t["v_subb_co_u32"] = carry_op<true, false, true>();
  t["v_subrev_co_u32"] = carry_op<true, true, false>();
  t["v_subbrev_co_u32"] = carry_op<true, true, true>();
  t["v_mul_lo_u32"] = vector_op([](u32 a, u32 b) { return a * b; }, kQuarterRate);
  t["v_mul_hi_u32"] = vector_op([](u32 a, u32 b) { return u32(u64(a) * b >> 32); }, kQuarterRate);
  t["v_mul_hi_i32"] = vector_op([](i32 a, i32 b) { return i32(i64(a) * b >> 32); }, kQuarterRate);
  t["v_mul_u32_u24"] = vector_op([](u32 a, u32 b) { return low24(a) * low24(b); });
  t["v_mul_hi_u32_u24"] = vector_op([](u32 a, u32 b) { return u32(u64(low24(a)) * low24(b) >> 32); });
  t["v_mul_i32_i24"] = vector_op([](i32 a, i32 b) { return u32(signed24(a)) * u32(signed24(b)); });
  t["v_mul_hi_i32_i24"] = vector_op([](i32 a, i32 b) { return i32(i64(signed24(a)) * signed24(b) >> 32); });
  t["v_mad_u32_u24"] = vector_op([](u32 a, u32 b, u32 c) { return low24(a) * low24(b) + c; });
  t["v_mad_i32_i24"] = vector_op([](i32 a, i32 b, u32 c) { return u32(signed24(a)) * u32(signed24(b)) + c; });
  t["v_mad_u64_u32"] = multiply_add_op<u32, u64>();
  t["v_mad_i64_i32"] = multiply_add_op<i32, i64>();
  t["v_add3_u32"] = vector_op([](u32 a, u32 b, u32 c) { return a + b + c; });
  t["v_lshl_add_u32"] = vector_op([](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; });
  t["v_add_lshl_u32"] = vector_op([](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); });
  t["v_lshl_add_u64"] = lower_half_op([](u64 a, u32 b, u64 c) {
    return (a << ((b & 7) > 4 ? 0 : b & 7)) + c;  // hardware does not shift by more
  });
  t["v_xad_u32"] = vector_op([](u32 a, u32 b, u32 c) { return (a ^ b) + c; });
  t["v_sad_u32"] = vector_op([](u32 a, u32 b, u32 c) { return (a > b ? a - b : b - a) + c; });
  t["v_sad_u8"] = vector_op([](u32 a, u32 b, u32 c) { return sum_of_differences(a, b, c); });

  t["v_min_u32"] = vector_op([](u32 a, u32 b) { return std::min(a, b); });
  t["v_max_u32"] = vector_op([](u32 a, u32 b) { return std::max(a, b); });
  t["v_min_i32"] = vector_op([](i32 a, i32 b) { return std::min(a, b); });
  t["v_max_i32"] = vector_op([](i32 a, i32 b) { return std::max(a, b); });
  t["v_min3_u32"] = vector_op([](u32 a, u32 b, u32 c) { return std::min(std::min(a, b), c); });
  t["v_max3_u32"] = vector_op([](u32 a, u32 b, u32 c) { return std::max(std::max(a, b), c); });
  t["v_med3_u32"] = vector_op([](u32 a, u32 b, u32 c) { return middle(a, b, c); });
  t["v_min3_i32"] = vector_op([](i32 a, i32 b, i32 c) { return std::min(std::min(a, b), c); });
  t["v_max3_i32"] = vector_op([](i32 a, i32 b, i32 c) { return std::max(std::max(a, b), c); });
  t["v_med3_i32"] = vector_op([](i32 a, i32 b, i32 c) { return middle(a, b, c); });
}

void add_logic(Table& t) {
  t["v_and_b32"] = vector_op([](u32 a, u32 b) { return a & b; });
  t["v_or_b32"] = vector_op([](u32 a, u32 b) { return a | b; });
  t["v_xor_b32"] = vector_op([](u32 a, u32 b) { return a ^ b; });
  t["v_xnor_b32"] = vector_op([](u32 a, u32 b) { return ~(a ^ b); });
  t["v_not_b32"] = vector_op([](u32 a) { return ~a; });
  t["v_and_or_b32"] = vector_op([](u32 a, u32 b, u32 c) { return (a & b) | c; });
  t["v_or3_b32"] = vector_op([](u32 a, u32 b, u32 c) { return a | b | c; });
  t["v_lshl_or_b32"] = vector_op([](u32 a, u32 b, u32 c) { return (a << (b & 31)) | c; });
  t["v_lshlrev_b32"] = vector_op([](u32 n, u32 a) { return a << (n & 31); });
  t["v_lshrrev_b32"] = vector_op([](u32 n, u32 a) { return a >> (n & 31); });
  t["v_ashrrev_i32"] = vector_op([](u32 n, i32 a) { return a >> (n & 31); });
  t["v_lshlrev_b64"] = lower_half_op([](u32 n, u64 a) { return a << (n & 63); });
  t["v_lshrrev_b64"] = vector_op([](u32 n, u64 a) { return a >> (n & 63); });
  t["v_ashrrev_i64"] = vector_op([](u32 n, i64 a) { return a >> (n & 63); });
  t["v_bfe_u32"] = vector_op([](u32 a, u32 n, u32 width) { return a >> (n & 31) & ((1u << (width & 31)) - 1); });
  t["v_bfe_i32"] = vector_op([](i32 a, u32 n, u32 width) {
    const u32 bits = width & 31, at = n & 31;
    if (bits == 0) return 0;
    return at + bits >= 32 ? a >> at : i32(u32(a) << (32 - at - bits)) >> (32 - bits);
  });
  t["v_bfi_b32"] = vector_op([](u32 mask, u32 a, u32 b) { return (mask & a) | (~mask & b); });
  t["v_bfm_b32"] = vector_op([](u32 width, u32 at) { return ((1u << (width & 31)) - 1) << (at & 31); });
  t["v_bfrev_b32"] = vector_op([](u32 a) { return reversed(a); });
  t["v_bcnt_u32_b32"] = vector_op([](u32 a, u32 b) { return u32(std::popcount(a)) + b; });
  t["v_ffbh_u32"] = vector_op([](u32 a) { return a ? u32(std::countl_zero(a)) : ~0u; });
  t["v_ffbl_b32"] = vector_op([](u32 a) { return a ? u32(std::countr_zero(a)) : ~0u; });
  t["v_ffbh_i32"] = vector_op([](i32 a) {
    const u32 x = u32(a < 0 ? ~a : a);
    return x ? u32(std::countl_zero(x)) : ~0u;
  });
  t["v_alignbit_b32"] = vector_op([](u32 a, u32 b, u32 n) { return u32((u64(a) << 32 | b) >> (n & 31)); });
  t["v_alignbyte_b32"] = vector_op([](u32 a, u32 b, u32 n) { return u32((u64(a) << 32 | b) >> 8 * (n & 3)); });
  t["v_perm_b32"] = vector_op(Permuted{});
}

void add_shorts(Table& t) {
  t["v_add_u16"] = sum_op<u16>([](auto a, auto b) { return a + b; });
  t["v_sub_u16"] = sum_op<u16>([](auto a, auto b) { return a - b; });
  t["v_subrev_u16"] = sum_op<u16>([](auto a, auto b) { return b - a; });
  t["v_mul_lo_u16"] = vector_op([](u16 a, u16 b) { return u16(u32(a) * b); });
  t["v_lshlrev_b16"] = vector_op([](u16 n, u16 a) { return u16(a << (n & 15)); });
  t["v_lshrrev_b16"] = vector_op([](u16 n, u16 a) { return u16(a >> (n & 15)); });
  t["v_ashrrev_i16"] = vector_op([](u16 n, i16 a) { return i16(a >> (n & 15)); });
  t["v_min_u16"] = vector_op([](u16 a, u16 b) { return std::min(a, b); });
  t["v_max_u16"] = vector_op([](u16 a, u16 b) { return std::max(a, b); });
  t["v_min_i16"] = vector_op([](i16 a, i16 b) { return std::min(a, b); });
  t["v_max_i16"] = vector_op([](i16 a, i16 b) { return std::max(a, b); });
  t["v_mad_u16"] = keep_half_op<u16>([](u16 a, u16 b, u16 c) { return u16(u32(a) * b + c); });
  t["v_mad_i16"] = t["v_mad_u16"];
  t["v_mad_legacy_u16"] = vector_op([](u16 a, u16 b, u16 c) { return u16(u32(a) * b + c); });
  t["v_fma_f16"] = keep_half_op<Half>([](Half a, Half b, Half c) {  // products of halves and their sums fit 64 bits
    return narrow_now((long double)(widen(a))*widen(b) + widen(c));
  });
}

}  // namespace

void add_vector_integers(Table& t) {
  add_arithmetic(t);
  add_logic(t);
  add_shorts(t);
}

}  // namespace gfx942
