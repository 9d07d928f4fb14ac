// SPDX-License-Identifier: Apache-2.0
// A walk with random numbers in the place of everything that it reads, and what must come out, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "mlstm/chunkwise/launch.h"
#include "mlstm/recurrence.h"

namespace xlstm::gpu::mlstm {

// plain: dv; gained: h with scores and normalisers that were made before; scored: h that makes them; flowing: dq, dk.
enum class Kind { plain, gained, scored, flowing };

struct WalkCase {
  Kind kind;
  int rows;  // the kernel's
  int length, x_columns, y_columns;
  bool reverse = false, state_in = true;
  int segments = 1;
  std::vector<float> decays = {0.3f, 1e-30f, 0.9f, 1e-7f, 1e-8f, 0.5f, 0.0f, 0.8f};  // of the chunks, over and over
};

inline std::string described(const WalkCase& c) {
  const char* kinds[] = {"plain", "gained", "scored", "flowing"};
  return std::string(kinds[int(c.kind)]) + " walk of " + std::to_string(c.rows) + " rows, " + std::to_string(c.length) +
         " tokens, " + std::to_string(c.x_columns) + " by " + std::to_string(c.y_columns) +
         (c.reverse ? ", back" : "") + (c.state_in ? ", from a state" : "") + ", segments " +
         std::to_string(c.segments);
}

// Room on the device: NaN to begin with, at a multiple of 256 bytes as the Arena's is.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : lines_(size_t(count) * sizeof(T) / 256 + 2), count_(count) {
    std::fill_n(reinterpret_cast<unsigned char*>(lines_.data()), lines_.size() * 256, 0xff);
  }
  T* data() { return reinterpret_cast<T*>(lines_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(lines_.data()); }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return count_; }

 private:
  struct alignas(256) Line {
    unsigned char byte[256];
  };
  std::vector<Line> lines_;
  int64_t count_;
};

// (1, heads, length, columns) of bfloat16; in memory heads lie side by side in each token.
class TokenArray {
 public:
  TokenArray(int heads, int length, int columns)
      : heads_(heads), columns_(columns), data_(int64_t(heads) * length * columns) {}

  Tokens tokens() { return {data_.data(), {data_.size(), columns_, int64_t(heads_) * columns_}, columns_, 1, true}; }
  uint16_t& bits(int head, int token, int column) {
    return data_[(int64_t(token) * heads_ + head) * columns_ + column];
  }
  double at(int head, int token, int column) { return to_float(BFloat16{bits(head, token, column)}); }
  template <class F>
  void fill(F&& next) {
    for (int64_t i = 0; i < data_.size(); ++i) data_[i] = from_float<BFloat16>(float(next())).bits;
  }

 private:
  int heads_, columns_;
  DeviceArray<uint16_t> data_;
};

class WalkProblem {
 public:
  static constexpr int kHeads = 2, kChunk = kHopperChunk;

  explicit WalkProblem(const WalkCase& of, unsigned seed = 1);

  void run();
  // How far results are from the truth: of what rounding can do, at most 1. Empty where that holds.
  std::string compare();

 private:
  float& factor(int64_t slot, Factor which, int token) { return factors_[(slot * kFactors + which) * kChunk + token]; }
  float& measure(int64_t slot, HopperGateTerm which, int token) {
    return measures_[slot * kGateTermFloats + which * kChunk + token];
  }
  double score(int head, int64_t slot, int t, int s);  // what token s gives to token t, before it is rounded

  WalkCase case_;
  HopperShape shape_;
  int slots_, tiles_;
  int64_t padded_;  // tokens, of whole chunks
  WalkPlan plan_{};
  TokenArray a_, x_, y_, out_, with_;
  DeviceArray<uint16_t> scores_;
  DeviceArray<float> factors_, decay_, vector_, dots_, state_in_, state_out_, dc_last_, state_dots_, measures_, n_in_,
      n_last_, l_;
};

}  // namespace xlstm::gpu::mlstm
