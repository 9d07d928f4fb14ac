// SPDX-License-Identifier: Apache-2.0
// Each family's operands on the CPU: loaded from an LDS tile as csrc/arch/amd/{cdna,rdna}.h and csrc/arch/nvidia/mma.h
// load them, and multiplied by the published layouts.
#pragma once

#include <random>
#include <vector>

#include "arch/layouts.h"
#include "check.h"
#include "lds.h"
#include "matrix_layouts.h"

namespace operands {

using namespace xlstm::gpu;
using layouts::Wave;

constexpr Family kFamilies[] = {Family::nvidia, Family::cdna, Family::rdna, Family::rdna4};
inline const char* name(Family f) {
  constexpr const char* kNames[] = {"nvidia", "cdna", "rdna", "rdna4"};
  return kNames[int(f)];
}

// ---- memory and matrices

struct Matrix {
  int rows, columns;
  std::vector<int64_t> value;
  Matrix(int r, int c) : rows(r), columns(c), value(r * c) {}
  int64_t& operator()(int r, int c) { return value[r * columns + c]; }
  int64_t operator()(int r, int c) const { return value[r * columns + c]; }
};
inline Matrix random_matrix(int rows, int columns, unsigned seed) {
  Matrix m(rows, columns);
  std::mt19937 g(seed);
  for (int64_t& x : m.value) x = int64_t(g() % 201) - 100;
  return m;
}
inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < b.columns; ++j)
      for (int k = 0; k < a.columns; ++k) c(i, j) += a(i, k) * b(k, j);
  return c;
}
inline Matrix transposed(const Matrix& a) {
  Matrix b(a.columns, a.rows);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < a.columns; ++j) b(j, i) = a(i, j);
  return b;
}

// A matrix in an LDS tile, element by element through the swizzle.
struct Stored {
  lds::Tile tile;
  std::vector<int64_t> memory;
  Stored(Family f, int bytes, const Matrix& m) : tile{f, bytes, m.rows, m.columns}, memory(m.rows * m.columns) {
    for (int r = 0; r < m.rows; ++r)
      for (int c = 0; c < m.columns; ++c) memory[tile.at(r, c) / bytes] = m(r, c);
  }
  // The element `next` behind (row, column), as a lane's vector read has it.
  int64_t at(int row, int column, int next = 0) const {
    return memory[tile.at(row, column) / tile.element_bytes + next];
  }
};

// ---- one family's operands: the strip's stream side (rows s) and chain side (columns c), by lane

template <int kBytes>
struct Cdna {
  static constexpr Family kFamily = Family::cdna;
  static constexpr int n = 16 / kBytes, kAccumulators = kBytes == 2 ? 2 : 1;
  using Accumulators = Wave<64, 4 * kAccumulators>;
  using Chain = Wave<64, n>;
  struct Stream {
    Chain k[kAccumulators];
  };

  static Stream load_stream(const Stored& t, bool, int s0, int k0) {  // tiles are [side][k] already
    Stream o;
    for (int lane = 0; lane < 64; ++lane)
      for (int j = 0; j < kAccumulators; ++j)
        for (int e = 0; e < n; ++e) {
          const int i = lane % 16, row = kBytes == 2 ? interleaved_row(i, j) : i;
          o.k[j][lane][e] = t.at(s0 + row, k0 + lane / 16 * n, e);
        }
    return o;
  }
  static Chain load_chain(const Stored& t, bool, int c0, int k0) {
    Chain o;
    for (int lane = 0; lane < 64; ++lane)
      for (int e = 0; e < n; ++e) o[lane][e] = t.at(c0 + lane % 16, k0 + lane / 16 * n, e);
    return o;
  }
  static void multiply(Accumulators& v, const Stream& stream, const Chain& chain) {
    constexpr int kUsed = kBytes == 2 ? 4 : 1;  // k of one lane in an instruction
    for (int j = 0; j < kAccumulators; ++j)
      for (int first = 0; first < n; first += kUsed) {
        Wave<64, 4> sum;
        Wave<64, kUsed> a, b;
        for (int lane = 0; lane < 64; ++lane) {
          for (int r = 0; r < 4; ++r) sum[lane][r] = v[lane][4 * j + r];
          for (int e = 0; e < kUsed; ++e) {
            a[lane][e] = stream.k[j][lane][first + e];
            b[lane][e] = chain[lane][first + e];
          }
        }
        if constexpr (kBytes == 2)
          layouts::mfma_16x16x16(a, b, sum);
        else
          layouts::mfma_16x16x4(a, b, sum);
        for (int lane = 0; lane < 64; ++lane)
          for (int r = 0; r < 4; ++r) v[lane][4 * j + r] = sum[lane][r];
      }
  }
  static Chain as_chain(const Accumulators& v) { return v; }  // without any move, even in the lane
  static constexpr bool kTransposesBeforeLds = true;
};

template <int kBytes>
struct Rdna {
  static constexpr Family kFamily = Family::rdna;
  using Accumulators = Wave<32, 8>;
  using Chain = Wave<32, 16>;
  using Stream = Chain;

  static Chain load_chain(const Stored& t, bool, int c0, int k0) {
    constexpr int n = 16 / kBytes;
    Chain o;
    for (int lane = 0; lane < 32; ++lane)
      for (int k = 0; k < 16; ++k) o[lane][k] = t.at(c0 + lane % 16, k0 + k / n * n, k % n);
    return o;
  }
  static Stream load_stream(const Stored& t, bool, int s0, int k0) { return load_chain(t, true, s0, k0); }
  static void multiply(Accumulators& v, const Stream& stream, const Chain& chain) {
    Accumulators other = v;
    layouts::wmma_16x16x16(stream, chain, other, 1);
    layouts::wmma_16x16x16(stream, chain, v, 0);
    CHECK(v == other, "the halves of a wave hold different operands");
  }
  static Chain as_chain(const Accumulators& v) {  // the lane's rows, and those of the other half after one exchange
    Chain o;
    for (int lane = 0; lane < 32; ++lane)
      for (int r = 0; r < 8; ++r) {
        o[lane][2 * r] = v[lane % 16][r];
        o[lane][2 * r + 1] = v[lane % 16 + 16][r];
      }
    return o;
  }
  static constexpr bool kTransposesBeforeLds = true;
};

template <int kBytes>
struct Rdna4 {
  static constexpr Family kFamily = Family::rdna4;
  using Accumulators = Wave<32, 8>;
  using Chain = Wave<32, 8>;
  using Stream = Chain;

  static Chain load_chain(const Stored& t, bool, int c0, int k0) {
    constexpr int n = 16 / kBytes;
    Chain o;
    for (int lane = 0; lane < 32; ++lane)
      for (int e = 0; e < 8; ++e) o[lane][e] = t.at(c0 + lane % 16, k0 + lane / 16 * 8 + e / n * n, e % n);
    return o;
  }
  static Stream load_stream(const Stored& t, bool, int s0, int k0) { return load_chain(t, true, s0, k0); }
  static void multiply(Accumulators& v, const Stream& stream, const Chain& chain) {
    Accumulators other = v;
    layouts::wmma_gfx12_16x16x16(stream, chain, other, true);
    layouts::wmma_gfx12_16x16x16(stream, chain, v, false);
    CHECK(v == other, "the two published maps of k differ in the product");
  }
  static Chain as_chain(const Accumulators& v) { return v; }  // without any move, even in the lane
  static constexpr bool kTransposesBeforeLds = true;
};

template <int kBytes>
struct Nvidia {
  static constexpr Family kFamily = Family::nvidia;
  using Accumulators = Wave<32, 8>;
  using Chain = Wave<32, 8>;
  using Stream = Chain;

  static Stream load_stream(const Stored& t, bool along, int s0, int k0) {
    if constexpr (kBytes == 2)
      return layouts::ldmatrix(!along, [&](int lane, int next) {
        const int m = lane / 8, i = lane % 8;
        return along ? t.at(s0 + 8 * (m / 2) + i, k0 + 8 * (m % 2), next)
                     : t.at(k0 + 8 * (m % 2) + i, s0 + 8 * (m / 2), next);
      });
    Stream o;
    for (int lane = 0; lane < 32; ++lane)
      for (int e = 0; e < 8; ++e) {
        const int w = e / 2, s = s0 + 8 * (w / 2) + lane / 4, k = k0 + 8 * (w % 2) + 2 * (lane % 4) + e % 2;
        o[lane][e] = along ? t.at(s, k) : t.at(k, s);
      }
    return o;
  }
  static Chain load_chain(const Stored& t, bool along, int c0, int k0) {
    if constexpr (kBytes == 2)
      return layouts::ldmatrix(!along, [&](int lane, int next) {
        return along ? t.at(c0 + 8 * ((lane / 8) % 2) + lane % 8, k0 + 8 * (lane / 16), next)
                     : t.at(k0 + 8 * (lane / 16) + lane % 8, c0 + 8 * ((lane / 8) % 2), next);
      });
    Chain o;
    for (int lane = 0; lane < 32; ++lane)
      for (int e = 0; e < 8; ++e) {
        const int w = e / 2, c = c0 + 8 * (w % 2) + lane / 4, k = k0 + 8 * (w / 2) + 2 * (lane % 4) + e % 2;
        o[lane][e] = along ? t.at(c, k) : t.at(k, c);
      }
    return o;
  }
  static void multiply(Accumulators& v, const Stream& stream, const Chain& chain) {
    for (int half = 0; half < 2; ++half) {
      Wave<32, 4> b, sum;
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 4; ++e) {
          b[lane][e] = stream[lane][4 * half + e];
          sum[lane][e] = v[lane][4 * half + e];
        }
      layouts::mma_m16n8k16(chain, b, sum);
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 4; ++e) v[lane][4 * half + e] = sum[lane][e];
    }
  }
  static Chain as_chain(const Accumulators& v) { return v; }
  static constexpr bool kTransposesBeforeLds = false;
};

// ---- products

template <class F>
Matrix strip_matrix(const typename F::Accumulators& v, int bytes) {
  Matrix m(strip_step(F::kFamily, bytes), kStripColumns);
  for (size_t lane = 0; lane < v.size(); ++lane)
    for (size_t r = 0; r < v[lane].size(); ++r) {
      const StripPosition at = strip_position(F::kFamily, bytes, int(lane), int(r));
      m(at.row, at.column) = v[lane][r];
    }
  return m;
}

}  // namespace operands
