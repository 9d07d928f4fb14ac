// SPDX-License-Identifier: Apache-2.0
// CDNA's megakernel: a decode step of one row of the batch, from its embedding to logits, in one persistent cooperative
// launch.
//
// Maths: as in engine/megakernel/megakernel.h, by the products of row_product.h and the step of
// heads_step.h.
//
//   projections  q, k, v, o, i, f = W rms(x)                            i and f with the soft cap
//   heads        C, n, m, h = mLSTM step(q, k, v, i, f),  y = heads(h) sigmoid(o)
//   output       x  += W y
//   up           u   = silu(W rms(x)) (W' rms(x))
//   down         x  += W u
//
// and after the last block of the model, logits = cap(W rms(x)).
//
// Who owns what: a compute unit has one block of two groups of four waves. LDS has the product's x, for both groups;
// each group takes units of rows of weights in turn, and its waves split the features. A unit has as many rows as give
// all groups the same, at most as many as it has slots: so no compute unit waits for one with more rows. Where few rows
// fill few slots, a row has two or four of them, each for a slice of its features. All groups have equally many units:
// past the product's last unit a group loads the last row again, and stores nothing. A block also owns tiles of C of 16
// columns.
//
// Gates that stayed bfloat16 beside quantised projections are multiplied by the last blocks, which have no other rows
// of that product: x lies in LDS in the order of features of one format.
//
// Timeline of a product in a group: the first steps of the next product are loaded behind the last of this one. Two are
// on their way during the epilogue and the next wait for x, two during its way to LDS: x arrives behind all that was
// loaded before, of this wave and of the others.
//
//   weights  | the unit's steps ...... | two steps of the next product | two more steps | its next steps ...
//   waves    | products                | epilogue, publish, spin for x | split x, LDS   | products
//
// Mailboxes (engine/gpu/device_mailbox.h), one set for each block of the model; embed_kernel empties them. The heads'
// counters of arrivals are one for each head of each block of the model.
//
//   mailbox              producer                               consumer
//   x                    embed_kernel, or down                  projections, head; output as the residual
//   q, k, v, i, f, o     projections                            heads
//   y                    heads: a head's last block             output
//   x + output           output                                 up; down as the residual
//   u                    up                                     down
//
// Barriers are those of row_product.h and heads_step.h, of the whole block: both groups have equally many
// units. After a tile a barrier frees LDS for the next x.
//
// Params: products' params and the heads' params are in memory, a record for each product and block of the model, since
// a kernel's own params have room for 4 KB. write_records_kernel writes them ahead of this kernel.
//
// Floor: the bytes of the weights over the bandwidth of memory, 99 us of a block of xLSTM-7B in bfloat16 at the rate of
// a copy. What is predicted is in docs/lab/gfx942.md.
#pragma once

#include "engine/gemm_row_cdna/row_product.h"
#include "engine/gpu/heads_step.h"
#include "engine/megakernel_cdna/megakernel_cdna_plan.h"

namespace xlstm::gpu::engine {

struct MegakernelCdnaParams {
  const GemmParams* product;           // of each block of the model: projections, output, up, down; then the head
  const HeadsStepParams* heads;        // of each block of the model
  int products, gate_blocks, sums_at;  // gate_blocks: see MegakernelCdnaPlan; sums_at: bytes from the beginning of LDS
};

template <class Weights>
struct MegakernelCdna {
  using Between = device_mailbox::BetweenBlocks;
  using Product = CdnaProduct<Weights, kCdnaDepth, &GemmParams::units, Between>;
  using Gates = CdnaProduct<Bfloat16Weights, kCdnaGateDepth, &GemmParams::gate_units, Between>;
  using Tile = mlstm::HeadTile<float, kCdnaStepColumns>;
  using HeadsLds = HeadsStepLds<kCdnaStepColumns, kRowCdnaThreads>;

  const MegakernelCdnaParams& p;
  char* lds;
  float* squares;  // of waves, for an RMS norm
  HeadsLds& heads_lds;

  XLSTM_DEVICE const GemmParams& product(int n) const { return *reload_params(p.product + n); }

  // The groups of consecutive blocks that share a product's units.
  struct Groups {
    int first, count;  // first: this one

    XLSTM_DEVICE static Groups of(int first_block, int blocks) {
      return {int(blockIdx.x) - first_block + Product::group() * blocks, kCdnaGroups * blocks};
    }
    template <class Of>
    XLSTM_DEVICE typename Of::Groups units(int rounds) const {
      return {first, rounds * count, count};
    }
  };
  XLSTM_DEVICE int first_gate_block() const { return int(gridDim.x) - p.gate_blocks; }
  // Quantised projections, beside which the last blocks have the gates.
  XLSTM_DEVICE bool beside_gates(int n) const {
    return Weights::kGroups && p.gate_blocks && n % kCdnaProducts == 0 && n + 1 < p.products;
  }
  XLSTM_DEVICE bool multiplies_gates(int n) const { return beside_gates(n) && int(blockIdx.x) >= first_gate_block(); }
  XLSTM_DEVICE Groups groups_of(int n) const {
    return Groups::of(0, beside_gates(n) ? first_gate_block() : int(gridDim.x));
  }
  // Product n, or behind it the first whose weights this block multiplies.
  XLSTM_DEVICE int first_from(int n) const { return uniform(multiplies_gates(n) ? n + 1 : n); }

  // q, k and the tile's part of v go to LDS; the gates to the threads that compute with them.
  XLSTM_DEVICE void fetch_token(const HeadsStepParams& of, int64_t state, int index) const {
    const int keys = of.step.q.columns, pairs = keys + kCdnaStepColumns / 2;
    float* const token = reinterpret_cast<float*>(lds);
    for (int n = int(threadIdx.x); n < pairs; n += kRowCdnaThreads) {
      const float* const from = n < keys / 2 ? of.q + state * keys + 2 * n
                                : n < keys
                                    ? of.k + state * keys + 2 * n - keys
                                    : of.v + state * of.step.v.columns + index * kCdnaStepColumns + 2 * (n - keys);
      float pair[2];
      device_mailbox::spin_pairs<1>([&](int) { return from; }, pair);
      token[2 * n] = pair[0], token[2 * n + 1] = pair[1];
    }
  }
  XLSTM_DEVICE void step_heads(int block) const {
    const HeadsStepParams& of = *reload_params(p.heads + block);
    const int keys = of.step.q.columns, values = of.step.v.columns, heads = int(of.step.where.heads);
#pragma unroll 1
    for (int n = int(blockIdx.x); n < heads * of.step.tiles; n += int(gridDim.x)) {
      const int64_t state = n % heads;  // a head's tiles, which share lines of C, are on one die
      const int index = n / heads;
      Tile tile(of.step, index);
      tile.load(of.c + state * keys * values, of.n + state * keys);  // the state before this token, ahead of the wait
      mlstm::OneGate gate;
      if (gate.computes) {
        float x[1];
        gate.m = double(of.m[state]);
        device_mailbox::spin_each<1>([&](int) { return (gate.is_input ? of.i : of.f) + state; }, x);
        gate.x = double(x[0]);
      }
      fetch_token(of, state, index);
      gate.compute(of.step, heads_lds.one);
      __syncthreads();
      const float* const token = reinterpret_cast<const float*>(lds);
      tile.q_at = token + tile.row, tile.k_at = token + keys + tile.row;
      tile.v_at = token + 2 * keys + tile.column - index * kCdnaStepColumns;
      tile.fetch();
      step_tile<true>(of, tile, state, index, heads_lds);
      __syncthreads();
    }
  }

  // A product, whose first weights are on their way.
  template <class Of, class NextOf>
  XLSTM_DEVICE void multiply(const GemmParams& of, const typename Of::Groups& units,
                             typename Of::Step (&steps)[Of::kDepth], typename Of::Source& source,
                             NextOf&& next_of) const {
    float* const sums = reinterpret_cast<float*>(lds + p.sums_at) + Of::group() * (kCdnaSumBytes / 4);
    Of(of, lds, squares, sums, [&] { source.fetch_late(steps); }).multiply_units(units, steps, source, next_of);
  }
  // The bfloat16 gates, of an x of their own: quantised weights' x has another order of features.
  XLSTM_DEVICE void multiply_gates(const GemmParams& of) const {
    const Groups groups = Groups::of(first_gate_block(), p.gate_blocks);
    typename Gates::Source source = Gates::Source::of(of, groups.first);
    typename Gates::Step steps[Gates::kDepth];
    source.fetch_early(steps);
    multiply<Gates>(of, groups.template units<Gates>(of.gate_units.rounds), steps, source, [&](bool more, int unit) {
      return Gates::Source::of(of, more ? unit + groups.count : groups.first);
    });
  }
  XLSTM_DEVICE void run() const {
    int next = first_from(0);
    typename Product::Source source = Product::Source::of(product(next), groups_of(next).first);
    typename Product::Step steps[Product::kDepth];
    source.fetch_early(steps);
#pragma unroll 1
    for (int n = 0; n < p.products; ++n) {
      if (n % kCdnaProducts == kCdnaOutput) step_heads(n / kCdnaProducts);
      if constexpr (Weights::kGroups)
        if (multiplies_gates(n)) {
          multiply_gates(product(n));
          continue;
        }
      const GemmParams& of = product(n);
      const Groups groups = groups_of(n);
      next = n + 1 < p.products ? first_from(n + 1) : n;  // the head's first weights follow its last
      multiply<Product>(of, groups.template units<Product>(of.units.rounds), steps, source, [&](bool more, int unit) {
        return Product::Source::of(product(more ? n : next), more ? unit + groups.count : groups_of(next).first);
      });
    }
  }
};

template <class Weights>
__global__ __launch_bounds__(kRowCdnaThreads, 2) void megakernel_cdna(const MegakernelCdnaParams kernel_arg) {
  if constexpr (kFamily == Family::cdna) {
    using Kernel = MegakernelCdna<Weights>;
    const MegakernelCdnaParams& p = *kernel_params(kernel_arg);
    __shared__ float squares[kRowCdnaThreads / kWave];
    __shared__ typename Kernel::HeadsLds heads_lds;
    extern __shared__ __align__(128) char lds[];
    Kernel{p, lds, squares, heads_lds}.run();
  }
}

}  // namespace xlstm::gpu::engine
