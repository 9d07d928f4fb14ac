// SPDX-License-Identifier: Apache-2.0
// What tests of products draw weights and x's from.
#pragma once

#include <random>

class Numbers {
 public:
  explicit Numbers(uint32_t seed = 7) : random_(seed) {}
  double operator()() { return normal_(random_); }
  int integer(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

 private:
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};
