// SPDX-License-Identifier: Apache-2.0
// Tests mlstm/recurrence.h against the same formulas in long double.
#include <limits>

#include "check.h"
#include "mlstm/recurrence.h"

using namespace xlstm;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kTolerance = 8 * std::numeric_limits<double>::epsilon();

bool near(double x, long double expected) { return relative_error(x, double(expected)) <= kTolerance; }

void test_sigmoids() {
  for (double x = -800; x <= 800; x += 0.37) {
    const long double e = std::exp(-std::fabs((long double)x));
    const long double log_sigmoid_x = (x < 0 ? (long double)x : 0.0L) - std::log1p(e);
    const long double sigmoid_x = (x < 0 ? e : 1.0L) / (1 + e);
    // Below e^-745 a double is zero.
    CHECK(near(log_sigmoid(x), log_sigmoid_x) || std::fabs(log_sigmoid_x) < 1e-300L, "x %g: %g", x, log_sigmoid(x));
    CHECK(near(sigmoid(x), sigmoid_x) || sigmoid_x < 1e-300L, "x %g: %g", x, sigmoid(x));
  }
  CHECK(log_sigmoid(0) == -std::log(2.0));
  CHECK(log_sigmoid(-kInfinity) == -kInfinity);
  CHECK(log_sigmoid(kInfinity) == 0);
  CHECK(log_sigmoid(-1e300) == -1e300);
  CHECK(std::isnan(log_sigmoid(kNan)));
  CHECK(sigmoid(0) == 0.5);
  CHECK(sigmoid(-kInfinity) == 0);
  CHECK(sigmoid(kInfinity) == 1);
  CHECK(std::isnan(sigmoid(kNan)));
}

void test_stabiliser() {
  CHECK(nan_max(1, 2) == 2);
  CHECK(nan_max(2, 1) == 2);
  CHECK(nan_max(-kInfinity, -kInfinity) == -kInfinity);
  CHECK(std::isnan(nan_max(kNan, 1)));
  CHECK(std::isnan(nan_max(1, kNan)));
  for (double lf : {-60.0, -1.0, 0.0, -kInfinity})
    for (double m : {-5.0, 0.0, 7.0})
      for (double ig : {-60.0, -1.0, 0.0, 60.0}) {
        const double expected = lf + m > ig ? lf + m : ig;
        CHECK(next_stabiliser(false, lf, m, ig) == expected, "lf %g m %g ig %g", lf, m, ig);
        CHECK(next_stabiliser(true, lf, m, ig) == 0);
        CHECK(keeps_stabiliser(lf, m, ig) == (expected != ig));
      }
  CHECK(std::isnan(next_stabiliser(false, kNan, 0, 0)));
  CHECK(std::isnan(next_stabiliser(false, 0, 0, kNan)));
}

long double exact_normaliser(long double l, long double m, long double eps) {
  return std::max(std::fabs(l), std::exp(-m)) + eps;
}

// The normaliser, and its gradient tested against differences.
void test_normaliser() {
  constexpr long double step = 1e-5L;
  for (double l : {-3.0, -0.2, 0.1, 0.4, 2.5})
    for (double m : {-1.5, 0.0, 0.7, 40.0})
      for (double eps : {0.0, 1e-6, 0.3}) {
        CHECK(near(normaliser(true, l, m, eps), exact_normaliser(l, m, eps)), "l %g m %g eps %g", l, m, eps);
        CHECK(normaliser(false, l, m, eps) == 1);
        // h = num / N with num = 1, so dot = dh h = 1 / N and dL = d(1 / N).
        const long double n = exact_normaliser(l, m, eps);
        const NormaliserGrad grad = normaliser_grad(true, l, m, eps, double(1 / n));
        const auto h_at_l = [&](long double x) { return 1 / exact_normaliser(x, m, eps); };
        // A change d of m scales num and l by e^-d.
        const auto h_at_m = [&](long double d) {
          return std::exp(-d) / exact_normaliser(l * std::exp(-d), m + d, eps);
        };
        const double dl = double(n * (h_at_l(l + step) - h_at_l(l - step)) / (2 * step));
        const double dm = double((h_at_m(step) - h_at_m(-step)) / (2 * step));
        CHECK(std::fabs(grad.dl_times_n - dl) <= 1e-8 * (1 + std::fabs(dl)), "l %g m %g eps %g: %g, not %g", l, m, eps,
              grad.dl_times_n, dl);
        CHECK(std::fabs(grad.dm - dm) <= 1e-8 * (1 + std::fabs(dm)), "l %g m %g eps %g: %g, not %g", l, m, eps, grad.dm,
              dm);
        const NormaliserGrad none = normaliser_grad(false, l, m, eps, 1.0);
        CHECK(none.dl_times_n == 0 && none.dm == 0);
      }
  CHECK(std::isnan(normaliser(true, kNan, 0, 1e-6)));
  CHECK(std::isnan(normaliser(true, 0, kNan, 1e-6)));
  CHECK(normaliser(true, 0, -1e4, 1e-6) == kInfinity);
}

}  // namespace

int main() {
  test_sigmoids();
  test_stabiliser();
  test_normaliser();
  return finish();
}
