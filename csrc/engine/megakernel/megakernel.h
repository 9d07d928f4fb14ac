// SPDX-License-Identifier: Apache-2.0
// The megakernel: a decode step of one row of the batch, from its embedding to logits, in one persistent launch on
// Hopper.
//
// Maths, for each block of the model (W are weights of bfloat16, int8 or int4; rms and heads are norms with weights):
//
//   projections  q, k, v, i, f = W rms(x)                 i and f with the soft cap
//   gate         C, n, m, h    = mLSTM step(q, k, v, i, f)
//                o             = W rms(x)                  the same x as the projections'
//   output       x            += W (heads(h) sigmoid(o))
//   up           u             = silu(W rms(x)) (W' rms(x))
//   down         x            += W u
//
// and after the last block, in the phase head, logits = cap(W rms(x)). Sums are made as in gemm_cluster.h: int8
// products of integer weights and the digits of x, or bfloat16 products with two parts of x, and an RMS norm is a
// factor of sums. Quantised products are the same bits in both kernels.
//
// Who owns what (megakernel_plan.h): each multiprocessor has one thread block of 16 warps, which stays for the whole
// step. In each phase a block takes items, 16 rows of weights, in turn; 8 warps (or 4, or 2) split an item's features,
// and the block adds up their sums in the order of the features. A block also owns tiles of C of 32 columns, and the
// rows of x that its output and down items add to, which stay in shared memory. A cooperative launch makes all blocks
// run at once, so that they may wait for each other.
//
// Timeline of one block of the model, as a thread block sees it. "spin" waits for mailboxes (mailbox.h), which the
// epilogues of all thread blocks fill; "|" is a barrier of the thread block. Meanwhile the rings
// (megakernel_weight_ring.h) always hold up to 160 KB of weights of this and the next phases, landed or in flight.
//
//   phase        prologue                          | mainloop    | epilogue              meanwhile
//   -----------  ----------------------------------  ------------  --------------------  ---------------------------
//   projections  norms, C, n, m prefetched to L2   |             |                       spin: weights after the
//                spin x; squares, digits -> smem   | q, k, v, i, f | publish q k v i f |   rings' to L2 (not int4)
//
//   gate         load C, n, m; warp 0 spins i, f;  |             |                       h and o are on their way to
//                warps 1-15 spin q, k, v           |             |                       all blocks
//                update C | sums | publish h       | o           | publish o
//
//   output       spin h, o; norm of heads -> smem  | W h         | x += W h, publish x   spin: twice as many lines of
//                                                  |             | n, m -> their tensors weights to L2
//
//   up           spin x; squares, digits -> smem   | gate, up    | publish u             spin: weights to L2
//
//   down         spin u; digits -> smem            | W u         | x += W u, publish x   spin: weights to L2
//
// At the beginning of every phase the scales of the next phase's items are prefetched to L2. The refill of a phase's
// last ring slot is issued after the next phase's prologue, since mailboxes behind 80 KB of weights would be late.
//
// Mailboxes, one set for each block of the model (struct Mailboxes; each float is published once in a step):
//
//   mailbox       producer                                     consumer
//   x             embed_kernel, or down of the block before    projections (and gate, from shared memory); head
//   q, k, v       epilogue of projections                      gate: warps 1 to 15, one tile's part
//   i, f          epilogue of projections                      gate: warp 0, OneGate
//   h             gate: mLSTM step, 32 values a tile           output: load_gated_heads
//   o             epilogue of gate                             output: load_gated_heads
//   x + output    epilogue of output                           up
//   u             epilogue of up                               down
//
// n and m are read by every tile of a head but written by one: it leaves them in the workspace, and output, whose
// prologue has seen all of h, moves them (apply_pending_state).
//
// Barriers of the thread block (__syncthreads; there is none of the grid):
//
//   after prepare            the tables of items and parts, and the rows of x that this block adds to, are ready
//   end of a prologue        x and its scales are ready for the mainloop; the last warp then computes the RMS factor
//   mlstm step, 1 of 3       q, k, v and the gates are ready
//   mlstm step, 2 of 3       the warps' sums of h and l are ready
//   mlstm step, 3 of 3       the sums may be overwritten by the next tile, or by the gate's partial sums
//   end of a mainloop        the warps' partial sums, and the RMS factor, are ready for the epilogue
//   after projections        its partial sums have been read; the mLSTM step uses the same memory
//
// In a ring a warp waits for its own copies only: cp.async groups, then __syncwarp.
//
// Floor: the bytes of the weights over the bandwidth of memory, 4.3 TB/s on an H200. There the bytes take 83 of
// bfloat16's 111 us a block of the model and 48 of int8's 70; the rest is the wait between phases. int4 takes 47 us, of
// which 28 are mainloops, at 4.2 TB/s and 600 instructions a slot: memory and instructions bind; 17 us are between
// phases (clocks inside the kernel; docs/lab/decode-h200.md).
#pragma once

#include "arch/hopper/hopper.h"
#include "engine/gpu/prologue_epilogue.h"
#include "engine/megakernel/gated_head.h"
#include "engine/megakernel/mailbox.h"
#include "engine/megakernel/megakernel_mainloop.h"
#include "engine/megakernel/megakernel_mlstm_step.h"

namespace xlstm::gpu::engine {

template <class Weights>
struct Megakernel {
  using Mainloop = MegakernelMainloop<Weights, 1>;
  using Sums = typename Mainloop::Sums;
  using Ring = typename Mainloop::Ring;

  const MegakernelParams& p;
  char* lds;
  Mainloop loop;

  XLSTM_DEVICE Megakernel(const MegakernelParams& params, char* memory)
      : p(params), lds(memory), loop(params, memory) {}

  // Fills in the tables, and the token's x in the rows that the block adds to. A barrier must follow.
  XLSTM_DEVICE static void prepare(const MegakernelParams& p, char* lds) {
    Mainloop::prepare(p, lds);
    const int added = WarpPart(p, Phase::output, 0).end * kItemRows,
              rows = p.phase[int(Phase::output)].gemm.linear[0].rows;
    for (int index = int(threadIdx.x); index < added; index += kMegakernelThreads) {
      const int row = (int(blockIdx.x) + index / kItemRows * int(gridDim.x)) * kItemRows + index % kItemRows;
      reinterpret_cast<float*>(lds + p.smem.residual)[index] = row < rows ? p.mailboxes[row] : 0.0f;
    }
  }

  XLSTM_DEVICE float* floats(int at) const { return reinterpret_cast<float*>(lds + at); }

  // ---- prologue: x

  // Loads x from its mailboxes, kBurst vec8s of a thread at a time, and applies the weights of an RMS norm, if kNormed.
  template <bool kNormed, int kBurst>
  XLSTM_DEVICE void load_x(Phase phase, int block, const DeviceVector& norm) {
    const GemmParams& gemm = p.phase[int(phase)].gemm;
    const float* const x_at = p.from(phase, block);
    const int vec8s = gemm.columns / kVec8;
    const auto vec8_index = [&](int i) { return i * kMegakernelThreads + int(threadIdx.x); };
    const auto feature = [&](int i) { return vec8_index(i) < vec8s ? vec8_index(i) * kVec8 : 0; };
    NormVec8 weight[kBurst];
#pragma unroll
    for (int i = 0; kNormed && i < kBurst; ++i) weight[i].fetch(norm, feature(i));
    for (int begin = 0; begin * kMegakernelThreads < vec8s; begin += kBurst) {
      float y[kBurst][kVec8];
      const float* addresses[kBurst];
#pragma unroll
      for (int i = 0; i < kBurst; ++i) addresses[i] = x_at + feature(begin + i);
      spin_until_vec8s_published(addresses, y, [&](int look) { loop.ring.prefetch_beyond(look); });
      __syncwarp();  // lanes stop spinning one after the other
#pragma unroll
      for (int i = 0; kNormed && i < kBurst; ++i)
        if (begin) weight[i].fetch(norm, feature(begin + i));
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        const int index = vec8_index(begin + i), step = index / kStepVec8s;
        const bool is_inside = index < vec8s;
        if constexpr (kNormed) {
          const float square_sum = sum_over_lanes<kStepVec8s>(sum_of_squares(y[i]));
          if (is_inside && index % kStepVec8s == 0) floats(p.smem.squares)[step] = square_sum;
          weight[i].multiply(norm.dtype, y[i]);
        }
        Sums::store(loop.x(), step, index % kStepVec8s, 0, y[i], is_inside);
      }
    }
    __syncthreads();
    if (kNormed && Ring::warp() + 1 == kMegakernelWarps) compute_rms_factor(gemm);
  }

  // The factor of an RMS norm, applied to sums; ready at the next barrier. A lane adds up a part of the features, in
  // the order of its steps; then the parts are added up in their order.
  XLSTM_DEVICE void compute_rms_factor(const GemmParams& gemm) const {
    const int rank = lane_id(), steps = gemm.columns / kStepFeatures, bits = part_bits_of(steps);
    const int each = (steps + (1 << bits) - 1) >> bits, end = (rank + 1) * each < steps ? (rank + 1) * each : steps;
    float part = 0, sum = 0;
    for (int step = rank * each; rank < 1 << bits && step < end; ++step) part += floats(p.smem.squares)[step];
#pragma unroll
    for (int j = 0; j < 1 << kMaxPartBits; ++j) sum += shuffle_from(part, j, kWave);
    if (rank == 0) *floats(p.smem.factor) = 1 / __builtin_sqrtf(sum / float(gemm.columns) + gemm.norm_eps);
  }

  // The norm of heads of h, times the sigmoid of the output gate. A warp computes the statistics of a whole head but
  // loads 256 of its values only; other warps repeat the statistics for the other values, which costs no time that one
  // warp would not take.
  XLSTM_DEVICE void load_gated_heads(int block, const DeviceVector& norm) {
    const GemmParams& gemm = p.phase[int(Phase::output)].gemm;
    const float *const h_at = p.from(Phase::output, block), *const gate_at = p.to(Phase::gate, kOutputGate, block);
    const int features = p.step.v.columns, vec8s = features / kVec8, parts_per_head = (vec8s + kWave - 1) / kWave;
    const auto feature = [&](int j) {
      const int n = lane_id() + j * kWave;
      return n < vec8s ? n * kVec8 : 0;
    };
    for (int head_part = Ring::warp(); head_part < p.heads * parts_per_head; head_part += kMegakernelWarps) {
      const int head = head_part / parts_per_head, part = head_part % parts_per_head, begin = head * features;
      float h[kMaxHeadVec8s + 1][kVec8];
      const float* addresses[kMaxHeadVec8s + 1];
      NormVec8 weight;
      weight.fetch(norm, begin + feature(part));
#pragma unroll
      for (int j = 0; j < kMaxHeadVec8s; ++j)
        addresses[j] = h_at + begin + feature(j);  // past the last vec8, the first
      addresses[kMaxHeadVec8s] = gate_at + begin + feature(part);
      // Prefetches twice as many lines as elsewhere, since this wait is the longest.
      spin_until_vec8s_published(addresses, h, [&](int look) {
        loop.ring.prefetch_beyond(2 * look), loop.ring.prefetch_beyond(2 * look + 1);
      });
      __syncwarp();
      float y[kVec8];
      gated_head(h, part, vec8s, gemm.norm_eps, weight, norm.dtype, y);
      const int n = lane_id() + part * kWave;
      Sums::store(loop.x(), head * (features / kStepFeatures) + n / kStepVec8s, n % kStepVec8s, 0, y, n < vec8s);
    }
    __syncthreads();
  }

  // The epilogue of a phase. Few threads run it and all the rest wait: as few instructions as possible.
  XLSTM_DEVICE void epilogue(Phase phase, int block, const WarpPart& part) const {
    const GemmParams& gemm = p.phase[int(phase)].gemm;
    const bool is_swiglu = gemm.output == Output::swiglu, is_residual = gemm.output == Output::add;
    const int bits = is_swiglu ? 3 : 4, parts = part.parts();
    const float factor = gemm.input == Input::rms ? *floats(p.smem.factor) : 1.0f;
    for (int index = int(threadIdx.x); index < part.end << bits; index += kMegakernelThreads) {
      const int n = index >> bits, r = index & ((1 << bits) - 1);
      const RowItem item = Ring::item_of(p, lds, phase, n);
      if (r >= item.rows) continue;
      const MegakernelWeights* const weights = p.block[block].linear + item.linear;
      const auto sum_of = [&](int linear, int row) {
        const float* const part_sums = floats(p.smem.partial_sums) + n * parts * kItemRows + row;
        const float sum = sum_of_parts(part_sums, kItemRows, parts);
        const DeviceVector& bias = weights[linear].bias;
        return bias.data ? sum * factor + value_of(bias, item.first + r) : sum * factor;
      };
      float y = sum_of(0, r);
      if (is_swiglu) {
        y = swiglu(y, sum_of(1, r + kItemRows / 2));
      } else if (is_residual) {  // these rows of x belong to this thread block
        y += floats(p.smem.residual)[index];
        floats(p.smem.residual)[index] = y;
      } else {
        y = cap_and_mask(gemm, item.linear - first_linear(phase), 0, y);
      }
      if (phase == Phase::head)
        gemm.to[0][item.first + r] = y;
      else
        publish(p.of(block) + item.to + r, y);
    }
  }

  // A phase of the model's block, whose x is ready in shared memory.
  XLSTM_DEVICE void run_phase(Phase phase, int block) {
    const WarpPart& part = loop.part(phase);
    int n = part.first;
    loop.run(phase, block, n, part.end, [&](int item, const Sums& sums) { store_partial_sum(part, item, sums); });
    __syncthreads();
    epilogue(phase, block, part);
    if (phase == Phase::output) MegakernelMlstmStep<1>(p, lds).apply_pending_state(block);
    if (phase == Phase::projections) __syncthreads();  // the gate's phase puts its sums in the same smem
  }
  // Stores the sums of item n of this block, over this warp's part of the features.
  XLSTM_DEVICE void store_partial_sum(const WarpPart& part, int n, const Sums& sums) const {
    const float sum = sums.single_sum();
    if (sums.lane_row() < 0) return;
    floats(
        p.smem.partial_sums)[(n * part.parts() + (Ring::warp() & (part.parts() - 1))) * kItemRows + sums.lane_row()] =
        sum;
  }

  XLSTM_DEVICE void run() {
    loop.begin();
#pragma unroll 1
    for (PhaseCursor phase_cursor; !phase_cursor.done();
         phase_cursor.advance(p.blocks)) {  // one copy of each phase's code, so that the instruction cache holds it
      const MegakernelBlock& block = p.block[phase_cursor.block];
      PhaseCursor next = phase_cursor;
      next.advance(p.blocks);
      loop.prefetch_scales(next);
      if (phase_cursor.phase == Phase::gate) {  // its x is that of the projections; h is on its way meanwhile
        MegakernelMlstmStep<1>(p, lds).step(phase_cursor.block);
      } else if (phase_cursor.phase == Phase::output) {
        load_gated_heads(phase_cursor.block, block.head_norm);
      } else if (phase_cursor.phase == Phase::down) {
        load_x<false, 3>(phase_cursor.phase, phase_cursor.block, {});
      } else {
        if (phase_cursor.phase == Phase::projections) {
          loop.prefetch_norms(phase_cursor.block);
          MegakernelMlstmStep<1>(p, lds).prefetch(block, int(blockIdx.x));
        }
        load_x<true, 1>(phase_cursor.phase, phase_cursor.block,
                        phase_cursor.phase == Phase::up ? block.norm_ffn : block.norm);
      }
      run_phase(phase_cursor.phase, phase_cursor.block);
    }
  }
};

template <class Weights>
__global__ __launch_bounds__(kMegakernelThreads, 1) void megakernel(XLSTM_PARAM MegakernelParams kernel_arg) {
  if constexpr (kHopper) {
    extern __shared__ __align__(128) char lds[];
    Megakernel<Weights>::prepare(kernel_arg, lds);
    __syncthreads();
    Megakernel<Weights>(kernel_arg, lds).run();
  }
}

}  // namespace xlstm::gpu::engine
