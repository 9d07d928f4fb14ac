// SPDX-License-Identifier: Apache-2.0
// arch/cpu/vector.h of the portable instruction set: conversions over every 16-bit pattern, exp over its range.
// test_mlstm_rounding.cpp tests the conversions of the other sets.
#include <cmath>
#include <cstring>
#include <vector>

#include "arch/cpu/vector.h"
#include "check.h"
#include "formats.h"

using namespace xlstm::portable;

namespace {

float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

template <class ToFloat>
void test_widening(const char* name, const Format& format, ToFloat to_float) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = format.decode(uint16_t(bits));
    const float x = to_float(uint16_t(bits));
    CHECK(std::isnan(expected) ? std::isnan(x) : x == expected, "%s %04x: %g", name, bits, x);
    CHECK(std::isnan(expected) || std::signbit(x) == std::signbit(expected), "%s %04x", name, bits);
  }
}

template <class FromFloat>
void test_one_rounding(const char* name, const Format& format, FromFloat from_float, float x) {
  const uint16_t got = from_float(x), expected = format.encode(x);
  if (std::isnan(x)) {
    const uint16_t quiet = uint16_t(1 << (format.fraction_bits - 1));
    CHECK(std::isnan(format.decode(got)) && (got & quiet), "%s NaN %08x: %04x", name, bits_of(x), got);
  } else {
    CHECK(got == expected, "%s %a: %04x, not %04x", name, x, got, expected);
  }
}

// Every pattern, the ties between neighbours with the floats on either side of each, and floats of all magnitudes.
template <class FromFloat>
void test_narrowing(const char* name, const Format& format, FromFloat from_float) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double x = format.decode(uint16_t(bits)), next = format.decode(uint16_t(bits + 1));
    test_one_rounding(name, format, from_float, float(x));
    if (!std::isnan(x)) CHECK(from_float(float(x)) == bits, "%s %04x", name, bits);
    // The tie before infinity is the one with the number that would follow the largest.
    const double above = std::isinf(next) ? 2 * x - format.decode(uint16_t(bits - 1)) : next;
    const float tie = float((x + above) / 2);
    if (std::isnan(x) || std::isnan(above) || std::isinf(x)) continue;
    CHECK(tie == (x + above) / 2);
    test_one_rounding(name, format, from_float, tie);
    test_one_rounding(name, format, from_float, std::nextafterf(tie, INFINITY));
    test_one_rounding(name, format, from_float, std::nextafterf(tie, -INFINITY));
  }
  for (uint64_t bits = 0; bits < (uint64_t(1) << 32); bits += 4999)
    test_one_rounding(name, format, from_float, from_bits(uint32_t(bits)));
  for (uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
    test_one_rounding(name, format, from_float, from_bits(nan));
}

// load_row and store_row, at every length around that of a vector and from an odd offset.
void test_rows() {
  const std::vector<xlstm_dtype> dtypes{XLSTM_FLOAT32, XLSTM_BFLOAT16, XLSTM_FLOAT16, XLSTM_FLOAT64};
  for (xlstm_dtype dtype : dtypes)
    for (int64_t n = 0; n <= 40; ++n) {
      std::vector<double> memory(n + 5, -7.0);  // 8 bytes an element: enough for any dtype
      std::vector<float> from(n), to(n);
      std::vector<double> wide(n);
      for (int64_t j = 0; j < n; ++j) from[j] = float(j) - 3.5f;
      store_row(memory.data(), dtype, 3, from.data(), n);
      load_row(to.data(), memory.data(), dtype, 3, n);
      load_row(wide.data(), memory.data(), dtype, 3, n);
      for (int64_t j = 0; j < n; ++j) {
        CHECK(to[j] == from[j] && wide[j] == from[j], "dtype %d n %d at %d", int(dtype), int(n), int(j));
        CHECK(widen<double>(memory.data(), dtype, 3 + j) == from[j]);
      }
    }
}

double ulps(float x, double expected) {
  if (relative_error(x, expected) == 0) return 0;
  int exponent;
  std::frexp(expected, &exponent);
  return std::fabs(x - expected) / std::ldexp(1.0, exponent - 24);
}

float exp_of(float x) {
  float lanes[kLanes<float>];
  for (float& lane : lanes) lane = x;
  store(lanes, exp(load(lanes)));
  return lanes[kLanes<float> - 1];
}

void test_exp() {
  double worst = 0, at = 0;
  for (double x = -87.3; x <= 88.3; x += 1.7e-4) {
    const double error = ulps(exp_of(float(x)), std::exp(double(float(x))));
    if (error > worst) worst = error, at = x;
  }
  std::printf("exp: at most %.2f ulp, at %g\n", worst, at);
  CHECK(worst <= 2);
  CHECK(exp_of(0.f) == 1 && exp_of(-0.f) == 1);
  CHECK(exp_of(1e-30f) == 1 && exp_of(-1e-38f) == 1);
  for (float x : {-88.f, -104.f, -1e4f, -1e30f, -INFINITY}) CHECK(exp_of(x) == 0, "%g: %g", x, exp_of(x));
  for (float x : {89.f, 1e4f, 1e30f, INFINITY}) CHECK(exp_of(x) == INFINITY, "%g: %g", x, exp_of(x));
  CHECK(std::isnan(exp_of(NAN)));

  for (double x : {-745.0, -87.5, -1.0, 0.0, 1e-9, 700.0, 1000.0, -HUGE_VAL, std::nan("")}) {
    double lanes[kLanes<double>];
    for (double& lane : lanes) lane = x;
    store(lanes, exp(load(lanes)));
    CHECK(relative_error(lanes[0], std::exp(x)) == 0, "%g: %g", x, lanes[0]);
  }
}

void test_broadcast() {
  for (float value : {1.5f, -0.f, INFINITY}) {
    float lanes[kLanes<float>];
    store(lanes, broadcast(value));
    for (float lane : lanes) CHECK(lane == value && std::signbit(lane) == std::signbit(value), "%g", value);
  }
}

}  // namespace

int main() {
  test_widening("bfloat16", kBfloat16, bf16_to_float);
  test_widening("float16", kFloat16, half_to_float);
  test_narrowing("bfloat16", kBfloat16, float_to_bf16);
  test_narrowing("float16", kFloat16, float_to_half);
  test_rows();
  test_exp();
  test_broadcast();
  return finish();
}
