// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include <numbers>

namespace xlstm {

// e^x is 2^(kLog2E x), and log x is kLn2 log2 x. In double: std::numbers.
constexpr float kLog2E = std::numbers::log2e_v<float>, kLn2 = std::numbers::ln2_v<float>;

// How many of `each` hold `all`. Of files for several instruction sets no copy may be left to the linker.
static constexpr int64_t ceil_div(int64_t all, int64_t each) { return (all + each - 1) / each; }

}  // namespace xlstm
