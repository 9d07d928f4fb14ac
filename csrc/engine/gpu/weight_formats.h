// SPDX-License-Identifier: Apache-2.0
// Dequantises weights: 8 features at a time become bfloat16 operands, exactly; float16 becomes the sum of two bfloat16.
// Scales and offsets of groups are applied to sums.
#pragma once

#include "arch/operands.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

struct Bfloat16Weights {
  static constexpr int kBits = 16, kParts = 1;
  static constexpr bool kGroups = false, kConverted = false, kIntegers = false;
  using Load = Vec16;

  XLSTM_DEVICE static void to_bfloat16(const Load& load, int, Vec16 (&part)[1]) { part[0] = load; }
};

struct Float16Weights {
  static constexpr int kBits = 16, kParts = 2;
  static constexpr bool kGroups = false, kConverted = true, kIntegers = false;
  using Load = Vec16;

  XLSTM_DEVICE static void to_bfloat16(const Load& load, int, Vec16 (&part)[2]) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {  // float16 has 11 bits: truncation to bfloat16 keeps 8, the remainder has 3
      const float low = low_float(Float16{}, load.word[w]), high = high_float(Float16{}, load.word[w]);
      part[0].word[w] = pack_truncated(low, high);
      part[1].word[w] = pack_truncated(rest_of_truncation(low), rest_of_truncation(high));
    }
  }
};

// Quantised weights are multiplied as q - kZero, where kIntegers as q in a product of bytes. Without offsets a weight
// means scale * (q - kMiddle). Of 8 bits: Q::bytes<n>() has bytes n and n + 2 of a register as two bfloat16.
template <class Q>
struct Weights8 {
  static constexpr int kBits = 8, kParts = 1, kZero = 0, kMiddle = 0;
  static constexpr bool kGroups = true, kConverted = true, kIntegers = Q::kIntegers;
  using Load = Vec16;

  XLSTM_DEVICE static void to_bfloat16(const Load& load, int n, Vec16 (&part)[1]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      part[0].word[2 * w] = Q::template bytes<0>(load.word[2 * n + w]);
      part[0].word[2 * w + 1] = Q::template bytes<1>(load.word[2 * n + w]);
    }
  }
};
struct SignedBytes {
  static constexpr bool kIntegers = true;
  template <int n>
  XLSTM_DEVICE static uint32_t bytes(uint32_t word) {
    return signed_bytes<n>(word);
  }
};
template <class F>
struct Float8Bytes {
  static constexpr bool kIntegers = false;
  template <int n>
  XLSTM_DEVICE static uint32_t bytes(uint32_t word) {
    return float8_bytes<F, n>(word);
  }
};
struct ByteWeights : Weights8<SignedBytes> {
  // As signed bytes, the nth 8 features.
  XLSTM_DEVICE static void to_bytes(const Load& load, int n, uint32_t (&word)[2]) {
    word[0] = load.word[2 * n], word[1] = load.word[2 * n + 1];
  }
};
struct E4m3fnWeights : Weights8<Float8Bytes<Float8E4m3fn>> {};
struct E4m3fnuzWeights : Weights8<Float8Bytes<Float8E4m3fnuz>> {};

struct NibbleWeights {
  static constexpr int kBits = 4, kParts = 1, kZero = -16, kMiddle = 8;
  static constexpr bool kGroups = true, kConverted = true, kIntegers = true;
  struct alignas(8) Load {
    uint32_t word[2];
  };

  XLSTM_DEVICE static void to_bfloat16(const Load& load, int n, Vec16 (&part)[1]) {
#pragma unroll
    for (int w = 0; w < 2; ++w)
#pragma unroll
      for (int h = 0; h < 2; ++h) part[0].word[2 * w + h] = nibbles_and_16(load.word[w], n + 2 * h);
  }
  XLSTM_DEVICE static void to_bytes(const Load& load, int n, uint32_t (&word)[2]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) word[w] = load.word[w] >> 4 * n & 0x0f0f0f0fu;
  }
};

// Calls f(element) for the dtype of scales and offsets: one branch for all of a step's.
template <class F>
XLSTM_DEVICE void with_dtype(xlstm_dtype dtype, F&& f) {
  if (dtype == XLSTM_BFLOAT16)
    f(BFloat16{});
  else
    f(Float16{});
}

}  // namespace xlstm::gpu::engine
