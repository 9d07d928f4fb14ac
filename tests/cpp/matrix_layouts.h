// SPDX-License-Identifier: Apache-2.0
// The matrix instructions on the CPU. The layouts of their operands, lane and element of A[i][k], B[k][j] and D[i][j],
// come from the vendors' published maps alone. Waves are arrays by lane; numbers are integers, so sums are exact.
#pragma once

#include <array>
#include <cstdint>

namespace layouts {

template <int kLanes, int kElements>
using Wave = std::array<std::array<int64_t, kElements>, kLanes>;

// D += A B for an instruction of I x J x K, given as maps to (lane, element).
struct LaneElement {
  int lane, element;
};
template <int kI, int kJ, int kK, class A, class B, class D, class MapA, class MapB, class MapD>
void multiply_mapped(const A& a, const B& b, D& d, MapA&& at_a, MapB&& at_b, MapD&& at_d) {
  for (int i = 0; i < kI; ++i)
    for (int j = 0; j < kJ; ++j) {
      const LaneElement to = at_d(i, j);
      int64_t sum = d[to.lane][to.element];
      for (int k = 0; k < kK; ++k) {
        const LaneElement x = at_a(i, k), y = at_b(k, j);
        sum += a[x.lane][x.element] * b[y.lane][y.element];
      }
      d[to.lane][to.element] = sum;
    }
}

// v_mfma_f32_16x16x16_{f16,bf16_1k}: a lane has four k of a row or column, and four rows of D.
inline void mfma_16x16x16(const Wave<64, 4>& a, const Wave<64, 4>& b, Wave<64, 4>& d) {
  multiply_mapped<16, 16, 16>(
      a, b, d, [](int i, int k) { return LaneElement{16 * (k / 4) + i, k % 4}; },
      [](int k, int j) { return LaneElement{16 * (k / 4) + j, k % 4}; },
      [](int i, int j) { return LaneElement{16 * (i / 4) + j, i % 4}; });
}

// v_mfma_f32_16x16x4_f32: a lane has one k.
inline void mfma_16x16x4(const Wave<64, 1>& a, const Wave<64, 1>& b, Wave<64, 4>& d) {
  multiply_mapped<16, 16, 4>(
      a, b, d, [](int i, int k) { return LaneElement{16 * k + i, 0}; },
      [](int k, int j) { return LaneElement{16 * k + j, 0}; },
      [](int i, int j) { return LaneElement{16 * (i / 4) + j, i % 4}; });
}

// v_wmma_f32_16x16x16_{f16,bf16} of RDNA3: both halves of the wave have A and B, so `half` may be either; the lower
// half has the even rows of D.
inline void wmma_16x16x16(const Wave<32, 16>& a, const Wave<32, 16>& b, Wave<32, 8>& d, int half) {
  multiply_mapped<16, 16, 16>(
      a, b, d, [&](int i, int k) { return LaneElement{16 * half + i, k}; },
      [&](int k, int j) { return LaneElement{16 * half + j, k}; },
      [](int i, int j) { return LaneElement{16 * (i % 2) + j, i / 2}; });
}

// v_wmma_f32_16x16x16_{f16,bf16} of RDNA4: a lane has eight k of a row or column, and eight rows of D. AMD publishes
// two maps of k. Both halves of a wave and all elements of a lane meet the same ones of the other operand in either, so
// the same registers make the same sums. `interleaved`: the matrix instruction calculator's map, in which the halves of
// the wave alternate every four k; otherwise that of the text on RDNA4's matrix cores, in which each half has eight in
// turn.
inline void wmma_gfx12_16x16x16(const Wave<32, 8>& a, const Wave<32, 8>& b, Wave<32, 8>& d, bool interleaved) {
  const auto operand = [&](int side, int k) {
    return interleaved ? LaneElement{16 * (k / 4 % 2) + side, 4 * (k / 8) + k % 4}
                       : LaneElement{16 * (k / 8) + side, k % 8};
  };
  multiply_mapped<16, 16, 16>(
      a, b, d, [&](int i, int k) { return operand(i, k); }, [&](int k, int j) { return operand(j, k); },
      [](int i, int j) { return LaneElement{16 * (i / 8) + j, i % 8}; });
}

// mma.sync.m16n8k16: a register w of two elements is here elements 2 w and 2 w + 1.
inline void mma_m16n8k16(const Wave<32, 8>& a, const Wave<32, 4>& b, Wave<32, 4>& d) {
  multiply_mapped<16, 8, 16>(
      a, b, d, [](int i, int k) { return LaneElement{4 * (i % 8) + k % 8 / 2, 4 * (k / 8) + 2 * (i / 8) + k % 2}; },
      [](int k, int j) { return LaneElement{4 * j + k % 8 / 2, 2 * (k / 8) + k % 2}; },
      [](int i, int j) { return LaneElement{4 * (i % 8) + j / 2, 2 * (i / 8) + j % 2}; });
}

// ldmatrix.m8n8.x4 of 2-byte elements: lane 8 m + i supplies the address of row i of matrix m. A lane receives from
// each matrix two neighbours of a row, or of a column where it transposes. element(lane, j) reads the element j behind
// a lane's address.
template <class Element>
Wave<32, 8> ldmatrix(bool transposed, Element&& element) {
  Wave<32, 8> r{};
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m)
      for (int e = 0; e < 2; ++e)
        r[lane][2 * m + e] =
            transposed ? element(8 * m + 2 * (lane % 4) + e, lane / 4) : element(8 * m + lane / 4, 2 * (lane % 4) + e);
  return r;
}

}  // namespace layouts
