// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include "arch/compiler.h"

namespace xlstm::gpu {

// Calls f(0) to f(n - 1) with constants, unrolled for every n. A compiler may keep a loop as a loop, and with it the
// arrays that the loop indexes in memory.
template <int n, class F>
XLSTM_DEVICE void each_of(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (f(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, n>{});
}

}  // namespace xlstm::gpu
