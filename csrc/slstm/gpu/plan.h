// SPDX-License-Identifier: Apache-2.0
// The plan of a recurrent cell's call on a GPU: a pure function of shape and chip, so that tests run it anywhere.
//
// A block has some sequences of one head, and a wave of it some of the head's units with all their gates. Where the
// head's matrix fits into the registers of a block's waves, it stays there for all tokens; else its operands are read
// from L2 for each token.
#pragma once

#include <algorithm>
#include <cstdint>

#include "arch/chip.h"
#include "base/numbers.h"
#include "slstm/layout.h"

namespace xlstm::gpu::slstm {

using namespace xlstm::slstm;

// Waves of a block that reads the matrix from L2: as many as leave a lane registers for it.
constexpr int max_waves(Family f, bool is_backward) { return f == Family::cdna ? (is_backward ? 4 : 8) : 16; }
constexpr int kCarriedValues = 3;                    // floats of a unit that such a block keeps in memory
constexpr int kResidentUnits[] = {32, 64, 96, 128};  // padded units of a head for which there are resident kernels
constexpr int kMaxResidentRegisters = 128;           // of a lane, for the operands of the matrix
constexpr int64_t kResidentFrom = 4;                 // tokens, from which on loading the matrix first pays

// Sequences of a block: the columns of a strip, one of a lane's, since its registers hold the states of its columns.
constexpr int block_rows(Family f) { return kStripColumns / lane_columns(f); }

// The registers of a lane for the matrix, forward or backward: each wave has strip_step units of 4 gates. RDNA's 256
// registers a lane do not hold it beside 8 units.
constexpr bool fits_registers(Family f, int element_bytes, int padded) {
  const int words = f == Family::cdna ? 8 : 4;  // of a stream operand of 2-byte elements
  return !is_rdna(f) && element_bytes == 2 &&
         kGates * (padded / strip_step(f, element_bytes)) * words <= kMaxResidentRegisters;
}

// LDS rows of `numbers` elements: of h, or of the gradients of the gates. The distance keeps lanes that read the same
// vector of different rows in different banks.
constexpr int lds_row_bytes(Family f, int element_bytes, int64_t numbers) {
  return int(numbers) * element_bytes + (f == Family::nvidia ? 64 : 16);
}

struct CellPlan {
  int padded;    // units of a head
  int resident;  // the same, or 0 where the matrix is read for each token
  int rows;      // sequences of a block
  int threads, lds_bytes;
  int64_t blocks;
  int64_t carried;  // floats of memory for what does not stay in registers
};

// A row of LDS has a head's padded units in forward and those of 4 gates in backward.
inline CellPlan plan_cell(int64_t sequences, int64_t heads, int64_t longest, int64_t units, int element_bytes,
                          bool is_backward, const Chip& chip) {
  CellPlan p{};
  p.padded = int(padded_units(units));
  const Family f = chip.family;
  for (const int padded : kResidentUnits)
    if (longest >= kResidentFrom && p.padded == padded && fits_registers(f, element_bytes, padded)) p.resident = padded;
  const int strips = p.padded / strip_step(f, element_bytes);
  p.threads = (p.resident ? strips : std::min(strips, max_waves(f, is_backward))) * wave_size(f);
  const int row_bytes = lds_row_bytes(f, element_bytes, int64_t(p.padded) * (is_backward ? kGates : 1));
  p.rows = block_rows(f);
  while (2 * p.rows * row_bytes > chip.lds_bytes) p.rows /= 2;
  p.lds_bytes = 2 * p.rows * row_bytes;
  p.blocks = heads * ceil_div(sequences, p.rows);
  p.carried = p.resident ? 0 : sequences * heads * units * kCarriedValues;
  return p;
}

}  // namespace xlstm::gpu::slstm
