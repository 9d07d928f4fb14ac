// SPDX-License-Identifier: Apache-2.0
// The three instructions around a division by Newton's steps: scale so that nothing under- or overflows, undo the scale
// in the last step, put in what IEEE asks of zeros, infinities and NaN.
#include "operations.h"

namespace gfx942 {
namespace {

template <class T>
struct Format;
template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr int kFraction = 23, kMost = 255, kFar = 96, kScale = 64, kTiny = 23, kUnderflow = -150;
};
template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr int kFraction = 52, kMost = 2047, kFar = 768, kScale = 128, kTiny = 53, kUnderflow = -1075;
};

template <class T>
int exponent(T x) {  // as it is encoded
  return int(std::bit_cast<typename Format<T>::Bits>(x) >> Format<T>::kFraction) & Format<T>::kMost;
}
template <class T>
bool is_denormal(T x) {
  return x != 0 && exponent(x) == 0;
}

// `x` is the denominator or the numerator.
template <class T>
T scaled(T x, T denominator, T numerator, bool& flag) {
  using F = Format<T>;
  flag = false;
  const T up = std::ldexp(x, F::kScale);
  if (numerator == 0 || denominator == 0) return default_nan<T>();
  if (exponent(numerator) - exponent(denominator) >= F::kFar) {
    flag = true;
    return x == denominator ? up : x;
  }
  if (is_denormal(denominator)) return up;
  const bool inverse = is_denormal(T(1) / denominator), quotient = is_denormal(numerator / denominator);
  const T down = std::ldexp(x, -F::kScale);
  if (inverse && quotient) {  // the ISA has "up" here, which would overflow: 1 / 2**127 would be NaN
    flag = true;
    return x == denominator ? down : x;
  }
  if (inverse) return down;
  if (quotient) {
    flag = true;
    return x == numerator ? up : x;
  }
  return exponent(numerator) <= F::kTiny ? up : x;
}

template <class T>
void div_scale(Wave& w, const Instruction& i) {
  refuse_clamp(w, i);
  Mask defined = ~Mask(0), flags = 0;
  Lanes<T> buffer[3], r;
  const T* x = source<T>(w, i, 0, buffer[0], defined);
  const T* denominator = source<T>(w, i, 1, buffer[1], defined);
  const T* numerator = source<T>(w, i, 2, buffer[2], defined);
  for (int l = 0; l < kLanes; ++l) {
    bool flag;
    r.lane[l] = scaled(x[l], denominator[l], numerator[l], flag);
    flags |= Mask(flag) << l;
  }
  store_lanes(w, i, i.operand[0], r, defined, w.exec());
  w.set_lane_mask(i, i.operand[1], flags, defined);
}

// (a * b + c) * 2**by, rounded once: a quotient may be denormal. The product is exact in a wider float, and the sum
// rounded to odd there, which the rounding to T does not notice.
template <class T>
T scaled_sum(T a, T b, T c, int by) {
  using Wide = std::conditional_t<sizeof(T) == 4, double, __float128>;
  using Bits = std::conditional_t<sizeof(T) == 4, uint64_t, unsigned __int128>;
  const Wide product = Wide(a) * b, sum = product + c, back = sum - product;
  const Wide rest = (product - (sum - back)) + (c - back);
  Bits bits = std::bit_cast<Bits>(sum);
  if (rest != 0 && !(bits & 1)) bits += (rest > 0) == (sum > 0) ? Bits(1) : ~Bits(0);
  return T(std::bit_cast<Wide>(bits) * Wide(std::ldexp(1.0, by)));
}

template <class T>
void div_fmas(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0);
  Lanes<T> buffer[3], r;
  const T* a = source<T, false>(w, i, 0, buffer[0], defined);
  const T* b = source<T, false>(w, i, 1, buffer[1], defined);
  const T* c = source<T, false>(w, i, 2, buffer[2], defined);
  w.check_arrived(i, kVcc, 2);
  const Mask flags = w.pair(kVcc);
  defined &= w.pair_defined(kVcc);
  for (int l = 0; l < kLanes; ++l) {
    r.lane[l] = std::fma(a[l], b[l], c[l]);
    if (!(flags >> l & 1) || !std::isfinite(a[l]) || !std::isfinite(b[l]) || !std::isfinite(c[l])) continue;
    const bool large = exponent(c[l]) > Format<T>::kMost / 2;
    r.lane[l] = scaled_sum(a[l], b[l], c[l], large ? Format<T>::kScale : -Format<T>::kScale);
  }
  name_nans(r, a, b, c);
  finish(w, i, r);
  store_lanes(w, i, i.destination(), r, defined, w.exec());
}

template <class T>
T fixed(T quotient, T denominator, T numerator) {
  using F = Format<T>;
  const T sign = std::signbit(denominator) != std::signbit(numerator) ? T(-1) : T(1);
  const T infinity = std::numeric_limits<T>::infinity();
  if (is_nan(numerator)) return quiet(numerator);
  if (is_nan(denominator)) return quiet(denominator);
  if (numerator == 0 && denominator == 0) return negated(default_nan<T>());
  if (std::isinf(numerator) && std::isinf(denominator)) return negated(default_nan<T>());
  if (denominator == 0 || std::isinf(numerator)) return sign * infinity;
  if (std::isinf(denominator) || numerator == 0) return sign * T(0);
  if (exponent(numerator) - exponent(denominator) < F::kUnderflow) return sign * T(0);
  // Newton's steps make infinities and NaN of what overflows. (The ISA has the denominator's exponent here, which
  // cannot be that large after the lines above.)
  if (exponent(quotient) == F::kMost) return sign * infinity;
  return sign * magnitude(quotient);
}

template <class T>
Operation scale_op() {
  return {&div_scale<T>, Unit::vector, 4, 2, {kType<T>, Type::b64, kType<T>, kType<T>, kType<T>}};
}
template <class T>
Operation fmas_op() {
  return {&div_fmas<T>, Unit::vector, 4, 1, {kType<T>, kType<T>, kType<T>, kType<T>}};
}

}  // namespace

void add_divisions(Table& t) {
  t["v_div_scale_f32"] = scale_op<float>(), t["v_div_scale_f64"] = scale_op<double>();
  t["v_div_fmas_f32"] = fmas_op<float>(), t["v_div_fmas_f64"] = fmas_op<double>();
  t["v_div_fixup_f32"] = vector_op<Nan::as_computed>([](float q, float d, float n) { return fixed(q, d, n); });
  t["v_div_fixup_f64"] = vector_op<Nan::as_computed>([](double q, double d, double n) { return fixed(q, d, n); });
}

}  // namespace gfx942
