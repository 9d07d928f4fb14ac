// SPDX-License-Identifier: Apache-2.0
// Products of the rows of two chunks on CDNA, for tensors whose rows are vectors of 16 bytes: a wave has the pairs of a
// chunk's tokens with a chunk's tokens.
//
// Operands go from memory to the registers that multiply them. A step has half of a cache line of each row: the two
// steps of a line are loaded together, a row's halves one behind the other. Apart, L1 and L2 would have lost the line
// between them. Loads check bounds, so that a last chunk with fewer tokens takes the same path.
#pragma once

#include "arch/operands.h"
#include "mlstm/chunkwise/chunk_rows_cdna.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

template <class E>
struct CdnaRowProducts {
  static constexpr int kChunk = kStep<E>;  // the pairs of two chunks are one row of strips
  static constexpr int n = kVec16Elements<E>, kStrips = kChunk / kStripColumns, kRows = Strip<E>::kRegisters;
  static constexpr int kTogether = 2, kLeft = kStreamVec16s<E>;

  // A tensor's rows of a chunk, and this lane's offset in them without its features.
  template <int kVecs>
  struct Rows {
    MemoryRange range;
    uint32_t offset[kVecs];

    template <class RowOf>
    XLSTM_DEVICE Rows(const TokenRows<E>& of, const Chunk& c, RowOf&& row_of) {
      const uint32_t stride = uint32_t(of.stride) * sizeof(E);
      range = {reinterpret_cast<const char*>(of.data + c.t0 * of.stride),
               (c.valid - 1) * stride + uint32_t(of.columns) * uint32_t(sizeof(E))};
#pragma unroll
      for (int j = 0; j < kVecs; ++j) offset[j] = uint32_t(row_of(j)) * stride;
    }
    XLSTM_DEVICE void load(Vec16 (&to)[kVecs], uint32_t features) const {
#pragma unroll
      for (int j = 0; j < kVecs; ++j) to[j] = load_vec16(range, offset[j] + features);
    }
    // The same for steps together, a row's loads one behind the other.
    template <class V, int kSteps>
    XLSTM_DEVICE void load(V (&to)[kSteps], Vec16 (V::*which)[kVecs], const uint32_t (&features)[kSteps]) const {
#pragma unroll
      for (int j = 0; j < kVecs; ++j)
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          (to[step].*which)[j] = load_vec16(range, offset[j] + features[step]);
          sched_barrier();
        }
    }
  };
  using LeftRows = Rows<kLeft>;
  using RightRows = Rows<kStrips>;
  struct Vectors {
    Vec16 left[kLeft], right[kStrips], with[kLeft];  // with: of the left chunk, beside its other rows
  };

  const int lane, row0, feature;  // row0: of the first pair; feature: of the lane's vectors, in a step

  XLSTM_DEVICE CdnaRowProducts() : lane(lane_id()), row0(lane / 16 * kRows), feature(lane / 16 * n) {}

  XLSTM_DEVICE int left_row(int j) const { return stream_vec16(kFamily, sizeof(E), lane, j).row; }
  XLSTM_DEVICE LeftRows left_rows(const Tokens& x, const Chunk& c) const {
    return LeftRows(rows<E>(x, c.head), c, [&](int j) { return left_row(j); });
  }
  XLSTM_DEVICE RightRows right_rows(const Tokens& x, const Chunk& c) const {
    return RightRows(rows<E>(x, c.head), c, [&](int j) { return j * kStripColumns + lane % 16; });
  }

  // sum[t][s] = row t of `l` times row s of `r`, over `columns` features. on_step(vectors, the lane's first feature) is
  // called for each step. before() runs once the first loads are under way. kWith: rows of `w` are loaded, too.
  template <bool kWith, class Before, class F>
  XLSTM_DEVICE void multiply_rows(Strip<E> (&sum)[kStrips], const LeftRows& l, const RightRows& r, const LeftRows& w,
                                  int columns, Before&& before, F&& on_step) const {
    Vectors vectors[kTogether];
    const auto load = [&](int at) {
      uint32_t features[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int first = at + j * kUnit<E> + feature;
        features[j] = first < columns ? uint32_t(first) * sizeof(E) : kBeyond;
      }
      l.load(vectors, &Vectors::left, features);
      r.load(vectors, &Vectors::right, features);
      if constexpr (kWith) w.load(vectors, &Vectors::with, features);
    };
    load(0);
    sched_barrier();
    before();
#pragma unroll
    for (int s = 0; s < kStrips; ++s) sum[s].zero();
    for (int at = 0; at < columns; at += kTogether * kUnit<E>) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {  // a step beyond the last one multiplies zeros
        const Vectors& v = vectors[j];
#pragma unroll
        for (int s = 0; s < kStrips; ++s) multiply(sum[s], stream_of<E>(v.left, 0), ChainOperand<E>{v.right[s]});
        on_step(v, at + j * kUnit<E> + feature);
        sched_barrier();
      }
      load(at + kTogether * kUnit<E>);
      sched_barrier();
    }
  }
};

}  // namespace xlstm::gpu::mlstm
