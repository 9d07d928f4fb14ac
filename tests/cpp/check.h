// SPDX-License-Identifier: Apache-2.0
// CHECK(condition, format, arguments...) counts a failure and continues; main ends with `return finish()`.
#pragma once

#include <cmath>
#include <cstdio>
#include <initializer_list>

inline int failures = 0;

#define CHECK(condition, ...)                                           \
  do {                                                                  \
    if (!(condition) && ++failures <= 20) {                             \
      std::printf("%s:%d: CHECK(%s) ", __FILE__, __LINE__, #condition); \
      std::printf(" " __VA_ARGS__);                                     \
      std::printf("\n");                                                \
    }                                                                   \
  } while (0)

inline int finish() {
  if (failures) std::printf("%d failures\n", failures);
  return failures ? 1 : 0;
}

// |x - expected| / |expected|, or the absolute error where zero is expected. Equal values, also infinities and NaN,
// have error 0.
inline double relative_error(double x, double expected) {
  if (x == expected || (std::isnan(x) && std::isnan(expected))) return 0;
  const double error = std::fabs(x - expected) / (expected == 0 ? 1 : std::fabs(expected));
  return std::isnan(error) ? INFINITY : error;
}
