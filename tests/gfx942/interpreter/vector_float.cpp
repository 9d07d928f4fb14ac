// SPDX-License-Identifier: Apache-2.0
// Float arithmetic of a lane. float and double round once by the host; 16-bit floats are computed where the result is
// exact and then rounded. Approximations (exp, rcp, ...) are within 1 ulp on hardware, whose bits are not published:
// here they are the nearest float, without denormals where those instructions neither take nor give them.
#include "operations.h"

namespace gfx942 {
namespace {

// The largest is left out, and the larger of the others is it: equal zeros are no order, as the ISA says it.
template <class T>
T middle(const Mode& m, T a, T b, T c) {
  if (is_nan(a) || is_nan(b) || is_nan(c)) return smaller(m, smaller(m, a, b), c);
  const T most = larger(m, larger(m, a, b), c);
  return most == a ? larger(m, b, c) : most == b ? larger(m, a, c) : larger(m, a, b);
}

// Results that the hardware approximates. Out of a function's domain they are a negative NaN.
template <class T>
T valid(T x, T result) {
  return is_nan(x) ? quiet(x) : is_nan(result) ? negated(default_nan<T>()) : result;
}
// No denormals on either side.
template <class F>
float approximate(float x, F f) {
  return valid(x, flushed(float(f(double(flushed(x))))));
}
// Of a double the hardware gives a start for Newton's steps: about as good as a float. Code that forgets the steps is
// found out only if the interpreter gives no more.
double as_good_as_a_float(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int e;
  const double m = std::frexp(x, &e);
  return std::ldexp(double(float(m)), e);
}
template <class F>
Half of_half(Half x, F f) {
  return narrow_now(f(double(widen(x))));
}
template <class F>
Half approximate(Half x, F f) {
  return valid(x, of_half(x, f));
}

// Sine and cosine of x turns, by the nearest quarter of one, so that quarters are exact.
double turned(double x, int quarters) {
  const double rest = std::fmod(x, 1), nearest = __builtin_roundeven(4 * rest);
  const double angle = 2 * M_PI * (rest - nearest / 4);
  const int at = (int(nearest) + quarters) & 3;
  const double y = at & 1 ? std::cos(angle) : std::sin(angle);
  return at & 2 ? 0 - y : y;
}
double turns_sin(double x) { return x == 0 ? x : std::isfinite(x) ? turned(x, 0) : default_nan<double>(); }
double turns_cos(double x) { return std::isfinite(x) ? turned(x, 1) : default_nan<double>(); }
template <class T>
T fraction(T x) {
  return x - std::floor(x);
}
template <class T>
int exponent(T x) {
  if (x == 0 || !std::isfinite(x)) return 0;
  int e;
  std::frexp(x, &e);
  return e;
}
template <class T>
T mantissa(T x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int e;
  return std::frexp(x, &e);
}

struct Larger {
  float operator()(const Mode& m, float a, float b) const { return larger(m, a, b); }
  static void lanes(const Mode& m, float* to, const float* a, const float* b) { larger_lanes(m, to, a, b); }
};
struct Smaller {
  float operator()(const Mode& m, float a, float b) const { return smaller(m, a, b); }
  static void lanes(const Mode& m, float* to, const float* a, const float* b) { smaller_lanes(m, to, a, b); }
};
struct LargestOfThree {
  float operator()(const Mode& m, float a, float b, float c) const { return larger(m, larger(m, a, b), c); }
  static void lanes(const Mode& m, float* to, const float* a, const float* b, const float* c) {
    larger_lanes(m, to, a, b);
    larger_lanes(m, to, to, c);
  }
};
struct SmallestOfThree {
  float operator()(const Mode& m, float a, float b, float c) const { return smaller(m, smaller(m, a, b), c); }
  static void lanes(const Mode& m, float* to, const float* a, const float* b, const float* c) {
    smaller_lanes(m, to, a, b);
    smaller_lanes(m, to, to, c);
  }
};

void add_singles(Table& t) {
  t["v_add_f32"] = vector_op([](float a, float b) { return a + b; });
  t["v_sub_f32"] = vector_op([](float a, float b) { return a - b; });
  t["v_subrev_f32"] = vector_op([](float a, float b) { return b - a; });
  t["v_mul_f32"] = vector_op([](float a, float b) { return a * b; });
  t["v_mul_legacy_f32"] = vector_op([](float a, float b) { return a == 0 || b == 0 ? 0.0f : a * b; });
  t["v_fma_f32"] = vector_op(Fused<float>{});
  t["v_fmamk_f32"] = t["v_fmaak_f32"] = t["v_fma_f32"];  // the constant stands where it belongs
  t["v_fmac_f32"] = accumulate_op(Fused<float>{});
  constexpr Nan own = Nan::as_computed;
  t["v_max_f32"] = vector_op<own>(Larger{});
  t["v_min_f32"] = vector_op<own>(Smaller{});
  t["v_max3_f32"] = vector_op<own>(LargestOfThree{});
  t["v_min3_f32"] = vector_op<own>(SmallestOfThree{});
  t["v_med3_f32"] = vector_op<own>([](const Mode& m, float a, float b, float c) { return middle(m, a, b, c); });
  t["v_trunc_f32"] = vector_op([](float a) { return std::trunc(a); });
  t["v_floor_f32"] = vector_op([](float a) { return std::floor(a); });
  t["v_ceil_f32"] = vector_op([](float a) { return std::ceil(a); });
  t["v_rndne_f32"] = vector_op([](float a) { return __builtin_roundevenf(a); });
  t["v_fract_f32"] = vector_op([](float a) { return std::min(fraction(a), 0x1.fffffep-1f); });
  t["v_ldexp_f32"] = vector_op([](float a, int32_t n) { return std::ldexp(a, n); });
  t["v_frexp_exp_i32_f32"] = vector_op([](float a) { return int32_t(exponent(a)); });
  t["v_frexp_mant_f32"] = vector_op([](float a) { return mantissa(a); });

  const auto slow = [&](const char* name, auto f) { t[name] = transcendental(vector_op<own>(f)); };
  slow("v_exp_f32", [](float a) { return approximate(a, [](double x) { return std::exp2(x); }); });
  slow("v_log_f32", [](float a) { return approximate(a, [](double x) { return std::log2(x); }); });
  slow("v_rcp_f32", [](float a) { return approximate(a, [](double x) { return 1 / x; }); });
  slow("v_rcp_iflag_f32", [](float a) { return approximate(a, [](double x) { return 1 / x; }); });
  slow("v_rsq_f32", [](float a) { return approximate(a, [](double x) { return 1 / std::sqrt(x); }); });
  slow("v_sqrt_f32", [](float a) { return approximate(a, [](double x) { return std::sqrt(x); }); });
  slow("v_sin_f32", [](float a) { return valid(a, float(turns_sin(a))); });
  slow("v_cos_f32", [](float a) { return valid(a, float(turns_cos(a))); });
}

void add_doubles(Table& t) {
  t["v_add_f64"] = vector_op([](double a, double b) { return a + b; });
  t["v_mul_f64"] = vector_op([](double a, double b) { return a * b; });
  t["v_fma_f64"] = vector_op(Fused<double>{});
  t["v_fmac_f64"] = accumulate_op(Fused<double>{});
  constexpr Nan own = Nan::as_computed;
  t["v_max_f64"] = vector_op<own>([](const Mode& m, double a, double b) { return larger(m, a, b); });
  t["v_min_f64"] = vector_op<own>([](const Mode& m, double a, double b) { return smaller(m, a, b); });
  t["v_trunc_f64"] = vector_op([](double a) { return std::trunc(a); });
  t["v_floor_f64"] = vector_op([](double a) { return std::floor(a); });
  t["v_ceil_f64"] = vector_op([](double a) { return std::ceil(a); });
  t["v_rndne_f64"] = vector_op([](double a) { return __builtin_roundeven(a); });
  t["v_fract_f64"] = vector_op([](double a) { return std::min(fraction(a), 0x1.fffffffffffffp-1); });
  t["v_ldexp_f64"] = vector_op([](double a, int32_t n) { return std::ldexp(a, n); });
  t["v_frexp_exp_i32_f64"] = vector_op([](double a) { return int32_t(exponent(a)); });
  t["v_frexp_mant_f64"] = vector_op([](double a) { return mantissa(a); });
  const auto slow = [&](const char* name, auto f) { t[name] = transcendental(vector_op<own>(f)); };
  slow("v_rcp_f64", [](double a) { return valid(a, as_good_as_a_float(1 / a)); });
  slow("v_rsq_f64", [](double a) { return valid(a, as_good_as_a_float(1 / std::sqrt(a))); });
  slow("v_sqrt_f64", [](double a) { return valid(a, as_good_as_a_float(std::sqrt(a))); });
}

void add_halves(Table& t) {
  t["v_add_f16"] = vector_op([](Half a, Half b) { return narrow_now(double(widen(a)) + widen(b)); });
  t["v_sub_f16"] = vector_op([](Half a, Half b) { return narrow_now(double(widen(a)) - widen(b)); });
  t["v_subrev_f16"] = vector_op([](Half a, Half b) { return narrow_now(double(widen(b)) - widen(a)); });
  t["v_mul_f16"] = vector_op([](Half a, Half b) { return narrow_now(double(widen(a)) * widen(b)); });
  constexpr Nan own = Nan::as_computed;
  t["v_max_f16"] = vector_op<own>([](const Mode& m, Half a, Half b) { return larger(m, a, b); });
  t["v_min_f16"] = vector_op<own>([](const Mode& m, Half a, Half b) { return smaller(m, a, b); });
  t["v_trunc_f16"] = vector_op([](Half a) { return of_half(a, [](double x) { return std::trunc(x); }); });
  t["v_floor_f16"] = vector_op([](Half a) { return of_half(a, [](double x) { return std::floor(x); }); });
  t["v_ceil_f16"] = vector_op([](Half a) { return of_half(a, [](double x) { return std::ceil(x); }); });
  t["v_rndne_f16"] = vector_op([](Half a) { return of_half(a, [](double x) { return __builtin_roundeven(x); }); });
  t["v_ldexp_f16"] = vector_op([](Half a, int16_t n) { return narrow_now(std::ldexp(double(widen(a)), n)); });
  t["v_frexp_exp_i16_f16"] = vector_op([](Half a) { return int16_t(exponent(widen(a))); });
  t["v_frexp_mant_f16"] = vector_op([](Half a) { return narrow_now(mantissa(widen(a))); });
  const auto slow = [&](const char* name, auto f) { t[name] = transcendental(vector_op<own>(f)); };
  slow("v_exp_f16", [](Half a) { return approximate(a, [](double x) { return std::exp2(x); }); });
  slow("v_log_f16", [](Half a) { return approximate(a, [](double x) { return std::log2(x); }); });
  slow("v_rcp_f16", [](Half a) { return approximate(a, [](double x) { return 1 / x; }); });
  slow("v_rsq_f16", [](Half a) { return approximate(a, [](double x) { return 1 / std::sqrt(x); }); });
  slow("v_sqrt_f16", [](Half a) { return approximate(a, [](double x) { return std::sqrt(x); }); });
  slow("v_sin_f16", [](Half a) { return approximate(a, turns_sin); });
  slow("v_cos_f16", [](Half a) { return approximate(a, turns_cos); });
}

}  // namespace

void add_vector_floats(Table& t) {
  add_singles(t);
  add_doubles(t);
  add_halves(t);
}

}  // namespace gfx942
