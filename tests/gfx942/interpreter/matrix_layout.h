// SPDX-License-Identifier: Apache-2.0
// Where the elements of the matrices of v_mfma lie: which lane, and which of its elements. The formulas are those that
// AMD's matrix instruction calculator publishes for CDNA3.
#pragma once

namespace gfx942 {

// D = A B + C for `blocks` independent blocks: A is m by k, B is k by n, C and D are m by n; m = n = side.
struct MatrixShape {
  int side, k, blocks;

  // A lane holds so many elements of A, consecutive in k; B is the same with j for i.
  constexpr int depth() const { return side * k * blocks / 64; }
  // A lane's elements of D are in groups that are consecutive in i. A double's group is one.
  constexpr int group(bool is_double) const { return is_double ? 1 : 4; }
};

struct MatrixPlace {
  int lane, element;
};

// A[i][k] of a block, or B[k][i]. The blocks of 4x4x4 doubles lie within each k, all others around it.
constexpr MatrixPlace input_place(MatrixShape s, bool is_double, int i, int k, int block) {
  if (is_double && s.blocks > 1) return {i + s.side * block + s.side * s.blocks * k, 0};
  const int depth = s.depth(), steps = s.k / depth;
  return {i + s.side * (k / depth + steps * block), k % depth};
}

// C or D[i][j] of a block. Rows of 4 by 4 blocks lie one block after another; those of larger ones are dealt to the
// lanes in groups.
constexpr MatrixPlace output_place(MatrixShape s, bool is_double, int i, int j, int block) {
  if (is_double && s.blocks > 1) return {j + s.side * block + s.side * s.blocks * i, 0};
  if (s.side == 4) return {j + 4 * block, i};
  const int group = s.group(is_double), lanes = 64 / s.side, elements = s.side / lanes;
  return {j + s.side * (i / group % lanes), i / (group * lanes) * group + i % group + elements * block};
}

// Each lane and element is taken once.
constexpr bool covers(MatrixShape s, bool is_double) {
  const int inputs = s.depth(), outputs = s.side * s.side * s.blocks / 64;
  bool in[64 * 16] = {}, out[64 * 32] = {};
  for (int b = 0; b < s.blocks; ++b)
    for (int i = 0; i < s.side; ++i) {
      for (int k = 0; k < s.k; ++k) {
        const MatrixPlace p = input_place(s, is_double, i, k, b);
        if (p.lane >= 64 || p.element >= inputs || in[p.lane * inputs + p.element]) return false;
        in[p.lane * inputs + p.element] = true;
      }
      for (int j = 0; j < s.side; ++j) {
        const MatrixPlace p = output_place(s, is_double, i, j, b);
        if (p.lane >= 64 || p.element >= outputs || out[p.lane * outputs + p.element]) return false;
        out[p.lane * outputs + p.element] = true;
      }
    }
  return true;
}

}  // namespace gfx942
