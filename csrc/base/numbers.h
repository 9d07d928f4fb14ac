// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include <numbers>

namespace xlstm {

// e^x is 2^(kLog2E x), and log x is kLn2 log2 x. std::numbers has these constants in double.
constexpr float kLog2E = std::numbers::log2e_v<float>, kLn2 = std::numbers::ln2_v<float>;

// all / each, rounded up. Static, because files for several instruction sets must not leave a copy to the linker.
static constexpr int64_t ceil_div(int64_t all, int64_t each) { return (all + each - 1) / each; }

}  // namespace xlstm
