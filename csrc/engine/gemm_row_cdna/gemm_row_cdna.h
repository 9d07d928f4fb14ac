// SPDX-License-Identifier: Apache-2.0
// y = W x for one row of x on CDNA, as a launch: the product that CDNA's megakernel also has (row_product.h), of
// tensors.
//
// Who owns what: a compute unit has one block of two groups of four waves. Every group has the same number of units and
// rows (gemm_row_cdna_plan.h). Gates that stayed bfloat16 beside quantised linears are multiplied by the last blocks,
// which have no other rows: x lies in LDS in the order of features of one format.
//
// What it gains over gemm_mma, whose units are 16 or 32 rows (predicted, a block of xLSTM-7B on an MI300X, its four
// products): all compute units have equally many rows, integers are multiplied as bytes, x is loaded by whole lines.
// bfloat16 153 to 127 us, int8 117 to 86, int4 109 to 71.
//
// Timeline of a block: the first steps of weights are loaded, then x, which goes to LDS as digits or as two bfloat16.
//
//   weights  | two steps | two more steps | the unit's steps ....... | the next unit's first steps | ...
//   waves    | x to LDS  | barrier        | products                 | epilogue                    | products
//
// Floor: the bytes of the weights over the bandwidth of memory. What is predicted is in docs/lab/gfx942.md.
#pragma once

#include "engine/gemm_row_cdna/row_product.h"

namespace xlstm::gpu::engine {

// What a product is given and gives: tensors.
struct BetweenLaunches {
  static constexpr bool kLoadsBehind = false;

  template <int kCount, class At>
  XLSTM_DEVICE static void load_vec8s(const MemoryRange& range, int lane, At&& at, HalfVec8s (&to)[kCount]) {
    load_halves(range, lane, at, to, [](const MemoryRange& of, uint32_t offset) { return load_vec16(of, offset); });
  }
  // It is overwritten: other groups' rows must not be read, even to no use.
  XLSTM_DEVICE static float load_residual(const float* from, int rows, int row, bool is_used) {
    const MemoryRange range{reinterpret_cast<const char*>(from), uint32_t(rows) * 4};
    return as_float(load_word(range, is_used ? uint32_t(row) * 4 : kNowhere));
  }
  XLSTM_DEVICE static void store(float* to, float y) { *to = y; }
};

struct GemmRowCdnaParams {
  GemmParams gemm;
  int gate_blocks, sums_at;  // see GemmRowCdnaPlan
};

template <class Weights>
struct GemmRowCdna {
  using Product = CdnaProduct<Weights, kCdnaDepth, &GemmParams::units, BetweenLaunches>;
  using Gates = CdnaProduct<Bfloat16Weights, kCdnaGateDepth, &GemmParams::gate_units, BetweenLaunches>;

  const GemmRowCdnaParams& p;
  char* lds;
  float* squares;  // of waves, for an RMS norm

  // By the blocks from first_block on.
  template <class Of>
  XLSTM_DEVICE void multiply(int first_block, int blocks, int rounds) const {
    const int first = int(blockIdx.x) - first_block + Of::group() * blocks, groups = kCdnaGroups * blocks;
    typename Of::Source source = Of::Source::of(p.gemm, first);
    typename Of::Step steps[Of::kDepth];
    source.fetch_early(steps);
    float* const sums = reinterpret_cast<float*>(lds + p.sums_at) + Of::group() * (kCdnaSumBytes / 4);
    Of(p.gemm, lds, squares, sums, [&] {
      source.fetch_late(steps);
    }).multiply_units({first, rounds * groups, groups}, steps, source, [&](bool more, int unit) {
      return Of::Source::of(p.gemm, more ? unit + groups : unit);
    });
  }
  XLSTM_DEVICE void run() const {
    const int blocks = int(gridDim.x) - p.gate_blocks;
    if constexpr (Weights::kGroups)
      if (int(blockIdx.x) >= blocks) return multiply<Gates>(blocks, p.gate_blocks, p.gemm.gate_units.rounds);
    multiply<Product>(0, blocks, p.gemm.units.rounds);
  }
};

template <class Weights>
__global__ __launch_bounds__(kRowCdnaThreads, 2) void gemm_row_cdna_kernel(XLSTM_PARAM GemmRowCdnaParams kernel_arg) {
  if constexpr (kFamily == Family::cdna) {
    const GemmRowCdnaParams& p = *kernel_params(kernel_arg);
    __shared__ float squares[kRowCdnaThreads / kWave];
    extern __shared__ __align__(128) char lds[];
    GemmRowCdna<Weights>{p, lds, squares}.run();
  }
}

}  // namespace xlstm::gpu::engine
