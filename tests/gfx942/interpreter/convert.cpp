// SPDX-License-Identifier: Apache-2.0
// Conversions. To integers: towards zero, the nearest that fits, NaN is 0.
#include <limits>

#include "float8.h"
#include "operations.h"

namespace gfx942 {
namespace {

template <class I, class F>
I to_integer(F x) {
  if (x != x) return 0;
  constexpr double low = double(std::numeric_limits<I>::min()), high = double(std::numeric_limits<I>::max());
  const double whole = std::trunc(double(x));
  return whole <= low ? std::numeric_limits<I>::min() : whole >= high ? std::numeric_limits<I>::max() : I(whole);
}
// Between floats NaN keeps the upper bits of its payload, and is quiet.
double doubled(float x) {
  if (x == x) return x;
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::bit_cast<double>(uint64_t(u >> 31) << 63 | 0x7ff8000000000000u | uint64_t(u & 0x7fffff) << 29);
}
float singled(double x) {
  if (x == x) return float(x);
  const uint64_t u = std::bit_cast<uint64_t>(x);
  return std::bit_cast<float>(uint32_t(u >> 63) << 31 | 0x7fc00000u | uint32_t(u >> 29 & 0x7fffff));
}
uint32_t packed_towards_zero(float a, float b) { return narrow(a, 3).bits | uint32_t(narrow(b, 3).bits) << 16; }
uint32_t with_byte(float x, uint32_t at, uint32_t old) {
  const uint32_t shift = 8 * (at & 3);
  return (old & ~(255u << shift)) | uint32_t(std::min(to_integer<uint32_t>(std::nearbyint(x)), 255u)) << shift;
}

// ---- bytes: a word of the source, which SDWA chooses, to two floats and back

template <float (*of_byte)(uint32_t)>
void two_from_fp8(Wave& w, const Instruction& i) {
  refuse_clamp(w, i);
  Mask defined = ~Mask(0);
  Vector buffer;
  const uint32_t* x = w.source32(i, i.source(0), buffer, defined);
  if (i.with.op_sel) w.fail(i, "op_sel of this instruction is not implemented");
  Lanes<float> result[2];
  for (int r = 0; r < 2; ++r)
    for (int l = 0; l < kLanes; ++l) result[r].lane[l] = of_byte(x[l] >> 8 * r & 255);
  Operand one = i.destination();
  if (one.registers != 2) w.fail(i, "a pair of registers was expected");
  one.registers = 1;
  for (int r = 0; r < 2; ++r, ++one.index) store_lanes(w, i, one, result[r], defined, w.exec());
}
// The third bit of op_sel is the upper word of the result, whose other word stays.
template <uint32_t (*to_byte)(float)>
void two_to_fp8(Wave& w, const Instruction& i) {
  refuse_clamp(w, i);
  if (i.with.op_sel & 3) w.fail(i, "op_sel of a source is not implemented");
  if (w.mode.round32()) w.fail(i, "another rounding than to nearest is not implemented");
  Mask defined = ~Mask(0);
  Lanes<float> buffer[2];
  const float* x[2];
  for (int j = 0; j < 2; ++j) x[j] = source<float, false>(w, i, j, buffer[j], defined);
  Vector old_buffer, to;
  Mask old_defined = ~Mask(0);
  const uint32_t* old = w.source32(i, i.destination(), old_buffer, old_defined);
  const int shift = i.with.op_sel >> 2 & 1 ? 16 : 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t word = to_byte(x[0][l]) | to_byte(x[1][l]) << 8;
    to.lane[l] = (old[l] & ~(0xffffu << shift)) | word << shift;
  }
  w.result32(i, i.destination(), to.lane, defined, w.exec());
}

}  // namespace

void add_conversions(Table& t, Isa isa) {
  constexpr Nan own = Nan::as_computed;
  t["v_cvt_f32_i32"] = vector_op([](int32_t a) { return float(a); });
  t["v_cvt_f32_u32"] = vector_op([](uint32_t a) { return float(a); });
  t["v_cvt_f64_i32"] = vector_op([](int32_t a) { return double(a); });
  t["v_cvt_f64_u32"] = vector_op([](uint32_t a) { return double(a); });
  t["v_cvt_i32_f32"] = vector_op([](float a) { return to_integer<int32_t>(a); });
  t["v_cvt_u32_f32"] = vector_op([](float a) { return to_integer<uint32_t>(a); });
  t["v_cvt_i32_f64"] = vector_op([](double a) { return to_integer<int32_t>(a); });
  t["v_cvt_u32_f64"] = vector_op([](double a) { return to_integer<uint32_t>(a); });
  t["v_cvt_flr_i32_f32"] = vector_op([](float a) { return to_integer<int32_t>(std::floor(a)); });
  t["v_cvt_rpi_i32_f32"] = vector_op([](float a) { return to_integer<int32_t>(std::floor(double(a) + 0.5)); });
  t["v_cvt_f64_f32"] = vector_op<own>([](float a) { return doubled(a); });
  t["v_cvt_f32_f64"] = vector_op<own>([](double a) { return singled(a); });
  t["v_cvt_f32_f16"] = vector_op<own>([](Half a) { return widen(a); });
  t["v_cvt_f16_f32"] = vector_op<own>([](float a) { return narrow_now(a); });
  t["v_cvt_f16_u16"] = vector_op([](uint16_t a) { return narrow_now(float(a)); });
  t["v_cvt_f16_i16"] = vector_op([](int16_t a) { return narrow_now(float(a)); });
  t["v_cvt_u16_f16"] = vector_op([](Half a) { return to_integer<uint16_t>(widen(a)); });
  t["v_cvt_i16_f16"] = vector_op([](Half a) { return to_integer<int16_t>(widen(a)); });
  t["v_cvt_f32_ubyte0"] = vector_op([](uint32_t a) { return float(a & 255); });
  t["v_cvt_f32_ubyte1"] = vector_op([](uint32_t a) { return float(a >> 8 & 255); });
  t["v_cvt_f32_ubyte2"] = vector_op([](uint32_t a) { return float(a >> 16 & 255); });
  t["v_cvt_f32_ubyte3"] = vector_op([](uint32_t a) { return float(a >> 24); });
  t["v_cvt_pkrtz_f16_f32"] = vector_op([](float a, float b) { return packed_towards_zero(a, b); });
  t["v_cvt_off_f32_i4"] = vector_op([](uint32_t a) { return float(int(a & 15) - int(a & 8) * 2) / 16; });
  const bool ocp = isa == Isa::cdna4;
  const Action from_fp8 = ocp ? &two_from_fp8<widen_ocp8<4>> : &two_from_fp8<widen8<4>>;
  const Action to_fp8 = ocp ? &two_to_fp8<narrow_ocp8> : &two_to_fp8<narrow8<4>>;
  t["v_cvt_pk_f32_fp8"] = {from_fp8, Unit::vector, 4, 1, {Type::f32, Type::b32}};
  t["v_cvt_pk_fp8_f32"] = {to_fp8, Unit::vector, 4, 1, {Type::b32, Type::f32, Type::f32}};
  t["v_cvt_pk_u8_f32"] = vector_op([](float a, uint32_t at, uint32_t old) { return with_byte(a, at, old); });
}

}  // namespace gfx942
