// SPDX-License-Identifier: Apache-2.0
// Conversions. To integers: towards zero, the nearest that fits, NaN is 0.
#include <limits>

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

}  // namespace

void add_conversions(Table& t) {
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
  t["v_cvt_pk_u8_f32"] = vector_op([](float a, uint32_t at, uint32_t old) { return with_byte(a, at, old); });
}

}  // namespace gfx942
